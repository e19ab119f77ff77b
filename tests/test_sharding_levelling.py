"""What levels ranks: swaps of several samples between two of them, trades between many; and which rank is which."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench_strategies.sharding.dealing import deal
from fsbench_strategies.sharding.levelling import exchanges, relieve, subset_sums
from fsbench_strategies.sharding.relabelling import relabel
from fsbench_strategies.sharding.split import Split, rising
from fsbench_strategies.sharding.trading import trade
from tests.balancing import batch_of, batches, of_lengths

hands = st.lists(st.floats(0, 100), min_size=1, max_size=5)
speeds = st.floats(0.5, 2)


def split_of(mine, theirs, speeds=(1.0, 1.0), *, free=False):
    """Two ranks as they arrived."""
    source = np.repeat([0, 1], [len(mine), len(theirs)])
    batch = batch_of(mine + theirs, ranks=2, source=source, speeds=speeds)
    return Split.of(batch, batch.source, free=free)


@given(hands)
def test_subset_sums_are_those_of_the_members_of_each_subset(values):
    sums = subset_sums(np.array([values, np.ones(len(values))]))
    for subset in range(2 ** len(values)):
        members = [value for bit, value in enumerate(values) if subset >> bit & 1]
        assert sums[:, subset] == pytest.approx([sum(members), len(members)])


@pytest.mark.parametrize(("mine", "theirs"), [(1, 1), (2, 3), (4, 2)])
@pytest.mark.parametrize("free", [False, True])
def test_exchanges_are_all_pairs_of_subsets_or_of_equally_large_ones(mine, theirs, free):
    give, take = exchanges(mine, theirs, free)
    expected = [
        (g, t) for g, t in product(range(2**mine), range(2**theirs)) if free or bin(g).count("1") == bin(t).count("1")
    ]
    assert sorted(zip(give.tolist(), take.tolist(), strict=True)) == expected
    assert (give[0], take[0]) == (0, 0)


@given(hands, hands, speeds, speeds, st.booleans())
def test_relieving_a_rank_makes_the_best_exchange(mine, theirs, speed, other_speed, free):
    split = split_of(mine, theirs, (speed, other_speed), free=free)
    total, n = sum(mine + theirs), len(mine + theirs)
    sizes = range(n + 1) if free else [len(mine)]
    first = [sum(chosen) for size in sizes for chosen in combinations(mine + theirs, size)]
    best = min(max(load / speed, (total - load) / other_speed) for load in first)

    full = int(np.argmax(split.seconds))
    relieve(split, full, 1 - full)

    assert split.slowest <= max(best * (1 + 1e-8), split.enough) + 1e-9
    assert free or np.bincount(split.rank_of, minlength=2).tolist() == [len(mine), len(theirs)]
    assert split.loads == pytest.approx(np.bincount(split.rank_of, split.costs, 2))


@given(batches(), st.booleans())
def test_trades_never_make_the_slowest_rank_slower_and_keep_counts_where_they_are_equal(batch, free):
    split = Split.of(batch, batch.source, free=free)
    before, counts = split.slowest, np.bincount(split.rank_of, minlength=batch.ranks)
    trade(split)
    assert split.slowest <= max(before, split.enough) * (1 + 1e-12)
    assert free or np.array_equal(np.bincount(split.rank_of, minlength=batch.ranks), counts)
    assert np.array_equal(np.sort(split.assignment), np.sort(split.rank_of))


@pytest.mark.parametrize("free", [False, True])
def test_trades_alone_level_ranks_of_many_samples(free):
    lengths = np.rint(np.random.default_rng(0).gamma(0.78, 610, 32 * 128)).clip(1, 2100)
    batch = of_lengths(lengths, ranks=32)
    split = Split.of(batch, batch.source, free=free)
    trade(split)
    assert split.slowest <= split.enough


@pytest.mark.parametrize(("limit", "traded"), [(None, 2), (46, 0)])
def test_a_trade_that_would_break_the_token_limit_is_not_made(limit, traded):
    """Rank 0 has 4 too much. Whatever it gives for whatever it takes, one of the two would hold over 46 tokens."""
    batch = batch_of([7, 6, 4, 1], ranks=2, tokens=[46, 0, 10, 20], token_limit=limit)
    split = Split.of(batch, batch.source, free=False)
    trade(split)
    assert np.count_nonzero(split.rank_of != split.home) == traded


@given(batches())
def test_relabelling_changes_which_rank_is_which_and_never_moves_more_bytes_where_ranks_are_alike(batch):
    batch = replace(batch, speeds=np.ones(batch.ranks))
    split = Split.of(batch, deal(batch), free=False)
    dealt, before = split.rank_of, split.moved_bytes
    relabel(split)
    assert len(set(zip(dealt.tolist(), split.rank_of.tolist(), strict=True))) == len(set(dealt.tolist()))
    assert sorted(split.loads) == pytest.approx(sorted(np.bincount(dealt, split.costs, batch.ranks)))
    assert split.moved_bytes <= before


def test_relabelling_gives_a_group_to_the_rank_that_has_the_most_of_it():
    batch = batch_of([1, 1, 1, 1, 1, 1], ranks=3, tokens=[5, 1, 1, 9, 1, 1])
    split = Split.of(batch, np.array([1, 2, 2, 0, 1, 0]), free=False)
    relabel(split)
    assert split.assignment.tolist() == [0, 2, 2, 1, 0, 1]


def test_relabelling_leaves_fast_and_slow_ranks_apart():
    batch = batch_of([3, 3, 1, 1], ranks=2, speeds=[1.0, 3.0])
    split = Split.of(batch, np.array([1, 1, 0, 0]), free=False)
    relabel(split)
    assert split.assignment.tolist() == [1, 1, 0, 0]


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.5]) | st.floats(0, 1e12), max_size=200))
def test_rising_is_a_stable_argsort(values):
    values = np.array(values, np.float64)
    assert np.array_equal(rising(values), np.argsort(values, kind="stable"))
