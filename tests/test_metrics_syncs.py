"""Gaps, rates and lags from the record of syncs."""

import numpy as np
import pytest

from fsbench.metrics.sheet import Sheet
from fsbench.metrics.syncs import SyncTrace, enter_syncs

GAPS = ("sync_gap_mean", "sync_gap_p50", "sync_gap_p95")
LAGS = ("sync_lag_p50", "sync_lag_p95")


def rank(*steps, lags=(), seconds=30.0):
    return SyncTrace(np.array(steps, np.int64), np.array(lags, np.int64), seconds)


def entered(*ranks):
    sheet = Sheet()
    enter_syncs(sheet, ranks)
    return sheet


def test_gaps_and_lags_are_those_of_all_ranks_and_the_rate_is_a_trainers():
    sheet = entered(rank(5, 10, 20, lags=[0, 1, 1]), rank(4, 9, 12, lags=[2, 5]))
    assert sheet.metrics == {
        "sync_gap_mean": (5 + 10 + 5 + 3) / 4,
        "sync_gap_p50": 5.0,
        "sync_gap_p95": pytest.approx(5 + 0.85 * 5),
        "syncs_per_min": 6.0,
        "sync_lag_p50": 1.0,
        "sync_lag_p95": pytest.approx(2 + 0.8 * 3),
    }
    assert sheet.missing == {}


def test_ranks_that_sync_alone_each_have_a_rate_by_their_own_clock():
    assert entered(rank(1, 2, seconds=60), rank(1, seconds=10)).metrics["syncs_per_min"] == (2 + 6) / 2


@pytest.mark.parametrize("ranks", [(), (rank(), rank()), (rank(seconds=0),)])
def test_no_sync_is_missing_not_0(ranks):
    sheet = entered(*ranks)
    assert sheet.metrics == dict.fromkeys((*GAPS, "syncs_per_min", *LAGS))
    assert all("measured steps" in reason for reason in sheet.missing.values())


def test_one_sync_has_a_rate_but_no_gap():
    assert entered(rank(3, lags=[0]), rank(4, lags=[0])).metrics == {
        **dict.fromkeys(GAPS),
        "syncs_per_min": 2.0,
        **dict.fromkeys(LAGS, 0.0),
    }


def test_a_lag_that_no_strategy_tells_is_missing_not_0():
    sheet = entered(rank(3, 4))
    assert [sheet.metrics[name] for name in LAGS] == [None, None]
    assert "does not tell" in sheet.missing["sync_lag_p50"]
