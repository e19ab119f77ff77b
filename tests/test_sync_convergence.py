"""Replicas that descend on quadratics of their own, synced by every rule, without processes.

Rank i's loss is |w - b_i|^2 / 2. One step in four comes between snapshot and write-back, as in the background.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fsbench_strategies.sync.rules import BlockMomentum  # noqa: E402
from tests.sync_rounds import Averages, Elastics, copies, few_examples, replicas, spread  # noqa: E402

RANKS = 3
LR = 0.05
seeds = st.integers(0, 1000)


def ma(write_back, alpha=0.5):
    return lambda values: Averages(values, alpha, write_back)


def bmuf(write_back, momentum, step_size, nesterov, alpha=0.5):
    rule = lambda values: BlockMomentum(values, momentum, step_size, nesterov)  # noqa: E731
    return lambda values: Averages(values, alpha, write_back, rule)


def easgd(write_back, order):
    return lambda values: Elastics(values, 0.5, order, write_back, servers=2)


AVERAGED = {
    "ma pull": ma("pull"),
    "ma delta": ma("delta"),
    "ma in full": ma("pull", alpha=1.0),
    "bmuf pull": bmuf("pull", 0.5, 1.0, True),
    "bmuf delta": bmuf("delta", 0.5, 1.0, True),
    "diloco": bmuf("pull", 0.9, 0.7, True, alpha=1.0),
}
ELASTIC = {
    f"easgd {order} {write_back}": easgd(write_back, order)
    for order in ("push-pull", "symmetric")
    for write_back in ("pull", "delta")
}
ALL = AVERAGED | ELASTIC


def descend(rule, optima, rounds=150):
    """Where the replicas end that start at one place; `rule` None: each on its own. And what synced them."""
    (start,) = replicas(1, seed=99)
    values = copies([start] * len(optima))
    synced = rule(values) if rule else None
    for _ in range(rounds):
        for _ in range(3):
            for value, step in zip(values, steps_of(values, optima), strict=True):
                value += step
        if synced:
            synced.round(steps_of(values, optima))
    return values, synced


def steps_of(values, optima):
    return [LR * (optimum - value) for value, optimum in zip(values, optima, strict=True)]


def test_without_sync_every_replica_ends_at_its_own_optimum():
    optima = replicas(RANKS)
    values, _ = descend(None, optima)
    torch.testing.assert_close(values, optima, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ALL)
def test_with_sync_replicas_stay_together_around_the_optimum_of_all(name):
    optima = replicas(RANKS)
    values, _ = descend(ALL[name], optima)
    together = torch.stack(optima).mean(0)
    apart = float(spread(optima).max())
    assert float(spread(values).max()) < 0.6 * apart
    for value in values:
        assert float((value - together).norm()) < 0.6 * apart
    assert float((torch.stack(values).mean(0) - together).norm()) < 0.2 * apart


@pytest.mark.parametrize("name", AVERAGED)
def test_the_mean_of_averaged_replicas_ends_at_the_optimum_of_all(name):
    """The lossy write-back slows it down, and does not move it: ranks lose alike."""
    optima = replicas(RANKS)
    values, _ = descend(AVERAGED[name], optima, rounds=400)
    torch.testing.assert_close(torch.stack(values).mean(0), torch.stack(optima).mean(0), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ELASTIC)
def test_the_central_copy_ends_near_the_optimum_of_all(name):
    optima = replicas(RANKS)
    _, synced = descend(ELASTIC[name], optima)
    together, apart = torch.stack(optima).mean(0), float(spread(optima).max())
    assert float((synced.central - together).norm()) < 0.3 * apart


@pytest.mark.parametrize("name", AVERAGED)
@few_examples
@given(seed=seeds)
def test_averaged_replicas_of_the_same_data_never_part(name, seed):
    (optimum,) = replicas(1, seed)
    values, _ = descend(AVERAGED[name], [optimum] * RANKS, rounds=5)
    for value in values:
        torch.testing.assert_close(value, values[0])


@pytest.mark.parametrize("name", ["bmuf delta", "easgd symmetric delta"])
def test_pull_loses_part_of_what_is_learned_in_a_round_and_arrives_later(name):
    """With the same optimum for all, so that nothing but the loss differs."""
    (optimum,) = replicas(1)
    kept, _ = descend(ALL[name], [optimum] * RANKS, rounds=8)
    lossy, _ = descend(ALL[name.replace("delta", "pull")], [optimum] * RANKS, rounds=8)
    assert float((kept[0] - optimum).norm()) < float((lossy[0] - optimum).norm())
