"""Which samples a calibration is made on: uniform over what is read, bounded in number and in time."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.costs import draw as draw_module
from fsbench.costs.draw import READ_A_SAMPLE, deal, draw
from fsbench.costs.reservoir import Reservoir
from fsbench.samples import Jagged, Samples


def filled(size: int, stream: int, seed: int) -> list[int]:
    """The items 0, 1, ... of a stream that are kept."""
    reservoir, kept = Reservoir(size, seed), {}
    for item in range(stream):
        if (place := reservoir.place()) is not None:
            kept[place] = item
    assert reservoir.seen == stream
    return list(kept.values())


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 5))
def test_a_reservoir_keeps_distinct_items_of_the_stream_as_many_as_fit(size, stream, seed):
    kept = filled(size, stream, seed)
    assert len(set(kept)) == len(kept) == min(size, stream)
    assert set(kept) <= set(range(stream))


def test_every_item_of_a_stream_is_kept_with_the_same_probability():
    """Counts over 4,000 streams of 40 items, 10 kept: chi-squared with 39 degrees of freedom is below 73 in 99.9 %."""
    counts = np.bincount(np.concatenate([filled(10, 40, seed) for seed in range(4000)]), minlength=40)
    expected = 4000 * 10 / 40
    # Items of a stream exclude each other, which only makes the statistic smaller.
    assert ((counts - expected) ** 2 / expected).sum() < 73


class Stream:
    """Samples of 1 to 4 tokens; counts how often it is read."""

    samples_per_rank = 4

    def __init__(self, available: int | None = None) -> None:
        self.samples_available = available
        self.loads = 0

    def load(self, step: int, rank: int, ranks: int) -> Samples:
        assert (rank, ranks) == (0, 1)
        self.loads += 1
        index = np.arange(4 * step, 4 * step + 4)
        lengths = index % 4 + 1
        return Samples(index, lengths, {"items": Jagged(np.repeat(index, lengths), lengths)})


def test_an_endless_stream_is_read_no_further_than_so_many_samples_for_each_that_is_kept():
    stream = Stream()
    drawn = draw(stream, 8, seconds=1e9, seed=1)
    assert drawn.read == READ_A_SAMPLE * 8 == 4 * stream.loads
    assert len(drawn.samples) == 8
    assert (
        drawn.samples.columns["items"].values.tolist() == np.repeat(drawn.samples.index, drawn.samples.tokens).tolist()
    )
    assert drawn.samples.index.max() > 8


def test_reading_ends_when_its_time_is_up_but_not_before_a_first_load(monkeypatch):
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr(draw_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    stream = Stream()
    assert draw(stream, 1000, seconds=5, seed=1).read == 4 * stream.loads
    assert stream.loads == 6  # the clock goes on by a second at every look
    assert draw(Stream(), 1000, seconds=0, seed=1).read == 4


@pytest.mark.parametrize(("available", "read"), [(12, 12), (14, 12)])
def test_a_small_data_set_is_read_once(available, read):
    drawn = draw(Stream(available), 1000, seconds=1e9, seed=1)
    assert drawn.read == len(drawn.samples) == read
    assert sorted(drawn.samples.index) == list(range(read))


@given(st.integers(0, 300), st.integers(1, 12), st.integers(0, 3))
def test_every_sample_is_dealt_once_at_most_and_held_out_batches_are_as_large_as_in_a_run(samples, per_rank, seed):
    batches = deal(samples, per_rank, seed)
    places = np.concatenate([batch.places for batch in batches] or [np.zeros(0, int)])
    assert len(set(places)) == len(places)
    assert samples - 2 * per_rank < len(places) <= samples
    for number, batch in enumerate(batches):
        assert batch.held_out == (number % 4 == 3)
        assert 1 <= len(batch.places) <= 2 * per_rank
        assert not batch.held_out or len(batch.places) == per_rank
