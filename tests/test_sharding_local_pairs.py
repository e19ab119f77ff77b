"""Heavy samples with light ones among the next batches of a rank: what a window keeps, and what it gains."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.errors import UserError
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.samples import Jagged, Samples
from fsbench_strategies.sharding.local_pairs import LocalPairs, pair_up


class Stream:
    """Histories of gamma lengths, a function of (step, rank); notes what is read."""

    def __init__(self, samples_per_rank=8):
        self.samples_per_rank = samples_per_rank
        self.read = []

    def load(self, step, rank, ranks):
        self.read.append(step)
        index = (step * ranks + rank) * self.samples_per_rank + np.arange(self.samples_per_rank)
        lengths = np.rint(np.random.default_rng([step, rank]).gamma(0.78, 610, self.samples_per_rank)).astype(np.int64)
        return Samples(index, lengths, {"items": Jagged(np.repeat(index, lengths), lengths)})

    def costs(self, samples):
        return samples.tokens.astype(np.float64)

    cost_features = build_batch = None


def paired(stream, window):
    return LocalPairs(LocalPairs.Options(window=window)).reads(stream)


def indices(loader, steps, rank=0, ranks=2):
    return [loader.load(step, rank, ranks).index.tolist() for step in steps]


@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_window_trains_the_samples_that_it_reads_each_once_and_in_equal_counts(window):
    ours, plain = (indices(loader, range(2 * window)) for loader in (paired(Stream(), window), Stream()))
    for first in (0, window):
        inside = slice(first, first + window)
        assert sorted(chain(*ours[inside])) == list(chain(*plain[inside]))
    assert {len(batch) for batch in ours} == {8}


def test_a_window_of_one_is_naive():
    assert indices(paired(Stream(), 1), range(4)) == indices(Stream(), range(4))


def test_samples_travel_whole():
    loaded = paired(Stream(), 4).load(2, 0, 2)
    column = loaded.columns["items"]
    assert np.array_equal(column.values, np.repeat(loaded.index, column.lengths))
    assert np.array_equal(loaded.targets, column.lengths)


def test_what_a_step_trains_does_not_depend_on_where_a_run_begins():
    whole = indices(paired(Stream(), 4), range(10))
    assert indices(paired(Stream(), 4), range(6, 10)) == whole[6:]


def test_after_the_first_window_a_step_reads_one_batch_and_none_twice():
    stream = Stream()
    loader = paired(stream, 4)
    loader.load(0, 0, 2)
    assert stream.read == [0, 1, 2, 3, 4]
    for step in range(1, 9):
        loader.load(step, 0, 2)
        assert stream.read == list(range(step + 5))


def test_ranks_come_nearer_to_each_other_without_moving_a_sample():
    """The slowest of 8 ranks over the mean, by tokens: a window of 8 takes away most of what is above 1."""

    def imbalance(loader_of):
        loaders = [loader_of() for _ in range(8)]
        held = np.array(
            [[loader.load(step, rank, 8).tokens.sum() for rank, loader in enumerate(loaders)] for step in range(32)]
        )
        return held.max(axis=1).sum() / held.mean(axis=1).sum() - 1

    naive, local = imbalance(Stream), imbalance(lambda: paired(Stream(), 8))
    assert naive > 0.5
    assert local < naive / 2


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 8))
def test_pairs_are_even_in_counts_and_differ_by_less_than_the_longest_in_tokens(tokens, batches):
    batch_of = pair_up(np.array(tokens, np.int64), batches)
    counts = np.bincount(batch_of, minlength=batches)
    assert np.ptp(counts) <= 1
    assert np.ptp(np.bincount(batch_of, tokens, minlength=batches)) <= max(tokens, default=0)


def test_training_is_not_that_of_the_reference_and_says_so():
    assert not LocalPairs.exact
    assert not LocalPairs.moves


def test_a_window_of_nothing_is_refused():
    with pytest.raises(UserError, match="window is 0, expected at least 1"):
        create("sharding", Spec.parse("local-pairs:window=0"))
