"""Gaps and rates from the record of syncs."""

import numpy as np
import pytest

from fsbench.metrics.sheet import Sheet
from fsbench.metrics.syncs import enter_syncs

GAPS = ("sync_gap_mean", "sync_gap_p50", "sync_gap_p95")


def entered(*steps, seconds=30.0):
    sheet = Sheet()
    enter_syncs(sheet, [np.array(of_rank, np.int64) for of_rank in steps], seconds)
    return sheet


def test_gaps_are_those_of_all_ranks_and_the_rate_is_that_of_rounds():
    sheet = entered([5, 10, 20], [4, 9, 12])
    assert sheet.metrics == {
        "sync_gap_mean": (5 + 10 + 5 + 3) / 4,
        "sync_gap_p50": 5.0,
        "sync_gap_p95": pytest.approx(5 + 0.85 * 5),
        "syncs_per_min": 6.0,
    }
    assert sheet.missing == {}


@pytest.mark.parametrize("steps", [(), ([], [])])
def test_no_sync_is_missing_not_0(steps):
    sheet = entered(*steps)
    assert sheet.metrics == dict.fromkeys((*GAPS, "syncs_per_min"))
    assert all("measured steps" in reason for reason in sheet.missing.values())


def test_one_sync_has_a_rate_but_no_gap():
    assert entered([3], [4]).metrics == {**dict.fromkeys(GAPS), "syncs_per_min": 2.0}
