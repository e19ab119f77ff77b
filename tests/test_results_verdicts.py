"""How often verdicts are right, by simulation; `python -m tests.bench.verdicts` prints all of it."""

from __future__ import annotations

import pytest

from fsbench.results.statistics import MARGIN
from tests.bench.verdicts import SPREAD, apart, interleaved, runs_for


def test_of_comparisons_of_equal_cells_at_most_6_percent_are_called_faster_or_slower():
    assert interleaved([0.0]).called <= 0.06


def test_a_difference_of_3_percent_at_a_spread_of_half_of_it_is_found_in_at_least_80_percent():
    assert interleaved([0.03]).found >= 0.8


def test_of_four_contrasts_between_equals_any_is_called_in_at_most_6_percent():
    assert interleaved([0.0] * 4).called <= 0.06


def test_four_contrasts_that_all_differ_are_each_found_in_at_least_80_percent():
    assert interleaved([0.03] * 4).found >= 0.8


@pytest.mark.parametrize("contrasts", [1, 4])
def test_the_runs_that_are_asked_for_find_the_margin_in_80_percent(contrasts: int):
    effects = [MARGIN] + [0.0] * (contrasts - 1)
    # Exactly 0.820 and 0.804 where noise is normal; the drift gives it heavier tails.
    assert interleaved(effects, runs_for(2 * SPREAD, contrasts), 2 * SPREAD).found >= 0.78


def test_no_more_runs_are_asked_for_than_that_takes():
    assert interleaved([MARGIN], runs_for(2 * SPREAD) * 3 // 4, 2 * SPREAD).found < 0.78


def test_of_equal_sets_at_most_6_percent_are_called_whatever_the_spread_of_either():
    for spreads in ((SPREAD, SPREAD), (SPREAD / 3, 2 * SPREAD)):
        assert apart(0.0, spreads, comparisons=1000).called <= 0.06
