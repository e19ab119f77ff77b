"""Largest differencing at equal counts, beside the same with lists of samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench_strategies.sharding.karmarkar_karp import KarmarkarKarp
from tests import partitioners
from tests.balancing import batch_of, counts, of_lengths, seconds

lengths = st.lists(st.integers(0, 3000), max_size=60)


@given(lengths, st.integers(1, 6))
def test_parts_are_those_of_plain_differencing_with_lists(lengths, ranks):
    batch = of_lengths(lengths, ranks)
    plain = partitioners.karmarkar_karp(batch.costs.tolist(), ranks, equal=True)
    # Costs are whole numbers, so that no order of additions makes a tie of what is none.
    assert seconds(KarmarkarKarp().assign(batch), batch).tolist() == seconds(np.array(plain, np.int64), batch).tolist()


@given(lengths, st.integers(1, 6))
def test_every_part_has_one_sample_of_each_sorted_block(lengths, ranks):
    batch = of_lengths(lengths, ranks)
    falling = np.argsort(-batch.costs, kind="stable")
    ranked = KarmarkarKarp().assign(batch)[falling]
    for first in range(0, len(ranked), ranks):
        block = ranked[first : first + ranks]
        assert len(set(block.tolist())) == len(block)


def test_the_textbook_example_of_two_parts():
    """8, 7, 6, 5, 4 at sizes 3 and 2: blocks (8 7) (6 5) (4 -) differ by 1, 1 and 4; 4 - 1 - 1 = 2 remains."""
    batch = batch_of([8, 7, 6, 5, 4], ranks=2)
    assignment = KarmarkarKarp().assign(batch)
    assert sorted(seconds(assignment, batch).tolist()) == [14, 16]
    assert sorted(counts(assignment, batch).tolist()) == [2, 3]


@pytest.mark.parametrize("seed", range(3))
def test_without_heavy_tails_it_is_level_to_a_hundred_thousandth(seed):
    batch = of_lengths(np.rint(np.random.default_rng(seed).uniform(1, 2000, 16 * 64)), ranks=16)
    found = seconds(KarmarkarKarp().assign(batch), batch)
    assert found.max() <= found.mean() * (1 + 1e-5)
