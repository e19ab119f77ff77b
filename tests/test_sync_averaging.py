"""Model averaging, without processes: rounds in an order that a test chooses, against the rule in numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fsbench_strategies.sync.averaging import Payload  # noqa: E402
from fsbench_strategies.sync.exchange import Cost  # noqa: E402
from fsbench_strategies.sync.flat import FlatParameters  # noqa: E402
from fsbench_strategies.sync.replica import Replica  # noqa: E402
from tests.sync_rounds import Averages, copies, few_examples, replicas, spread  # noqa: E402

alphas = st.floats(0.05, 1.0)
write_backs = st.sampled_from(["pull", "delta"])
seeds = st.integers(0, 1000)


def by_the_book(values, learned, alpha, write_back):
    """What each replica should be after one round."""
    sent = [one.numpy() for one in values]
    mean = sum(sent) / len(sent)
    now = [one + own.numpy() for one, own in zip(sent, learned, strict=True)]
    if write_back == "pull":
        return [(1 - alpha) * one + alpha * mean for one in now]
    return [one + alpha * (mean - before) for one, before in zip(now, sent, strict=True)]


@few_examples
@given(seeds, st.integers(1, 5), alphas, write_backs)
def test_a_round_moves_every_replica_as_the_rule_says_whatever_it_learns_meanwhile(seed, ranks, alpha, write_back):
    values, learned = replicas(ranks, seed), replicas(ranks, seed + 1)
    expected = by_the_book(values, learned, alpha, write_back)
    assert all(Averages(values, alpha, write_back).round(learned))
    for found, should in zip(values, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), should, atol=1e-12)


@few_examples
@given(seeds, st.integers(1, 5), write_backs)
def test_with_alpha_1_and_training_paused_every_replica_becomes_the_mean(seed, ranks, write_back):
    values = replicas(ranks, seed)
    mean = torch.stack(values).mean(0)
    Averages(values, 1.0, write_back).round()
    for replica in values:
        torch.testing.assert_close(replica, mean)


@few_examples
@given(seeds, alphas)
def test_with_training_paused_pull_and_delta_are_one(seed, alpha):
    pulled, moved = replicas(3, seed), replicas(3, seed)
    Averages(pulled, alpha, "pull").round()
    Averages(moved, alpha, "delta").round()
    torch.testing.assert_close(pulled, moved)


@few_examples
@given(seeds, st.integers(2, 4), alphas, write_backs)
def test_a_round_without_training_shrinks_the_spread_by_1_minus_alpha_and_keeps_the_mean(
    seed, ranks, alpha, write_back
):
    values = replicas(ranks, seed)
    before, mean = spread(values), torch.stack(values).mean(0)
    Averages(values, alpha, write_back).round()
    torch.testing.assert_close(spread(values), (1 - alpha) * before, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(torch.stack(values).mean(0), mean)


@few_examples
@given(seeds, alphas)
def test_pull_keeps_1_minus_alpha_of_what_was_learned_meanwhile_and_moves_the_mean_by_the_rest(seed, alpha):
    values, learned = replicas(3, seed), replicas(3, seed + 1)
    mean, learned_on_average = torch.stack(values).mean(0), torch.stack(learned).mean(0)
    paused = copies(values)
    Averages(paused, alpha, "pull").round()
    Averages(values, alpha, "pull").round(learned)
    for replica, still, own in zip(values, paused, learned, strict=True):
        torch.testing.assert_close(replica - still, (1 - alpha) * own, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(torch.stack(values).mean(0), mean + (1 - alpha) * learned_on_average)


@few_examples
@given(seeds, alphas)
def test_delta_keeps_all_of_it_and_with_it_the_mean_of_the_replicas(seed, alpha):
    values, learned = replicas(3, seed), replicas(3, seed + 1)
    paused = copies(values)
    expected = torch.stack(values).mean(0) + torch.stack(learned).mean(0)
    Averages(paused, alpha, "delta").round()
    Averages(values, alpha, "delta").round(learned)
    for replica, still, own in zip(values, paused, learned, strict=True):
        torch.testing.assert_close(replica - still, own, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(torch.stack(values).mean(0), expected)


@pytest.mark.parametrize("write_back", ["pull", "delta"])
def test_one_rank_alone_stays_as_it_is(write_back):
    (value,) = values = replicas(1)
    before = value.clone()
    Averages(values, 0.7, write_back).round()
    torch.testing.assert_close(value, before)


@few_examples
@given(seeds, alphas, write_backs)
def test_a_finished_rank_does_not_weigh_in_the_mean_but_follows_it(seed, alpha, write_back):
    values = replicas(3, seed)
    of_those_that_train = torch.stack(values[:2]).mean(0)
    expected = [torch.lerp(one, of_those_that_train, alpha) for one in values]
    assert all(Averages(values, alpha, write_back).round(stopping=[False, False, True]))
    torch.testing.assert_close(values, expected)


def test_when_no_rank_trains_nothing_changes_and_every_rank_knows():
    values = replicas(3)
    before = copies(values)
    assert not any(Averages(values).round(stopping=[True] * 3))
    assert all(map(torch.equal, values, before))


def test_every_rank_reckons_with_the_cost_of_the_dearest_and_the_time_of_the_last_to_come():
    averages = Averages(replicas(3))
    averages.round(cost=[Cost(0.1, 3.0), Cost(0.4, 2.0), Cost(0.2, 5.0)])
    for exchange in averages.exchanges:
        assert exchange.cost == Cost(pytest.approx(0.4), pytest.approx(2.0))


@pytest.mark.parametrize("write_back", ["pull", "delta"])
def test_the_spread_is_that_of_the_snapshots_relative_to_their_mean_and_only_where_it_was_asked_for(write_back):
    values = replicas(3)
    stacked = torch.stack(values)
    expected = (stacked - stacked.mean(0)).norm(dim=1) / stacked.mean(0).norm()
    averages = Averages(values, 0.3, write_back)
    averages.round(measure=[True] * 3)
    assert [one.spread for one in averages.exchanges] == pytest.approx(expected.tolist())
    averages.round()
    assert [one.spread for one in averages.exchanges] == [None] * 3


class WithBuffers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(5, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.frozen = torch.nn.Parameter(torch.ones(7), requires_grad=False)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_payload_is_the_trainable_parameters_and_three_numbers_at_most_a_rank(ranks):
    """No buffers, nothing frozen: 24 of the linear layer, 8 of the norm."""
    values = FlatParameters(WithBuffers()).values
    assert len(values) == 32
    assert len(Payload(values, 0, ranks).tensor) == 32 + 1 + 2 * ranks


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
    replica, snapshot, done = Replica(values, 1.0), torch.empty_like(values), threading.Event()

    def write():
        for number in range(1, 200):
            values.fill_(number)
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        replica.send(snapshot, keep=False)
        numbers = snapshot.unique()
        assert numbers.equal(numbers.round())
        assert 0 <= numbers.min() <= numbers.max() < 200
    thread.join()
