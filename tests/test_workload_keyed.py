"""Numbers by key: a value depends on its key and on nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench_workloads import keyed

SEEDS = st.integers(-(2**70), 2**70)
WORDS = st.integers(-(2**63), 2**63 - 1)
MASK = 2**64 - 1


def splitmix_finaliser(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@given(SEEDS, st.lists(WORDS, min_size=1, max_size=50), st.randoms())
def test_a_value_is_the_same_alone_in_a_crowd_and_in_any_order(seed, words, random):
    together = keyed.bits(seed, "s", np.array(words)).tolist()
    assert together == [int(keyed.bits(seed, "s", word)) for word in words]
    order = random.sample(range(len(words)), len(words))
    assert keyed.bits(seed, "s", np.array(words)[order]).tolist() == [together[i] for i in order]


@given(SEEDS, WORDS, WORDS)
def test_words_are_mixed_in_one_after_the_other_by_the_finaliser_of_splitmix64(seed, first, second):
    state = int(keyed._start(seed, "s"))
    for word in (first, second):
        state = splitmix_finaliser(((state ^ (word & MASK)) + 0x9E3779B97F4A7C15) & MASK)
    assert int(keyed.bits(seed, "s", first, second)) == state


def test_words_broadcast_against_each_other():
    rows, columns = np.arange(3)[:, None], np.arange(4)
    grid = keyed.bits(7, "s", rows, columns)
    assert grid.shape == (3, 4)
    assert grid.dtype == np.uint64
    assert grid[2, 1] == keyed.bits(7, "s", 2, 1)
    assert keyed.bits(7, "s", rows[:0], columns).shape == (0, 4)


def test_seeds_streams_words_and_their_order_all_make_a_difference():
    values = {
        int(value)
        for value in (
            keyed.bits(0, "s", 1, 2),
            keyed.bits(1, "s", 1, 2),
            keyed.bits(0, "t", 1, 2),
            keyed.bits(0, "s", 2, 1),
            keyed.bits(0, "s", 1),
        )
    }
    assert len(values) == 5


def test_uniform_numbers_fill_the_unit_interval_evenly_along_each_word():
    values = keyed.uniform(0, "s", np.arange(200)[:, None], np.arange(500))
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.bincount((values * 100).astype(int).ravel(), minlength=100)
    # chi-square with 99 degrees of freedom: mean 99, standard deviation 14
    assert ((counts - 1000) ** 2 / 1000).sum() < 99 + 5 * 14
    neighbours = np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(values.size)
    assert abs(np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]) < 5 / np.sqrt(values.size)


@given(st.integers(1, 2**40), SEEDS)
def test_integers_are_below_their_bound(below, seed):
    values = keyed.integers(below, seed, "s", np.arange(20))
    assert values.dtype == np.int64
    assert ((values >= 0) & (values < below)).all()


def test_integers_reach_every_value():
    assert set(keyed.integers(7, 0, "s", np.arange(200)).tolist()) == set(range(7))


def test_no_integer_is_below_zero():
    with pytest.raises(ValueError, match=r"no integer is in \[0, 0\)"):
        keyed.integers(0, 0, "s", 1)


@given(st.integers(0, 50), SEEDS, WORDS)
def test_a_permutation_holds_every_number_once(n, seed, word):
    assert sorted(keyed.permutation(n, seed, "s", word)) == list(range(n))


def test_permutations_of_different_keys_differ():
    assert keyed.permutation(50, 0, "s", 0).tolist() != keyed.permutation(50, 0, "s", 1).tolist()
