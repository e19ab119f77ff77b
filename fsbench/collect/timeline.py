"""One label for every instant of a step on the main thread.

A mark is a change of label: its time, the thread's CPU time and the label that holds from then on. Labels nest as a
stack, so that the innermost span owns the instant and intervals tile the window by construction. Two marks and a
span cost about two microseconds: `marker_cost_ns` measures it, and every result states the share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np

from fsbench.collect.operations import OperationLog
from fsbench.metrics.trace import LABELS, Int64, RankTrace

_CODES = {label: code for code, label in enumerate(LABELS)}
_COMPUTE, _OTHER, _INPUT, _STRATEGY = (_CODES[name] for name in ("compute", "other", "input", "strategy"))
_END = -1
_FIRST_WAIT = len(LABELS)  # codes from here on are waits: one a lane


class Span:
    """A reusable context manager: the label holds inside it."""

    __slots__ = ("_code", "_timeline")

    def __init__(self, timeline: Timeline, code: int) -> None:
        self._timeline = timeline
        self._code = code

    def __enter__(self) -> None:
        self._timeline._enter(self._code)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timeline._leave()


class Timeline:
    """Records the main thread of one rank. Spans outside a step, or on other threads, leave no mark.

    Args:
        lanes: names of the lanes that the main thread may wait on.
        clock: monotonic nanoseconds.
        cpu_clock: CPU nanoseconds of the calling thread.
    """

    def __init__(
        self,
        lanes: Sequence[str] = (),
        clock: Callable[[], int] = time.monotonic_ns,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self.lanes = tuple(lanes)
        self.compute = Span(self, _COMPUTE)
        self.strategy = Span(self, _STRATEGY)
        self.input = Span(self, _INPUT)
        self.last_compute_ns = 0
        """Compute of the last finished step."""
        self._waits = {lane: Span(self, _FIRST_WAIT + i) for i, lane in enumerate(self.lanes)}
        self._thread = threading.get_ident()
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._times: list[int] = []
        self._cpu: list[int] = []
        self._codes: list[int] = []
        self._stack: list[int] = []
        self._compute_ns = 0

    def wait(self, lane: str) -> Span:
        """The label of a wait on the given lane."""
        return self._waits[lane]

    @property
    def clock_bound_ns(self) -> int | None:
        """How far its times may be off the host's clock; None where they are the host's."""
        return None

    def scratch(self) -> Timeline:
        """Another of its kind, to try things on."""
        return Timeline()

    def attend(self, log: OperationLog) -> None:
        """Times the operations of a lane that does its work on a stream. There is none on a CPU."""

    def on_main_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def begin_step(self) -> None:
        self._compute_ns = 0
        self._stack.append(_OTHER)
        self._mark(_OTHER)

    def end_step(self) -> None:
        self._stack.clear()
        self._mark(_END)
        self.last_compute_ns = self._compute_ns

    def _enter(self, code: int) -> None:
        if self._stack and self.on_main_thread():
            self._stack.append(code)
            self._mark(code)

    def _leave(self) -> None:
        if self._stack and self.on_main_thread():
            self._stack.pop()
            self._mark(self._stack[-1])

    def _mark(self, code: int) -> None:
        now = self._clock()
        if self._codes and self._codes[-1] == _COMPUTE:
            self._compute_ns += now - self._times[-1]
        self._times.append(now)
        self._cpu.append(self._cpu_clock())
        self._codes.append(code)

    def trace(self) -> RankTrace:
        """What was recorded, as arrays. Call it between steps."""
        return self._tiled(np.array(self._times, dtype=np.int64), np.array(self._cpu, dtype=np.int64))

    def _tiled(self, times: Int64, cpu: Int64) -> RankTrace:
        """`times`, `cpu`: of each mark."""
        codes = np.array(self._codes, dtype=np.int64)
        ends = np.flatnonzero(codes == _END)
        begins = np.concatenate(([0], ends[:-1] + 1)).astype(np.int64)[: len(ends)]
        kept = np.flatnonzero(codes != _END)
        kept = kept[kept < len(times) - 1]
        is_wait = codes[kept] >= _FIRST_WAIT
        return RankTrace(
            step_begin=times[begins],
            step_end=times[ends],
            starts=times[kept],
            ends=times[kept + 1],
            labels=np.where(is_wait, _CODES["wait"], codes[kept]).astype(np.int8),
            cpu_ns=cpu[kept + 1] - cpu[kept],
            lanes=np.where(is_wait, codes[kept] - _FIRST_WAIT, -1).astype(np.int16),
        )


def marker_cost_ns(of: Timeline, spans: int = 200, steps: int = 20) -> float:
    """Nanoseconds that one mark of such a timeline costs the host: the best of some steps of so many spans."""
    best = float("inf")
    scratch = of.scratch()
    for _ in range(steps):
        scratch.begin_step()
        start = time.perf_counter_ns()
        for _ in range(spans):
            with scratch.strategy:
                pass
        best = min(best, (time.perf_counter_ns() - start) / (2 * spans))
        scratch.end_step()
    return best
