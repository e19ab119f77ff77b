"""The collision rate of consecutive batches, against sets."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsbench.metrics.collisions import count_collisions

BATCHES = st.lists(st.lists(st.integers(0, 12), max_size=15), max_size=6)


def count(batches: list[list[int]]) -> tuple[int, int]:
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


def test_one_step_has_no_next():
    assert count([[1, 2, 3]]) == (0, 0)


def test_rows_in_the_billions_are_told_apart():
    assert count([[2**40, 5], [2**40, 6], [5]]) == (1, 4)
