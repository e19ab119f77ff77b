"""FreeScale's fixed batch size: to and fro in order of length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench_strategies.sharding.snake import Snake
from tests.balancing import batch_of, counts, of_lengths


@pytest.mark.parametrize(("ranks", "rows"), [(1, 3), (2, 4), (3, 3), (4, 5)])
def test_rank_i_gets_the_places_i_and_2n_minus_1_minus_i_of_every_two_rows(ranks, rows):
    """0-based: as quoted from the paper, with 2n - i, the pattern gives rank 0 nothing of the second row."""
    lengths = np.arange(ranks * rows, 0, -1)  # already by falling length
    assignment = Snake().assign(of_lengths(lengths, ranks))
    for rank in range(ranks):
        mine = [2 * k * ranks + rank for k in range(rows)] + [2 * (k + 1) * ranks - 1 - rank for k in range(rows)]
        assert np.flatnonzero(assignment == rank).tolist() == sorted(place for place in mine if place < len(lengths))


def test_equal_lengths_go_by_source_rank_then_by_place():
    assert Snake().assign(of_lengths([5] * 6, ranks=2)).tolist() == [0, 1, 1, 0, 0, 1]


def test_it_looks_at_lengths_not_at_costs():
    batch = batch_of([1, 2, 3, 4], ranks=2, tokens=[40, 30, 20, 10])
    assert Snake().assign(batch).tolist() == [0, 1, 1, 0]


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 6))
def test_token_sums_differ_by_less_than_the_longest_sample(lengths, ranks):
    batch = of_lengths(lengths, ranks)
    assignment = Snake().assign(batch)
    held = np.bincount(assignment, batch.tokens, minlength=ranks)
    assert held.max() - held.min() <= max(lengths, default=0)
    assert counts(assignment, batch).max(initial=0) <= -(-len(lengths) // ranks)
