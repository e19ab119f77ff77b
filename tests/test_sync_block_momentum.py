"""Block momentum, without processes: against what it reduces to, torch's SGD, and the published update."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fsbench_strategies.sync.rules import BlockMomentum  # noqa: E402
from tests.sync_rounds import Averages, copies, few_examples, replicas  # noqa: E402

ROUNDS = 6
alphas = st.floats(0.05, 1.0)
momenta = st.floats(0.0, 0.95)
step_sizes = st.floats(0.1, 2.0)
write_backs = st.sampled_from(["pull", "delta"])
seeds = st.integers(0, 1000)


def equal_replicas(ranks, seed):
    (first,) = replicas(1, seed)
    return copies([first] * ranks)


def block_momentum(momentum, step_size, nesterov):
    return lambda values: BlockMomentum(values, momentum, step_size, nesterov)


def blocks(ranks, seed):
    """What each rank learns in each of some rounds."""
    return [replicas(ranks, seed + number) for number in range(1, ROUNDS + 1)]


@few_examples
@given(seeds, st.integers(1, 4), alphas, write_backs, st.booleans())
def test_without_momentum_and_with_step_size_1_it_is_model_averaging_to_the_last_bit(
    seed, ranks, alpha, write_back, nesterov
):
    plain, ours = equal_replicas(ranks, seed), equal_replicas(ranks, seed)
    averages = Averages(plain, alpha, write_back)
    block = Averages(ours, alpha, write_back, block_momentum(0.0, 1.0, nesterov))
    for learned in blocks(ranks, seed):
        averages.round(learned)
        block.round(learned)
        assert all(map(torch.equal, plain, ours))


@few_examples
@given(seeds, momenta, step_sizes, st.booleans())
def test_it_is_torchs_sgd_on_the_way_from_the_mean_back_to_the_global_copy(seed, momentum, step_size, nesterov):
    nesterov = nesterov and momentum > 0  # torch refuses that pair
    (initial,), means = replicas(1, seed), replicas(ROUNDS, seed + 1)
    reference = torch.nn.Parameter(initial.clone())
    outer = torch.optim.SGD([reference], lr=step_size, momentum=momentum, nesterov=nesterov)
    rule = BlockMomentum(initial, momentum, step_size, nesterov)
    for mean in means:
        reference.grad = reference.detach() - mean
        outer.step()
        torch.testing.assert_close(rule.target(mean), reference.detach(), atol=1e-9, rtol=1e-9)


@few_examples
@given(seeds, momenta, step_sizes, st.booleans())
def test_it_is_the_published_update(seed, momentum, step_size, nesterov):
    """Chen and Huo 2016: with W the model, D its change, replicas start at W, with Nesterov's momentum at W + m D."""
    (initial,), means = replicas(1, seed), replicas(ROUNDS, seed + 1)
    rule = BlockMomentum(initial, momentum, step_size, nesterov)
    model, change = initial.numpy(), np.zeros(len(initial))
    start = model
    for mean in means:
        change = momentum * change + step_size * (mean.numpy() - start)
        model = model + change
        start = model + momentum * change if nesterov else model
        np.testing.assert_allclose(rule.target(mean).numpy(), start, atol=1e-9)


@few_examples
@given(seeds, st.integers(2, 4), alphas, write_backs)
def test_replicas_approach_the_global_copy_which_is_one_to_the_bit_on_every_rank(seed, ranks, alpha, write_back):
    values = equal_replicas(ranks, seed)
    averages = Averages(values, alpha, write_back, block_momentum(0.5, 1.5, False))
    for learned in blocks(ranks, seed):
        before = copies(values)
        averages.round(learned)
        first, *others = (rule.state_dict() for rule in averages.rules)
        for other in others:
            assert {name: tensor.numpy().tobytes() for name, tensor in other.items()} == {
                name: tensor.numpy().tobytes() for name, tensor in first.items()
            }
        for found, sent, own in zip(values, before, learned, strict=True):
            now = sent + own
            away = (first["central"] - now) if write_back == "pull" else first["central"] - sent
            torch.testing.assert_close(found, now + alpha * away)


@few_examples
@given(seeds, momenta)
def test_what_all_ranks_learn_goes_on_with_momentum_when_they_have_stopped(seed, momentum):
    """One block of learning, then none: the way after r more rounds is the geometric sum."""
    values, (learned,) = equal_replicas(3, seed), replicas(1, seed + 1)
    start = values[0].clone()
    averages = Averages(values, 1.0, "pull", block_momentum(momentum, 1.0, False))
    for value in values:
        value += learned
    for number in range(ROUNDS):
        averages.round()
        way = sum(momentum**power for power in range(number + 1))
        torch.testing.assert_close(values[0], start + way * learned, atol=1e-9, rtol=1e-9)


@few_examples
@given(seeds, momenta, st.booleans())
def test_resumed_from_its_state_it_goes_on_as_if_unbroken(seed, momentum, nesterov):
    rule = block_momentum(momentum, 0.7, nesterov)
    unbroken, broken = equal_replicas(2, seed), equal_replicas(2, seed)
    straight, first = Averages(unbroken, 0.5, "delta", rule), Averages(broken, 0.5, "delta", rule)
    *early, late = blocks(2, seed)
    for learned in early:
        straight.round(learned)
        first.round(learned)
    second = Averages(broken, 0.5, "delta", rule)
    for old, new in zip(first.exchanges, second.exchanges, strict=True):
        new.load_state_dict(old.state_dict())
    straight.round(late)
    second.round(late)
    assert all(map(torch.equal, unbroken, broken))
    assert torch.equal(straight.exchanges[0].central(), second.exchanges[1].central())
