"""What the main thread's waits were for: their transfer part, by the kind of bytes that the lane was moving."""

from __future__ import annotations

import numpy as np

from fsbench.metrics.bubbles import transfer_begins
from fsbench.metrics.intervals import Int64, covered_before, difference, interval_set, union
from fsbench.metrics.trace import LaneOps, RankTrace, RunTrace

BETWEEN = "between operations"
"""The lane waited on moved nothing: its thread packed, updated rows, or had not got to the next operation."""


def exposed_by_kind(trace: RunTrace) -> dict[str, Int64]:
    """Nanoseconds int64[ranks, steps] by kind of bytes, and `BETWEEN`.

    All of them sum to the transfer parts of `fsbench.metrics.bubbles.account`, which also checks the trace.
    """
    names = (*trace.kind_names, BETWEEN)
    steps = len(trace.ranks[0].windows) if trace.ranks else 0
    ns = np.zeros((len(names), len(trace.ranks), steps), np.int64)
    for number, name in enumerate(trace.lane_names):
        lane = trace.lanes[name]
        begins = transfer_begins(lane, trace.shared_clock)
        for rank, (main, ops) in enumerate(zip(trace.ranks, lane.ops, strict=True)):
            _add_lane(ns[:, rank], main, number, ops, begins[rank])
    return dict(zip(names, ns, strict=True))


def _add_lane(ns: Int64, main: RankTrace, lane: int, ops: LaneOps, begins: Int64) -> None:
    """Adds one rank's waits on one lane to int64[kinds + 1, steps]. `begins`: when each operation's transfer began."""
    wait = (main.lanes == lane) & (main.ends > main.starts)
    if not wait.any():
        return  # as for most lanes of most cells: with thousands of ranks that counts
    step = main.step_of[wait]
    starts, ends = main.starts[wait], main.ends[wait]
    claimed = interval_set(ops.starts, begins)
    rest = ends - starts - _inside(claimed, starts, ends)
    for kind in np.unique(ops.kinds):
        of_kind = ops.kinds == kind
        moving = difference(interval_set(begins[of_kind], ops.ends[of_kind]), claimed)
        claimed = union(claimed, moving)
        moved = _inside(moving, starts, ends)
        np.add.at(ns[kind], step, moved)
        rest -= moved
    np.add.at(ns[-1], step, rest)


def _inside(covered: Int64, starts: Int64, ends: Int64) -> Int64:
    """How much of each interval an interval set covers."""
    return covered_before(covered, ends) - covered_before(covered, starts)
