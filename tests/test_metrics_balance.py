"""Shares from costs and lengths: against their definitions, one rank and one batch at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fsbench.metrics.balance import least_straggler_share, padding_share, straggler_share


def test_the_straggler_share_of_a_batch_is_the_mean_over_ranks_of_idle_time_over_its_time():
    costs = np.array([[4.0, 1.0, 3.0]])
    assert straggler_share(costs) == pytest.approx(np.mean([0 / 4, 3 / 4, 1 / 4]))


@given(arrays(np.float64, (3, 4), elements=st.floats(0.1, 100)))
def test_the_straggler_share_of_many_batches_is_all_idle_time_over_all_time(costs):
    time = costs.max(axis=1, keepdims=True)
    assert straggler_share(costs) == pytest.approx((time - costs).sum() / (4 * time.sum()), abs=1e-12)


def test_level_ranks_wait_for_nobody():
    assert straggler_share(np.full((2, 8), 3.0)) == 0


def test_there_is_no_straggler_share_without_work():
    assert straggler_share(np.zeros((2, 3))) is None
    assert straggler_share(np.zeros((0, 3))) is None


def test_no_assignment_divides_the_costliest_sample_so_others_wait_for_it():
    assert least_straggler_share(np.array([[6.0, 2.0]]), np.array([[5.0, 1.0]])) == pytest.approx(1 - 4 / 5)


def test_where_every_sample_is_less_than_a_ranks_share_nobody_would_have_to_wait():
    assert least_straggler_share(np.array([[6.0, 2.0]]), np.array([[3.0, 1.0]])) == 0


def test_there_is_no_least_straggler_share_without_work():
    assert least_straggler_share(np.zeros((1, 3)), np.zeros((1, 3))) is None


def test_the_padding_share_is_what_a_batch_padded_to_its_longest_sample_wastes():
    lengths = np.array([5, 1, 2])
    share = padding_share(np.array([3]), np.array([lengths.sum()]), np.array([lengths.max()]))
    assert share == pytest.approx(7 / 15)


def test_padding_is_added_up_over_batches_before_it_is_divided():
    share = padding_share(np.array([2, 0, 1]), np.array([3, 0, 9]), np.array([2, 0, 9]))
    assert share == pytest.approx(1 / 13)


def test_there_is_no_padding_share_without_tokens():
    assert padding_share(np.array([2]), np.array([0]), np.array([0])) is None
