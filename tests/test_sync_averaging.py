"""The rule of model averaging, without processes: rounds whose payloads are added up by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fsbench_strategies.sync.averaging import Round  # noqa: E402
from fsbench_strategies.sync.flat import FlatParameters  # noqa: E402

NUMEL = 50
alphas = st.floats(0.05, 1.0)
write_backs = st.sampled_from(["pull", "delta"])
seeds = st.integers(0, 1000)


def replicas(ranks: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(NUMEL, generator=generator, dtype=torch.float64) for _ in range(ranks)]


def run_round(values, alpha, write_back, in_flight=None, active=None, stop=None) -> list[Round]:
    """One round over all replicas, in place. `in_flight`: what each learns between snapshot and write-back."""
    ranks = len(values)
    rounds = [Round(replica, rank, ranks) for rank, replica in enumerate(values)]
    active, stop = active or [True] * ranks, stop or [False] * ranks
    for rank, one in enumerate(rounds):
        one.fill(active=active[rank], wants_stop=stop[rank], notes=(10.0 + rank, -1.0), keep=True)
    total = sum(one.payload.clone() for one in rounds)
    for rank, one in enumerate(rounds):
        one.payload.copy_(total)
        if in_flight is not None:
            values[rank] += in_flight[rank]
        one.take(alpha, write_back)
    return rounds


def spread(values) -> torch.Tensor:
    stacked = torch.stack(values)
    return (stacked - stacked.mean(0)).norm(dim=1)


@given(seeds, st.integers(1, 5), write_backs)
def test_with_alpha_1_and_training_paused_every_replica_becomes_the_mean(seed, ranks, write_back):
    values = replicas(ranks, seed)
    mean = torch.stack(values).mean(0)
    run_round(values, 1.0, write_back)
    for replica in values:
        torch.testing.assert_close(replica, mean)


@given(seeds, st.integers(2, 4), alphas, write_backs)
def test_a_round_without_training_shrinks_the_spread_by_1_minus_alpha_and_keeps_the_mean(
    seed, ranks, alpha, write_back
):
    values = replicas(ranks, seed)
    before, mean = spread(values), torch.stack(values).mean(0)
    run_round(values, alpha, write_back)
    torch.testing.assert_close(spread(values), (1 - alpha) * before, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(torch.stack(values).mean(0), mean)


@given(seeds, alphas)
def test_pull_keeps_1_minus_alpha_of_what_was_learned_meanwhile(seed, alpha):
    values, learned = replicas(3, seed), replicas(3, seed + 1)
    paused = [replica.clone() for replica in values]
    run_round(paused, alpha, "pull")
    run_round(values, alpha, "pull", in_flight=learned)
    for replica, still, own in zip(values, paused, learned, strict=True):
        torch.testing.assert_close(replica - still, (1 - alpha) * own, atol=1e-12, rtol=1e-9)


@given(seeds, alphas)
def test_delta_keeps_all_of_it_and_with_it_the_mean_of_the_replicas(seed, alpha):
    values, learned = replicas(3, seed), replicas(3, seed + 1)
    paused = [replica.clone() for replica in values]
    expected = torch.stack(values).mean(0) + torch.stack(learned).mean(0)
    run_round(paused, alpha, "delta")
    run_round(values, alpha, "delta", in_flight=learned)
    for replica, still, own in zip(values, paused, learned, strict=True):
        torch.testing.assert_close(replica - still, own, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(torch.stack(values).mean(0), expected)


@pytest.mark.parametrize("write_back", ["pull", "delta"])
def test_one_rank_alone_stays_as_it_is(write_back):
    (value,) = values = replicas(1)
    before = value.clone()
    run_round(values, 0.7, write_back)
    torch.testing.assert_close(value, before)


def test_a_finished_rank_does_not_weigh_in_the_mean_but_follows_it():
    values = replicas(3)
    of_those_that_train = torch.stack(values[:2]).mean(0)
    run_round(values, 1.0, "pull", active=[True, True, False])
    for replica in values:
        torch.testing.assert_close(replica, of_those_that_train)


def test_when_no_rank_trains_nothing_changes():
    values = replicas(2)
    before = [replica.clone() for replica in values]
    (first, _) = run_round(values, 1.0, "pull", active=[False, False], stop=[True, True])
    assert first.all_want_stop
    assert first.mean() is None
    assert all(map(torch.equal, values, before))


@pytest.mark.parametrize("stop", [[True, False, True], [False, False, False]])
def test_the_vote_to_stop_needs_every_rank(stop):
    assert not any(one.all_want_stop for one in run_round(replicas(3), 0.5, "pull", stop=stop))


def test_every_rank_sees_every_ranks_notes():
    for one in run_round(replicas(3), 0.5, "pull"):
        assert one.notes.tolist() == [[10.0, -1.0], [11.0, -1.0], [12.0, -1.0]]


def test_the_spread_is_that_of_the_snapshots_relative_to_their_mean():
    values = replicas(3)
    stacked = torch.stack(values)
    expected = (stacked - stacked.mean(0)).norm(dim=1) / stacked.mean(0).norm()
    found = [one.spread() for one in run_round(values, 0.3, "pull")]
    assert found == pytest.approx(expected.tolist())


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def pointers(module) -> list[int]:
    return [p.data_ptr() for p in module.parameters()] + [p.grad.data_ptr() for p in module.parameters()]


def test_flat_parameters_are_the_modules_own_and_stay_where_they_are():
    module, reference = model(), model()
    flat = FlatParameters(module)
    before = pointers(module)
    optimizer = torch.optim.Adam(module.parameters())
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        module(torch.ones(2, 5)).sum().backward()
        optimizer.step()
        flat.values.lerp_(torch.zeros_like(flat.values), 0.1)
    module.load_state_dict(reference.state_dict())
    assert pointers(module) == before
    assert flat.values.equal(torch.cat([p.flatten() for p in reference.parameters()]))


def test_a_write_between_forward_and_backward_goes_unnoticed_by_autograd():
    module = model()
    flat = FlatParameters(module)
    loss = module(torch.ones(2, 5)).sum()
    flat.values.lerp_(torch.zeros_like(flat.values), 0.5)
    loss.backward()
    assert flat.gradients.any()


def test_the_state_of_other_values_is_a_copy_of_the_modules_state_with_them():
    module = model()
    flat = FlatParameters(module)
    state = flat.state_of(module, flat.values + 1)
    assert torch.cat([state[name].flatten() for name in module.state_dict()]).equal(flat.values + 1)
    state["0.weight"].zero_()
    assert module[0].weight.any()


def test_every_element_of_a_snapshot_is_a_value_that_it_held():
    """Snapshots may be torn between elements, never inside one."""
    import threading

    values = torch.zeros(100_000)
    one, done = Round(values, 0, 1), threading.Event()

    def write():
        for number in range(1, 200):
            values.fill_(number)
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        numbers = one.fill(keep=False)[: len(values)].unique()
        assert numbers.equal(numbers.round())
        assert 0 <= numbers.min() <= numbers.max() < 200
    thread.join()
