"""Equal time on every rank, for the fewest bytes: for any batch, and how near to the best possible."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.options import Spec
from fsbench.plugins import create
from fsbench_strategies.sharding.cost_aware import CostAware, even_counts
from fsbench_strategies.sharding.dealing import deal
from fsbench_strategies.sharding.moved_bytes import COMPARED_EVERY, moved_bytes
from fsbench_strategies.sharding.split import TOLERANCE
from tests import partitioners
from tests.balancing import batch_of, batches, costs, counts, of_lengths, seconds, sharding, tokens

ENOUGH = 1 + TOLERANCE


def bound(batch):
    """No split makes the slowest rank faster than the mean, or than the largest sample on the fastest rank."""
    return max(batch.costs.sum() / batch.speeds.sum(), batch.costs.max(initial=0) / batch.speeds.max())


def assign(batch, counts="equal"):
    return CostAware(CostAware.Options(counts=counts)).assign(batch)


def slowest(batch, counts="equal"):
    return seconds(assign(batch, counts), batch).max()


def attention_cost(lengths, width):
    """Operations of a layer of a transformer: projections, then attention."""
    return 24.0 * lengths * width**2 + 4.0 * lengths**2 * width


def gamma(n, seed=0, longest=2100):
    return np.rint(np.random.default_rng(seed).gamma(0.78, longest / 3.4, n)).clip(1, longest)


def heavy_tail(n, seed=0):
    return np.rint(np.random.default_rng(seed).lognormal(6, 1.2, n)).clip(1, 21_000)


def lower_bound(costs, ranks):
    """No equal split has a lower maximum: some k ranks hold the k largest and, at best, the smallest."""
    falling, each = -np.sort(-costs), len(costs) // ranks
    total = np.concatenate(([0.0], np.cumsum(falling)))
    k = np.arange(1, ranks + 1)
    return ((total[k] + total[-1] - total[len(costs) - k * (each - 1)]) / k).max()


@given(batches())
def test_the_slowest_rank_is_never_slower_than_in_arrival_order(batch):
    start = even_counts(batch.source, batch.ranks)
    assert slowest(batch) <= seconds(start, batch).max() * ENOUGH
    assert slowest(batch, "free") <= seconds(batch.source, batch).max() * ENOUGH


@pytest.mark.parametrize("other", ["snake", "karmarkar-karp", "lpt"])
@given(batch=batches())
def test_no_other_sharding_at_equal_counts_is_faster(other, batch):
    rival = seconds(sharding(other).assign(batch), batch).max(initial=0)
    assert slowest(batch) <= max(rival, bound(batch)) * ENOUGH


@pytest.mark.parametrize("other", ["variable-batch", "lpt:counts=free", "cost-aware"])
@given(batch=batches())
def test_no_other_sharding_at_free_counts_is_faster(other, batch):
    rival = seconds(sharding(other).assign(batch), batch).max(initial=0)
    assert slowest(batch, "free") <= max(rival, bound(batch)) * ENOUGH


@given(st.lists(costs, min_size=2, max_size=12))
def test_two_ranks_get_the_best_equal_split(costs):
    batch = batch_of(costs, ranks=2)
    n, total = len(costs), batch.costs.sum()
    first = np.array([batch.costs[list(chosen)].sum() for chosen in combinations(range(n), (n + 1) // 2)])
    best = np.maximum(first, total - first).min()
    assert slowest(batch) <= best * ENOUGH


@given(st.lists(costs, max_size=9), st.lists(st.floats(0.5, 2), min_size=2, max_size=2))
def test_two_ranks_get_the_best_split_of_any_counts(costs, speeds):
    batch = batch_of(costs, ranks=2, speeds=speeds)
    best = partitioners.best_slowest_of_any_counts(costs, speeds)
    assert slowest(batch, "free") <= best * ENOUGH


@given(st.lists(st.floats(0, 100), min_size=6, max_size=6))
def test_three_ranks_of_two_samples_get_the_best_equal_split_or_one_little_worse(costs):
    """The best pairs the largest with the smallest, which snake order does."""
    batch = batch_of(costs, ranks=3)
    best = partitioners.best_slowest(costs, [1.0] * 3, [2] * 3)
    assert best * (1 - 1e-9) <= slowest(batch) <= best * ENOUGH + 1e-9


def test_small_batches_of_long_histories_are_within_a_thousandth_of_the_best_split():
    """The `long-cpu` preset: 2 ranks x 8 samples, against all 12,870 equal splits of each of 100 batches."""
    lengths = np.rint(np.random.default_rng(0).gamma(0.78, 610, (100, 16))).clip(1, 2100)
    costs = attention_cost(lengths, width=64)
    splits = np.zeros((12870, 16))
    np.put_along_axis(splits, np.array(list(combinations(range(16), 8))), 1.0, axis=1)
    first = costs @ splits.T
    best = np.maximum(first, costs.sum(axis=1, keepdims=True) - first).min(axis=1)
    ours = [slowest(batch_of(row, 2)) for row in costs]
    assert sum(ours) <= best.sum() * 1.001


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ranks", "each"), [(2, 128), (8, 128), (64, 128), (256, 128)])
def test_heavy_tails_come_out_as_level_as_the_counts_allow(ranks, each, seed):
    costs = attention_cost(heavy_tail(ranks * each, seed), width=256)
    assert slowest(batch_of(costs, ranks)) <= lower_bound(costs, ranks) * 1.0005
    assert slowest(batch_of(costs, ranks), "free") <= max(costs.sum() / ranks, costs.max()) * 1.0005


def test_few_samples_of_many_sizes_are_dealt_anew_where_trades_do_not_do():
    """Powers of two on 4 ranks: only one split is right, and it is far from arrival order."""
    costs = 2.0 ** np.arange(16)
    batch = batch_of(costs, ranks=4)
    best = costs[15] + costs[:3].sum()
    assert slowest(batch) <= best * ENOUGH


def test_arrival_on_one_rank_is_spread_and_balanced():
    batch = of_lengths(gamma(8 * 32), ranks=8, source=np.zeros(8 * 32, int))
    assert counts(assign(batch), batch).tolist() == [32] * 8
    assert slowest(batch) <= batch.costs.sum() / 8 * 1.001


@pytest.mark.parametrize(("ranks", "limit"), [(2, 0.35), (8, 0.2), (64, 0.12)])
def test_it_moves_a_fraction_of_the_bytes_that_dealing_anew_moves(ranks, limit):
    batch = of_lengths(gamma(ranks * 128), ranks)
    ours, dealt = assign(batch), deal(batch)
    assert seconds(ours, batch).max() <= seconds(dealt, batch).max() * ENOUGH
    assert moved_bytes(batch, ours) <= limit * moved_bytes(batch, dealt)


def test_of_two_samples_that_would_do_the_lighter_one_moves():
    """Ranks 0 and 1 differ by 5: any of the 3s for a 1 is the best that can be."""
    batch = replace(batch_of([3, 3, 3, 1, 1, 2], ranks=2), bytes=np.array([9, 5, 7, 6, 4, 8]))
    moved = np.flatnonzero(assign(batch) != batch.source)
    assert moved.tolist() == [1, 4]


def test_free_counts_send_one_sample_where_equal_counts_must_exchange_two():
    batch = batch_of([4, 4, 4, 2, 1, 1], ranks=2)
    assert counts(assign(batch, "free"), batch).tolist() == [2, 4]
    assert moved_bytes(batch, assign(batch, "free")) < moved_bytes(batch, assign(batch))


@pytest.mark.parametrize("counts", ["equal", "free"])
@pytest.mark.parametrize("value", [0.0, 0.1, 3.0])
def test_samples_of_one_cost_do_not_move(value, counts):
    batch = batch_of([value] * 64, ranks=8)
    assert np.array_equal(assign(batch, counts), batch.source)


def test_arrival_order_that_is_level_already_is_kept():
    batch = batch_of([4, 1, 3, 2], ranks=2)
    assert np.array_equal(assign(batch), batch.source)


def test_arrival_in_unequal_counts_is_made_equal_by_as_few_samples_as_can_be():
    assert even_counts(np.array([0, 0, 0, 0, 0, 1], np.int32), 2).tolist() == [0, 0, 0, 1, 1, 1]
    assert even_counts(np.array([1, 1, 1, 2], np.int32), 3).tolist() == [1, 1, 0, 2]
    assert even_counts(np.array([0, 1, 1, 2, 2], np.int32), 3).tolist() == [0, 1, 1, 2, 2]


def test_a_giant_gets_the_smallest_samples_for_company():
    batch = batch_of([1.0, 5, 1, 1000, 5, 1, 1, 5], ranks=2)
    assignment = assign(batch)
    assert sorted(batch.costs[assignment == assignment[3]]) == [1, 1, 1, 1000]


def test_a_giant_is_alone_where_counts_are_free():
    batch = batch_of([1.0, 5, 1, 1000, 5, 1, 1, 5], ranks=2)
    assignment = assign(batch, "free")
    assert counts(assignment, batch)[assignment[3]] == 1


def test_faster_ranks_get_more_work_in_as_many_samples():
    batch = of_lengths(gamma(64), ranks=4, speeds=[1.0, 2.0, 1.5, 0.5])
    assert counts(assign(batch), batch).tolist() == [16] * 4
    assert slowest(batch) <= batch.costs.sum() / batch.speeds.sum() * 1.001


@pytest.mark.parametrize(
    "speeds", [[1.0, 0.5], [1.0] * 7 + [0.5], [1.0, 2.0, 1.5, 0.5], [1.0] * 8 + [0.4] * 8, [1.0, 1.0, 1.0, 0.02]]
)
def test_with_free_counts_the_split_follows_the_speeds(speeds):
    batch = of_lengths(gamma(len(speeds) * 64), len(speeds), speeds=speeds)
    assert slowest(batch, "free") <= batch.costs.sum() / sum(speeds) * 1.01


@st.composite
def limited_pairs(draw):
    """Two ranks with few samples, and a token limit."""
    n = draw(st.integers(2, 5)) * 2
    lengths = st.lists(st.integers(1, 100), min_size=n, max_size=n)
    batch = batch_of(draw(lengths), ranks=2, tokens=draw(lengths))
    return replace(batch, token_limit=draw(st.integers(int(batch.tokens.max()), int(batch.tokens.sum()))))


@given(limited_pairs())
def test_two_ranks_get_the_best_equal_split_that_keeps_the_token_limit_or_none_does(batch):
    n, limit = len(batch.costs), batch.token_limit
    best = min(
        (seconds(split, batch).max() for split in equal_splits(n) if tokens(split, batch).max() <= limit), default=None
    )
    if best is None:
        with pytest.raises(ValueError, match=rf"step 7: rank [01] would hold \d+ tokens, over the limit of {limit}"):
            assign(batch)
    else:
        assert slowest(batch) <= max(best, batch.costs.sum() / 2 * ENOUGH) * (1 + 1e-8)


def equal_splits(n):
    for first in combinations(range(n), n // 2):
        yield np.isin(np.arange(n), first).astype(np.int64)


@pytest.mark.parametrize("counts", ["equal", "free"])
@pytest.mark.parametrize(("room", "price"), [(1.1, 1.003), (1.03, 1.04)])
def test_a_token_limit_is_kept_at_little_cost(room, price, counts):
    """Heavy tails: for equal time, ranks of many short histories hold up to a seventh more tokens than the mean."""
    batch = of_lengths(heavy_tail(32 * 64), ranks=32)
    unlimited = tokens(assign(batch, counts), batch)
    limit = int(room * unlimited.mean())
    assert unlimited.max() > limit
    limited = replace(batch, token_limit=limit)
    assert tokens(assign(limited, counts), batch).max() <= limit
    assert slowest(limited, counts) <= slowest(batch, counts) * price


def test_the_least_limit_that_would_do_is_told():
    batch = of_lengths([10, 10, 10, 10], ranks=2, token_limit=19)
    with pytest.raises(ValueError, match=r"rank 0 would hold 20 tokens, over the limit of 19; a limit of 20 would do"):
        assign(batch)


def test_evidence_tells_bytes_moved_beside_those_of_an_answer_for_balance_alone():
    strategy = CostAware()
    all_batches = [of_lengths(gamma(4 * 64, seed), ranks=4) for seed in range(COMPARED_EVERY + 1)]
    moved = [moved_bytes(batch, strategy.assign(batch)) for batch in all_batches]
    compared = [0, COMPARED_EVERY]
    assert strategy.evidence() == {
        "batches": len(moved),
        "moved_bytes": sum(moved),
        "compared": {
            "batches": 2,
            "moved_bytes": sum(moved[i] for i in compared),
            "balance_only_moved_bytes": sum(moved_bytes(all_batches[i], deal(all_batches[i])) for i in compared),
        },
    }


def test_counts_are_equal_and_costs_from_flops_by_default():
    options = create("sharding", Spec.parse("cost-aware")).options
    assert (options.counts, options.costs) == ("equal", "flops")
