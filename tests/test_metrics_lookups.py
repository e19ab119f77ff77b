"""Owner imbalance and hot coverage: from what strategies tell, or missing with the reason."""

from __future__ import annotations

import pytest

from fsbench.metrics.lookups import enter_lookups
from fsbench.metrics.sheet import Sheet


def entered(asked, classes=({}, {})):
    sheet = Sheet()
    enter_lookups(sheet, asked, classes)
    return sheet


def test_the_imbalance_is_that_of_each_step_not_of_the_sums():
    assert entered([[[20, 0], [0, 20]], [[10, 10], [10, 10]]]).metrics["owner_imbalance"] == pytest.approx(1.5)
    assert entered([[[20, 0], [0, 20]], [[0, 20], [20, 0]]]).metrics["owner_imbalance"] == 1


def test_owners_need_not_be_as_many_as_ranks():
    assert entered([[[30]], [[10]]]).metrics["owner_imbalance"] == 1
    assert entered([[[2, 2, 8]], [[2, 2, 2]]]).metrics["owner_imbalance"] == pytest.approx(10 / 6)


@pytest.mark.parametrize("asked", [[], [[], []], [[[1, 2]], []], [[[1, 2], [1, 2]], [[1, 2]]]])
def test_a_strategy_that_does_not_tell_has_no_imbalance(asked):
    sheet = entered(asked)
    assert sheet.metrics["owner_imbalance"] is None
    assert "does not tell" in sheet.missing["owner_imbalance"]


def test_nothing_asked_is_no_balance():
    assert entered([[[0, 0]], [[0, 0]]]).missing["owner_imbalance"] == "no row was asked for in a measured step"


def test_coverage_is_a_share_of_the_rows_of_all_ranks():
    sheet = entered([], [{"hot": 30, "cold": 10}, {"hot": 0, "cold": 40}])
    assert sheet.metrics["hot_coverage"] == 0.375


@pytest.mark.parametrize(
    ("classes", "reason"),
    [(({}, {}), "the embedding strategy has no hot rows"), (({"hot": 0, "cold": 0},), "no row was looked up")],
)
def test_no_coverage_has_its_reason(classes, reason):
    assert entered([], classes).missing["hot_coverage"] == reason
