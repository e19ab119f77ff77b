"""Equal counts, equal costs: for any batch, and how near to the best possible."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.axes import BatchMeta
from fsbench.options import build_options
from fsbench_strategies.sharding.cost_aware import CostAware
from fsbench_strategies.sharding.levelling import Split, members, relieve, subset_sums


def batch_of(costs, ranks, speeds=None):
    """A global batch whose samples arrived in equal counts."""
    costs = np.array(costs, np.float64)
    n = len(costs)
    source = np.repeat(np.arange(ranks), [n // ranks + (rank < n % ranks) for rank in range(ranks)])
    ones = np.ones(n, np.int64)
    speeds = np.ones(ranks) if speeds is None else np.array(speeds)
    return BatchMeta(costs, ones, ones, source.astype(np.int32), ranks, speeds, None, step=7)


def assign(costs, ranks, speeds=None):
    return CostAware().assign(batch_of(costs, ranks, speeds))


def slowest(assignment, batch):
    return (np.bincount(assignment, batch.costs, batch.ranks) / batch.speeds).max()


def counts(assignment, ranks):
    return np.bincount(assignment, minlength=ranks).tolist()


def attention_cost(lengths, width):
    """Operations of a layer of a transformer: projections, then attention."""
    return 24.0 * lengths * width**2 + 4.0 * lengths**2 * width


def lower_bound(costs, ranks):
    """No equal split has a lower maximum: some k ranks hold the k largest and, at best, the smallest."""
    falling, each = -np.sort(-costs), len(costs) // ranks
    total = np.concatenate(([0.0], np.cumsum(falling)))
    k = np.arange(1, ranks + 1)
    return ((total[k] + total[-1] - total[len(costs) - k * (each - 1)]) / k).max()


costs = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1e12), st.floats(0, 10).map(np.exp))
batches = st.integers(1, 6).flatmap(
    lambda ranks: st.builds(
        batch_of,
        st.lists(costs, max_size=40),
        st.just(ranks),
        st.none() | st.lists(st.floats(0.25, 4), min_size=ranks, max_size=ranks),
    )
)


@given(batches)
def test_every_sample_gets_one_rank_and_counts_are_equal(batch):
    assignment = CostAware().assign(batch)
    assert assignment.shape == batch.costs.shape
    assert assignment.dtype == np.int64
    each, more = divmod(len(batch.costs), batch.ranks)
    assert counts(assignment, batch.ranks) == [each + (rank < more) for rank in range(batch.ranks)]


@given(batches)
def test_the_slowest_rank_is_never_slower_than_in_arrival_order(batch):
    assert slowest(CostAware().assign(batch), batch) <= slowest(batch.source, batch)


@given(batches)
def test_nothing_but_costs_speeds_and_source_decides(batch):
    strategy = CostAware()
    first = strategy.assign(batch)
    other = replace(batch, tokens=batch.tokens * 9, bytes=batch.bytes * 5, token_limit=1, step=99)
    strategy.observe(np.ones(batch.ranks))
    assert np.array_equal(first, strategy.assign(other))
    assert np.array_equal(first, CostAware().assign(batch))


@given(st.lists(costs, min_size=2, max_size=12))
def test_two_ranks_get_the_best_equal_split(costs):
    batch = batch_of(costs, ranks=2)
    n, total = len(costs), batch.costs.sum()
    first = np.array([batch.costs[list(chosen)].sum() for chosen in combinations(range(n), (n + 1) // 2)])
    best = np.maximum(first, total - first).min()
    assert slowest(CostAware().assign(batch), batch) <= max(best * (1 + 1e-9), total / 2 * (1 + 1e-4))


def test_small_batches_of_long_histories_are_within_a_thousandth_of_the_best_split():
    """The `long-cpu` preset: 2 ranks x 8 samples, against all 12,870 equal splits of each of 100 batches."""
    lengths = np.rint(np.random.default_rng(0).gamma(0.78, 610, (100, 16))).clip(1, 2100)
    costs = attention_cost(lengths, width=64)
    splits = np.zeros((12870, 16))
    np.put_along_axis(splits, np.array(list(combinations(range(16), 8))), 1.0, axis=1)
    first = costs @ splits.T
    best = np.maximum(first, costs.sum(axis=1, keepdims=True) - first).min(axis=1)
    ours = [slowest(assign(row, 2), batch_of(row, 2)) for row in costs]
    assert sum(ours) <= best.sum() * 1.001


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ranks", "each"), [(2, 128), (8, 128), (64, 128), (256, 128)])
def test_heavy_tails_come_out_as_level_as_the_counts_allow(ranks, each, seed):
    lengths = np.rint(np.random.default_rng(seed).lognormal(6, 1.2, ranks * each)).clip(1, 21_000)
    costs = attention_cost(lengths, width=256)
    assert slowest(assign(costs, ranks), batch_of(costs, ranks)) <= lower_bound(costs, ranks) * 1.0005


def test_faster_ranks_get_more_work_in_as_many_samples():
    lengths = np.rint(np.random.default_rng(0).gamma(0.78, 610, 64)).clip(1, 2100)
    costs = attention_cost(lengths, width=64)
    speeds = np.array([1.0, 2.0, 1.5, 0.5])
    assignment = assign(costs, 4, speeds)
    assert counts(assignment, 4) == [16] * 4
    seconds = np.bincount(assignment, costs) / speeds
    assert seconds.max() <= costs.sum() / speeds.sum() * 1.001


def test_a_giant_gets_the_smallest_samples_for_company():
    costs = np.array([1.0, 5, 1, 1000, 5, 1, 1, 5])
    assignment = assign(costs, ranks=2)
    assert sorted(costs[assignment == assignment[3]]) == [1, 1, 1, 1000]


@pytest.mark.parametrize("value", [0.0, 0.1, 3.0])
def test_samples_of_one_cost_do_not_move(value):
    batch = batch_of([value] * 64, ranks=8)
    assert np.array_equal(CostAware().assign(batch), batch.source)


def test_arrival_order_that_is_level_already_is_kept():
    batch = batch_of([4, 1, 3, 2], ranks=2)
    assert np.array_equal(CostAware().assign(batch), batch.source)


def test_arrival_in_unequal_counts_is_made_equal():
    batch = replace(batch_of([1.0] * 6, ranks=2), source=np.array([0, 0, 0, 0, 0, 1], np.int32))
    assert counts(CostAware().assign(batch), 2) == [3, 3]


@pytest.mark.parametrize(("n", "expected"), [(0, [0, 0, 0]), (1, [1, 0, 0]), (2, [1, 1, 0]), (4, [2, 1, 1])])
def test_batches_too_small_for_every_rank_leave_the_last_ones_short(n, expected):
    assert counts(assign(np.arange(n) + 1.0, ranks=3), 3) == expected


def test_one_rank_gets_everything():
    assert assign([3, 1, 2], ranks=1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("cost", [-1.0, np.nan, np.inf])
def test_an_impossible_cost_is_refused_naming_step_and_sample(cost):
    with pytest.raises(ValueError, match=rf"step 7: cost {cost} of sample 1"):
        assign([1, cost, 2], ranks=2)


@pytest.mark.parametrize("speed", [0.0, -1.0, np.nan])
def test_an_impossible_speed_is_refused(speed):
    with pytest.raises(ValueError, match="step 7: speeds"):
        assign([1, 2], ranks=2, speeds=[1.0, speed])


def test_costs_come_from_flops_by_default():
    assert build_options(CostAware.Options, {}, owner="sharding cost-aware").costs == "flops"


hands = st.lists(st.floats(0, 100), min_size=1, max_size=5)


@given(hands)
def test_subset_sums_and_sizes_belong_to_the_members_of_each_subset(values):
    sums, sizes = subset_sums(np.array(values))
    hand = np.arange(len(values))
    for subset in range(2 ** len(values)):
        chosen = members(hand, subset)
        assert sizes[subset] == len(chosen)
        assert sums[subset] == pytest.approx(sum(values[i] for i in chosen))


@given(hands, hands, st.floats(0.5, 2), st.floats(0.5, 2))
def test_relieving_a_rank_makes_the_best_equal_exchange(mine, theirs, speed, other_speed):
    rank_of = np.repeat([0, 1], [len(mine), len(theirs)])
    split = Split(np.array(mine + theirs), rank_of, np.array([speed, other_speed]))
    total, n = split.costs.sum(), len(split.costs)
    first = [split.costs[list(chosen)].sum() for chosen in combinations(range(n), len(mine))]
    best = min(max(load / speed, (total - load) / other_speed) for load in first)

    full = int(np.argmax(split.seconds))
    relieve(split, full, 1 - full)

    assert split.seconds.max() <= best * (1 + 1e-8) + 1e-12
    assert counts(split.rank_of, 2) == [len(mine), len(theirs)]
    assert split.loads == pytest.approx(np.bincount(split.rank_of, split.costs, 2))
