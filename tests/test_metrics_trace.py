"""A trace that is not whole is refused, with the place to look at."""

from dataclasses import replace

import numpy as np
import pytest

from fsbench.metrics.trace import COMPUTE, OTHER, WAIT, LaneOps, LaneTrace, RankTrace, RunTrace


def ints(*values):
    return np.array(values, np.int64)


def rank_trace(**changes):
    """Two windows, [0, 10) and [12, 20): compute and a wait on lane 0, then other."""
    whole = RankTrace(
        step_begin=ints(0, 12),
        step_end=ints(10, 20),
        starts=ints(0, 6, 12),
        ends=ints(6, 10, 20),
        labels=np.array([COMPUTE, WAIT, OTHER], np.int8),
        cpu_ns=ints(6, 0, 8),
        lanes=np.array([-1, 0, -1], np.int16),
    )
    return replace(whole, **changes)


def lane_ops(*starts):
    n = len(starts)
    return LaneOps(ints(*starts), ints(*starts) + 1, np.zeros(n, np.int64), np.zeros(n, np.int16))


def run_trace(ranks, ops, waits_as="dense", names=("dense",)):
    return RunTrace(ranks, {"dense": LaneTrace(waits_as, ops)}, names, shared_clock=True)


def test_intervals_that_tile_the_windows_are_whole():
    rank_trace().validate(0)


def test_intervals_without_length_are_legal_anywhere_in_order():
    rank_trace(
        starts=ints(0, 0, 6, 11, 12),
        ends=ints(0, 6, 10, 11, 20),
        labels=np.array([OTHER, COMPUTE, WAIT, OTHER, OTHER], np.int8),
        cpu_ns=ints(0, 6, 0, 0, 8),
        lanes=np.array([-1, -1, 0, -1, -1], np.int16),
    ).validate(0)


def test_a_rank_without_steps_is_whole():
    none = ints()
    RankTrace(none, none, none, none, none.astype(np.int8), none, none.astype(np.int16)).validate(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step_end": ints(-1, 20)}, "rank 3, step 0: the window ends before it begins"),
        ({"step_begin": ints(0, 9)}, "rank 3, step 1: the window begins before the last one ended"),
        ({"starts": ints(0, 7, 12)}, "rank 3, step 0: the intervals leave a gap"),
        ({"ends": ints(6, 10, 19)}, "rank 3, step 1: the intervals leave a gap"),
        ({"starts": ints(0, 5, 12)}, "rank 3, step 0: two intervals overlap"),
        ({"ends": ints(6, 11, 20)}, "rank 3, step 0: an interval reaches out of the window"),
        ({"starts": ints(7, 6, 12)}, "rank 3, step 0: an interval has a negative length"),
        ({"cpu_ns": ints(6, 0, -1)}, "rank 3, step 1: an interval has a negative CPU time"),
        ({"lanes": np.array([-1, -1, -1], np.int16)}, "rank 3, step 0: a wait has no lane"),
        ({"starts": np.array([0.0, 6.0, 12.0])}, "rank 3: starts is float64"),
        ({"cpu_ns": ints(6)}, "rank 3: starts, ends, labels, cpu_ns, lanes differ in length"),
        ({"labels": np.array([0, 2, 9], np.int8)}, "rank 3: a label is not a place"),
        ({"step_begin": ints(), "step_end": ints()}, "rank 3: there are intervals but no steps"),
    ],
)
def test_a_broken_trace_is_refused_naming_rank_and_step(changes, message):
    with pytest.raises(ValueError, match=message):
        rank_trace(**changes).validate(3)


def test_different_operation_counts_are_refused_naming_lane_ranks_and_counts():
    trace = run_trace([rank_trace()] * 3, [lane_ops(1, 2), lane_ops(1, 2), lane_ops(1)])
    with pytest.raises(ValueError, match="lane dense: rank 2 issued 1 operations, rank 0 2"):
        trace.validate()


def test_ranks_may_have_different_operation_counts_on_a_lane_to_a_server():
    lane = LaneTrace("embedding", [lane_ops(1, 2), lane_ops(1), lane_ops()], collective=False)
    RunTrace([rank_trace()] * 3, {"table-server-0": lane}, ("table-server-0",), shared_clock=True).validate()


def test_ranks_with_different_step_counts_are_refused():
    none = ints()
    empty = RankTrace(none, none, none, none, none.astype(np.int8), none, none.astype(np.int16))
    with pytest.raises(ValueError, match="rank 1 has 0 steps, rank 0 has 2"):
        run_trace([rank_trace(), empty], [lane_ops(), lane_ops()]).validate()


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (run_trace([rank_trace()], [lane_ops()], names=()), "rank 0: a wait names a lane beyond"),
        (run_trace([rank_trace()], [lane_ops()], names=("a", "b")), "lane_names are"),
        (run_trace([rank_trace()], []), "lane dense: operations of 0 ranks; expected 1"),
        (run_trace([rank_trace()], [lane_ops()], waits_as="copy"), "lane dense: waits_as is 'copy'"),
        (
            run_trace([rank_trace()], [replace(lane_ops(1, 5), ends=ints(2, 4))]),
            "lane dense, rank 0: operation 1 ends before it starts",
        ),
    ],
)
def test_lanes_that_do_not_fit_the_ranks_are_refused(trace, message):
    with pytest.raises(ValueError, match=message):
        trace.validate()
