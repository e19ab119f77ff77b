"""Longest processing time first, beside a plain heap and every possible split."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench_strategies.sharding.lpt import LPT
from tests import partitioners
from tests.balancing import batch_of, counts, seconds

costs = st.lists(st.sampled_from([0.0, 1.0, 2.0]) | st.floats(0, 1e9), max_size=40)


def lpt(counts):
    return LPT(LPT.Options(counts=counts))


@given(costs, st.integers(1, 6))
def test_with_free_counts_it_is_a_plain_heap(costs, ranks):
    expected = partitioners.heap_lpt(costs, ranks)
    assert lpt("free").assign(batch_of(costs, ranks)).tolist() == expected


@given(costs.map(lambda costs: costs[: len(costs) // 3 * 3]))
def test_with_equal_counts_it_is_a_plain_heap_with_a_cap(costs):
    expected = partitioners.heap_lpt(costs, 3, len(costs) // 3)
    assert lpt("equal").assign(batch_of(costs, 3)).tolist() == expected


@given(st.lists(st.floats(0, 100), max_size=8), st.integers(1, 3))
def test_with_free_counts_it_is_within_four_thirds_of_the_best(costs, ranks):
    batch = batch_of(costs, ranks)
    best = partitioners.best_slowest_of_any_counts(costs, [1.0] * ranks)
    assert seconds(lpt("free").assign(batch), batch).max() <= best * (4 / 3 - 1 / (3 * ranks)) + 1e-9


def test_a_rank_twice_as_fast_gets_twice_the_work():
    batch = batch_of(np.random.default_rng(0).uniform(0, 1, 600), ranks=3, speeds=[1.0, 2.0, 1.0])
    found = seconds(lpt("free").assign(batch), batch)
    assert found.max() <= found.mean() * 1.001


@pytest.mark.parametrize(("n", "expected"), [(2, [1, 1, 0]), (4, [2, 1, 1]), (5, [2, 2, 1])])
def test_the_first_ranks_get_what_does_not_divide(n, expected):
    batch = batch_of(np.arange(n), ranks=3)
    assert counts(lpt("equal").assign(batch), batch).tolist() == expected
