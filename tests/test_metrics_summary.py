"""Metrics of a run by name, and what is missing when there is nothing to measure."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fsbench.metrics.bubbles import account
from fsbench.metrics.sheet import Sheet
from fsbench.metrics.summary import Trained, summarise, traffic_of
from fsbench.metrics.trace import COMPUTE, WAIT, LaneOps, LaneTrace, RankTrace, RunTrace

MS = 1_000_000


def ints(*values):
    return np.array(values, np.int64)


def summary_of(*about):
    """Metrics and reasons."""
    sheet = Sheet()
    summarise(sheet, *about)
    return sheet.metrics, sheet.missing


def two_ranks():
    """Two steps of 10 ms: rank 0 computes for 4 ms, then waits for an exchange that rank 1 joins at 8 ms."""
    window = {"step_begin": ints(0, 10) * MS, "step_end": ints(10, 20) * MS}
    labels, lanes = np.array([COMPUTE, WAIT] * 2, np.int8), np.array([-1, 0] * 2, np.int16)
    ranks, ops = [], []
    for compute in (4, 8):
        starts, ends = ints(0, compute, 10, 10 + compute) * MS, ints(compute, 10, 10 + compute, 20) * MS
        intervals = {"starts": starts, "ends": ends, "cpu_ns": ends - starts}
        ranks.append(RankTrace(**window, **intervals, labels=labels, lanes=lanes))
        # The last operation belongs to a step after the measured ones.
        begin = ints(compute, 10 + compute, 20) * MS
        ops.append(LaneOps(begin, ints(10, 20, 21) * MS, ints(100, 300, 5000), np.array([0, 1, 1], np.int16)))
    lanes = {"exchange": LaneTrace("embedding", ops)}
    return RunTrace(ranks, lanes, ("exchange",), shared_clock=True, kind_names=("ids", "rows"))


def trained(**changes):
    both = np.ones((2, 2), np.int64)
    usual = Trained(
        samples=both * 5,
        tokens=ints(80, 120, 100, 100).reshape(2, 2),
        longest=both * 40,
        flops=both * 1e9,
        costs=np.array([[1.0, 3.0], [3.0, 3.0]]),
        sent={("embedding", "ids"): 100.0, ("embedding", "rows"): 250.0, ("shuffle", "rows"): 50.0},
    )
    return replace(usual, **changes)


def empty():
    none = ints()
    rank = RankTrace(none, none, none, none, none.astype(np.int8), none, none.astype(np.int16))
    nothing = np.zeros((1, 0), np.int64)
    trace = RunTrace([rank], {}, (), shared_clock=True)
    return trace, Trained(nothing, nothing, nothing, nothing.astype(float), nothing.astype(float), {})


def test_the_metrics_of_a_known_run():
    metrics, missing = summary_of(two_ranks(), account(two_ranks()), trained())
    assert missing == {}
    assert metrics == {
        "step_ms_p50": 10.0,
        "step_ms_p95": 10.0,
        "samples_per_s": 1000.0,
        "examples_per_s": 1000.0,
        "tokens_per_s": 20_000.0,
        "tflops": pytest.approx(0.2),
        "bubble": 0.4,
        "bubble_straggler": 0.2,
        "bubble_embedding": 0.2,
        "bubble_dense": 0.0,
        "bubble_shuffle": 0.0,
        "bubble_strategy": 0.0,
        "bubble_input": 0.0,
        "bubble_preempted": 0.0,
        "bubble_other": 0.0,
        "lost_us_per_sample": 800.0,
        "compute_us_per_sample": 1200.0,
        "exposed_ms_by_class": {"ids": 1.0, "rows": 1.0, "between operations": 0.0},
        "exposed_embedding_ms": 2.0,
        "blocked_share": 0.0,
        "imbalance_predicted": 1.2,
        "imbalance_measured": pytest.approx(8 / 6),
        "padding": 0.5,
        "bytes_by_class": {"ids": 100.0, "rows": 300.0},
        "embedding_bytes_per_step": 400.0,
        "dense_bytes_per_step": 0.0,
        "shuffle_bytes_per_step": 0.0,
    }


def test_without_a_shared_clock_offsets_between_ranks_do_not_stretch_the_run():
    def an_hour_later(recorded, *times):
        return replace(recorded, **{name: getattr(recorded, name) + 3600 * 1000 * MS for name in times})

    trace = two_ranks()
    ranks, ops = list(trace.ranks), list(trace.lanes["exchange"].ops)
    ranks[1] = an_hour_later(ranks[1], "step_begin", "step_end", "starts", "ends")
    ops[1] = an_hour_later(ops[1], "starts", "ends")
    apart = replace(trace, ranks=ranks, lanes={"exchange": LaneTrace("embedding", ops)}, shared_clock=False)
    assert summary_of(apart, account(apart), trained()) == summary_of(trace, account(trace), trained())


def test_ranks_that_do_not_wait_for_each_other_are_each_charged_for_their_own_time():
    """Rank 1 takes twice as long for as many samples: 500 and 250 a second."""
    trace = two_ranks()
    fast, slow = trace.ranks
    twice = {name: getattr(slow, name) * 2 for name in ("step_begin", "step_end", "starts", "ends", "cpu_ns")}
    lanes = {"exchange": LaneTrace("embedding", trace.lanes["exchange"].ops, collective=False)}
    apart = replace(trace, ranks=[fast, replace(slow, **twice)], lanes=lanes)
    metrics = summary_of(apart, account(apart), trained())[0]
    assert metrics["examples_per_s"] == 500 + 250
    assert metrics["samples_per_s"] == 20 / 0.04


def test_nothing_measured_is_none_with_a_reason_for_every_metric():
    trace, nothing = empty()
    metrics, missing = summary_of(trace, account(trace), nothing)
    assert set(metrics.values()) == {None}
    assert set(missing) == set(metrics)
    assert all(missing.values())


def test_the_names_are_the_same_whether_or_not_something_was_measured():
    trace, nothing = empty()
    names = list(summary_of(two_ranks(), account(two_ranks()), trained())[0])
    assert list(summary_of(trace, account(trace), nothing)[0]) == names


def test_no_samples_leave_per_sample_metrics_missing_and_the_others_present():
    none = np.zeros((2, 2), np.int64)
    metrics, missing = summary_of(
        two_ranks(), account(two_ranks()), trained(samples=none, tokens=none, longest=none, costs=none * 1.0)
    )
    assert missing == {
        "lost_us_per_sample": "no sample was trained",
        "compute_us_per_sample": "no sample was trained",
        "imbalance_predicted": "there is no predicted cost",
        "padding": "no token was trained",
    }
    assert metrics["samples_per_s"] == 0.0
    assert metrics["bubble"] == 0.4


def test_nan_never_gets_out():
    broken = np.full((2, 2), np.nan)
    metrics, missing = summary_of(two_ranks(), account(two_ranks()), trained(flops=broken, costs=broken))
    json.dumps(metrics, allow_nan=False)
    assert missing == {"tflops": "came out as nan", "imbalance_predicted": "came out as nan"}


def test_counts_of_other_ranks_or_steps_are_refused():
    with pytest.raises(ValueError, match=r"tokens is about \(1, 2\) ranks and steps; expected \(2, 2\)"):
        summary_of(two_ranks(), account(two_ranks()), trained(tokens=np.ones((1, 2), np.int64)))


@pytest.mark.parametrize(
    ("kind", "lane", "expected"),
    [
        ("ids", "shuffle", "embedding"),
        ("rows.exclusive", "embedding", "embedding"),
        ("metadata", "shuffle", "shuffle"),
        ("dense", "dense", "dense"),
        ("their-own", "dense", "dense"),
        ("state", "dense", "control"),
    ],
)
def test_traffic_is_told_by_what_the_bytes_are_then_by_the_lane(kind, lane, expected):
    assert traffic_of(kind, lane) == expected
