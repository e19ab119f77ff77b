"""The collision rate of consecutive batches, against sets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.metrics.collisions import count_collisions, enter_collisions
from fsbench.metrics.sheet import Sheet

BATCHES = st.lists(st.lists(st.integers(0, 12), max_size=15), max_size=6)


def count(batches: list[list[int]]) -> tuple[int, int]:
    return tuple(by_step(batches).sum(0).tolist())


def by_step(batches: list[list[int]]) -> np.ndarray:
    step = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    return count_collisions(step, np.array(list(itertools.chain(*batches)), np.int64), len(batches))


@given(BATCHES)
def test_counts_are_those_of_the_sets_of_rows(batches):
    sets = [set(batch) for batch in batches]
    again = sum(len(batch & after) for batch, after in itertools.pairwise(sets))
    assert count(batches) == (again, sum(map(len, sets[:-1])))


@given(BATCHES, st.integers(1, 4))
def test_counts_add_up_over_disjoint_parts_of_the_rows(batches, parts):
    counts = [count([[row for row in batch if row % parts == part] for batch in batches]) for part in range(parts)]
    assert tuple(np.sum(counts, axis=0)) == count(batches)


@given(BATCHES, st.randoms())
def test_the_order_of_touches_does_not_matter(batches, random):
    shuffled = [random.sample(batch, len(batch)) for batch in batches]
    assert count(shuffled) == count(batches)


@given(BATCHES)
def test_each_step_has_counts_of_its_own(batches):
    sets = [set(batch) for batch in batches]
    expected = [[len(batch & after), len(batch)] for batch, after in itertools.pairwise(sets)]
    assert by_step(batches).tolist() == expected


def entered(counts):
    sheet = Sheet()
    enter_collisions(sheet, np.array(counts, np.int64).reshape(-1, 2))
    return sheet.metrics["collision_rate"], sheet.metrics["collision_rate_p99"]


def test_the_mean_is_over_rows_and_the_percentile_over_steps_that_have_any():
    mean, p99 = entered([[1, 2], [0, 0], [0, 8]])
    assert (mean, p99) == (0.1, pytest.approx(0.495))  # of rates 1/2 and 0
    assert entered([]) == entered([[0, 0]]) == (None, None)


def test_one_step_has_no_next():
    assert count([[1, 2, 3]]) == (0, 0)


def test_rows_in_the_billions_are_told_apart():
    assert count([[2**40, 5], [2**40, 6], [5]]) == (1, 4)
