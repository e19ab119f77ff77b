"""A timeline as data: what each rank's main thread did in every nanosecond, and what each lane carried.

Recorders and simulators fill these arrays; the rest of the package only reads them. Times are integer
nanoseconds. A clock may be a rank's own; `RunTrace.shared_clock` says whether times of two ranks compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int16 = NDArray[np.int16]
Int8 = NDArray[np.int8]

LABELS = ("compute", "strategy", "wait", "input", "other")
COMPUTE, STRATEGY, WAIT, INPUT, OTHER = range(len(LABELS))
WAIT_CLASSES = ("shuffle", "embedding", "dense", "control")


@dataclass(frozen=True)
class RankTrace:
    """One rank's main thread: the windows of its steps, and the labelled intervals that tile each window.

    `step_begin`, `step_end`: int64[steps], windows in order, disjoint. `starts`, `ends`: int64[intervals], in
    order. `labels`: int8[intervals], places in `LABELS`. `cpu_ns`: int64[intervals], CPU time the thread got
    in the interval (its whole length where that is unknown, as on a CUDA stream). `lanes`: int16[intervals],
    the lane waited on, a place in `RunTrace.lane_names`; -1 where the label is no wait.
    """

    step_begin: Int64
    step_end: Int64
    starts: Int64
    ends: Int64
    labels: Int8
    cpu_ns: Int64
    lanes: Int16

    @property
    def windows(self) -> Int64:
        """int64[steps]: length of each window."""
        return self.step_end - self.step_begin

    @property
    def span(self) -> tuple[int, int]:
        """From the first window's begin to the last one's end; an empty span without windows."""
        return (int(self.step_begin[0]), int(self.step_end[-1])) if len(self.step_begin) else (0, 0)

    @property
    def step_of(self) -> Int64:
        """int64[intervals]: the step each interval lies in; any step for an empty one between two steps."""
        return np.maximum(np.searchsorted(self.step_begin, self.starts, side="right") - 1, 0)

    def steps(self, kept: range) -> RankTrace:
        """The trace of some of the steps only, `kept` counting from 0."""
        inside = (self.step_of >= kept.start) & (self.step_of < kept.stop)
        return RankTrace(
            self.step_begin[kept.start : kept.stop],
            self.step_end[kept.start : kept.stop],
            *(getattr(self, name)[inside] for name in ("starts", "ends", "labels", "cpu_ns", "lanes")),
        )

    def validate(self, rank: int) -> None:
        """Checks the types, and that the intervals tile the windows.

        Raises:
            ValueError: naming the rank, and the step where one is to blame.
        """
        self._check_arrays(rank)
        self._check_windows(rank)
        self._check_tiling(rank)

    def _check_arrays(self, rank: int) -> None:
        for group in (("step_begin", "step_end"), ("starts", "ends", "labels", "cpu_ns", "lanes")):
            for name in group:
                if not np.issubdtype(getattr(self, name).dtype, np.integer):
                    raise ValueError(f"rank {rank}: {name} is {getattr(self, name).dtype}; expected integers")
            if len({len(getattr(self, name)) for name in group}) != 1:
                raise ValueError(f"rank {rank}: {', '.join(group)} differ in length")
        if ((self.labels < 0) | (self.labels >= len(LABELS))).any():
            raise ValueError(f"rank {rank}: a label is not a place in {LABELS}")

    def _check_windows(self, rank: int) -> None:
        _refuse(rank, np.arange(len(self.windows)), self.windows < 0, "the window ends before it begins")
        early = self.step_begin[1:] < self.step_end[:-1]
        _refuse(rank, np.arange(1, len(self.windows)), early, "the window begins before the last one ended")

    def _check_tiling(self, rank: int) -> None:
        lengths, step = self.ends - self.starts, self.step_of
        _refuse(rank, step, lengths < 0, "an interval has a negative length")
        _refuse(rank, step, self.cpu_ns < 0, "an interval has a negative CPU time")
        mismatch = (self.labels == WAIT) != (self.lanes >= 0)
        _refuse(rank, step, mismatch, "a wait has no lane, or a lane no wait")
        _refuse(rank, step[1:], self.starts[1:] < self.ends[:-1], "two intervals overlap or are out of order")
        # In order, disjoint, inside the windows and as long as they are: the intervals tile them.
        if not len(self.windows):
            if lengths.any():
                raise ValueError(f"rank {rank}: there are intervals but no steps")
            return
        outside = (self.starts < self.step_begin[step]) | (self.ends > self.step_end[step])
        _refuse(rank, step, outside & (lengths > 0), "an interval reaches out of the window")
        covered = np.zeros_like(self.windows)
        np.add.at(covered, step, lengths)
        gap = covered != self.windows
        _refuse(rank, np.arange(len(gap)), gap, "the intervals leave a gap in the window")


def _refuse(rank: int, step: Int64, wrong: NDArray[np.bool_], what: str) -> None:
    if wrong.any():
        raise ValueError(f"rank {rank}, step {step[np.argmax(wrong)]}: {what}")


@dataclass(frozen=True)
class LaneOps:
    """The operations of one lane on one rank, in issue order: the place in the arrays is the sequence number.

    `starts`, `ends`: int64[ops], when the operation left the queue and when it was done, on this rank.
    `bytes_sent`: int64[ops]. `kinds`: int16[ops], places in `RunTrace.kind_names`.
    """

    starts: Int64
    ends: Int64
    bytes_sent: Int64
    kinds: Int16


class LaneTrace(NamedTuple):
    """One lane on all ranks. `waits_as`: one of `WAIT_CLASSES`; `ops`: by rank.

    `collective`: an operation is the same on all ranks, who meet in it. If not, each rank's are with a server, and it
    waits for no other rank.
    """

    waits_as: str
    ops: Sequence[LaneOps]
    collective: bool = True


@dataclass(frozen=True)
class RunTrace:
    """The timeline of a run. `lanes`: by name; `lane_names`: in the order `RankTrace.lanes` refers to."""

    ranks: Sequence[RankTrace]
    lanes: Mapping[str, LaneTrace]
    lane_names: tuple[str, ...]
    shared_clock: bool
    kind_names: tuple[str, ...] = ("other",)

    def validate(self) -> None:
        """Checks every rank, and that ranks and lanes belong together.

        Raises:
            ValueError: naming the rank and the step, or the lane and the ranks.
        """
        for rank, trace in enumerate(self.ranks):
            trace.validate(rank)
            if len(trace.windows) != len(self.ranks[0].windows):
                steps, expected = len(trace.windows), len(self.ranks[0].windows)
                raise ValueError(f"rank {rank} has {steps} steps, rank 0 has {expected}; expected as many")
            if (trace.lanes >= len(self.lane_names)).any():
                raise ValueError(f"rank {rank}: a wait names a lane beyond {self.lane_names}")
        if set(self.lanes) != set(self.lane_names):
            raise ValueError(f"lane_names are {self.lane_names}, but there are lanes {tuple(self.lanes)}")
        for name, lane in self.lanes.items():
            self._check_lane(name, lane)

    def _check_lane(self, name: str, lane: LaneTrace) -> None:
        if lane.waits_as not in WAIT_CLASSES:
            raise ValueError(f"lane {name}: waits_as is {lane.waits_as!r}; expected one of {WAIT_CLASSES}")
        if len(lane.ops) != len(self.ranks):
            raise ValueError(f"lane {name}: operations of {len(lane.ops)} ranks; expected {len(self.ranks)}")
        counts = [len(ops.starts) for ops in lane.ops] if lane.collective else []
        fewest, most = (counts.index(pick(counts)) for pick in (min, max)) if counts else (0, 0)
        if fewest != most:
            raise ValueError(
                f"lane {name}: rank {fewest} issued {counts[fewest]} operations, rank {most} {counts[most]}; "
                "all ranks of a lane must issue the same ones"
            )
        for rank, ops in enumerate(lane.ops):
            if (ops.kinds >= len(self.kind_names)).any():
                raise ValueError(f"lane {name}, rank {rank}: an operation's kind is beyond {self.kind_names}")
            if (ops.ends < ops.starts).any():
                number = int(np.argmax(ops.ends < ops.starts))
                raise ValueError(f"lane {name}, rank {rank}: operation {number} ends before it starts")
