"""What was executed as a timeline: the same that ranks record, so that every metric and table is one code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fsbench.axes import LaneSpec
from fsbench.metrics.trace import LABELS, WAIT, LaneOps, LaneTrace, RankTrace, RunTrace
from fsbench.sim.engine import Executed
from fsbench.sim.plan import MAIN, Collective, Operation, StepEnd, Wait, Work
from fsbench.sim.topology import Int64


def run_trace(executed: Executed, lanes: Iterable[LaneSpec]) -> RunTrace:
    """The timeline of all ranks. `lanes`: of the cell, in order. What comes after the last window is no part of it."""
    specs = list(lanes)
    places = {spec.name: place for place, spec in enumerate(specs)}
    carried = {spec.name: _collectives(executed, spec.name) for spec in specs}
    kinds = tuple(sorted({operation.kind for operations in carried.values() for operation in operations}))
    return RunTrace(
        _main_threads(executed, places),
        {spec.name: LaneTrace(spec.waits_as, _lane(executed, carried[spec.name], kinds)) for spec in specs},
        tuple(places),
        shared_clock=True,
        kind_names=kinds or ("other",),
    )


def _main_threads(executed: Executed, places: dict[str, int]) -> list[RankTrace]:
    operations = executed.threads.get(MAIN, [])
    ends = _stack(executed, operations)
    closing = np.flatnonzero([isinstance(operation, StepEnd) for operation in operations])
    inside = int(closing[-1]) + 1 if len(closing) else 0
    operations, ends = operations[:inside], ends[:inside]
    # A rank's main thread does one thing after another: each begins where the one before it ended.
    starts = np.concatenate((np.zeros((1, executed.ranks), np.int64), ends))[:-1]
    step_end = ends[closing]
    step_begin = np.concatenate((np.zeros((1, executed.ranks), np.int64), step_end))[:-1]
    kept = np.flatnonzero([not isinstance(operation, StepEnd) for operation in operations])
    labels = np.array([_label(operations[place]) for place in kept], np.int8)
    lanes = np.array([_lane_of(operations[place], places) for place in kept], np.int16)
    return [
        RankTrace(
            *(np.ascontiguousarray(array[:, rank]) for array in (step_begin, step_end, starts[kept], ends[kept])),
            labels=labels,
            cpu_ns=ends[kept, rank] - starts[kept, rank],
            lanes=lanes,
        )
        for rank in range(executed.ranks)
    ]


def _label(operation: Operation) -> int:
    return LABELS.index(operation.label) if isinstance(operation, Work) else WAIT


def _lane_of(operation: Operation, places: dict[str, int]) -> int:
    return places[operation.lane] if isinstance(operation, Wait) else -1


def _collectives(executed: Executed, lane: str) -> list[Collective]:
    return [operation for operation in executed.threads.get(lane, ()) if isinstance(operation, Collective)]


def _lane(executed: Executed, operations: Sequence[Collective], kinds: Sequence[str]) -> list[LaneOps]:
    """By rank."""
    starts = _stack(executed, operations, begin=True)
    ends = _stack(executed, operations)
    shape = (len(operations), executed.ranks)
    sent = np.array([operation.traffic.sent for operation in operations], np.int64).reshape(shape)
    codes = np.array([kinds.index(operation.kind) for operation in operations], np.int16)
    return [
        LaneOps(*(np.ascontiguousarray(array[:, rank]) for array in (starts, ends, sent)), codes)
        for rank in range(executed.ranks)
    ]


def _stack(executed: Executed, operations: Sequence[Operation], *, begin: bool = False) -> Int64:
    """int64[operations, ranks]: when they end, or begin."""
    times = [executed.times[operation] for operation in operations]
    rows = [each.start if begin else each.end for each in times]
    return np.array(rows, np.int64).reshape(len(rows), executed.ranks)
