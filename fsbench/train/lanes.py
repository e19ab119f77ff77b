"""Lanes: one process group and one first-in-first-out queue each.

On gloo a thread of its own drains a lane's queue, so that its operations run beside compute. On NCCL operations are
issued at once by the caller, in the order of the calls, and run on the communicator's stream.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from fsbench.axes import LaneSpec, WaitClass
from fsbench.collect import recorder
from fsbench.collect.cpu import cpu_ns, native_threads
from fsbench.collect.timeline import Timeline
from fsbench.lane_order import ordered
from fsbench.launch.activity import Activity

# torch's stubs do not know subclassing in Python.
_c10d: Any = dist


@dataclass
class Issued:
    """A job's result that is ready once `work` is: what a job on an NCCL lane returns."""

    result: Any
    work: Any


class LaneHandle:
    """One job of a lane. `wait` returns its result or raises its error."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def _run(self, job: Callable[[], Any], kind: str, *, finish: bool) -> None:
        log = self._lane.log
        outer, log.kind = log.kind, kind
        try:
            self._result = job()
            if finish:
                self._finish()
        except BaseException as error:
            self._error = error
        finally:
            log.kind = outer
            self._done.set()

    def _finish(self) -> None:
        if isinstance(self._result, Issued):
            self._result.work.wait()
            self._result = self._result.result

    def wait(self) -> Any:
        timeline = self._lane.timeline
        if timeline.on_main_thread():
            with timeline.wait(self._lane.name):
                self._done.wait()
        else:
            self._done.wait()
        if self._error is not None:
            raise self._error
        self._finish()
        return self._result


class QueuedWork(_c10d.Work):
    """The work of an operation that waits for its turn in a lane's queue. Waits are those of the lane.

    Libraries ask whether what they got is torch's `Work`, and silently do not wait for anything else.
    """

    def __init__(self, handle: LaneHandle) -> None:
        super().__init__()
        self._handle = handle

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._handle.wait()
        return True


class Lane:
    """Submit jobs; each may issue operations on `group`. Every rank submits the same jobs in the same order."""

    collective: ClassVar[bool] = True
    """Whether all ranks have a part in it. If not, it is between this rank and a server."""

    def __init__(self, spec: LaneSpec, group: Any, timeline: Timeline) -> None:
        self.name = spec.name
        self.spec = spec
        self.group = group
        self.timeline = timeline
        self.log: recorder.OperationLog = group.log
        self.threads: frozenset[int] = frozenset()
        """Native IDs of the threads that work for this lane alone: its own, and its process group's."""

    def submit(self, job: Callable[[], Any], *, kind: str) -> LaneHandle:
        """Queues `job`. `kind` names what its bytes are; jobs submitted inside a job run at once, in its place."""
        handle = LaneHandle(self)
        handle._run(job, kind, finish=False)
        return handle

    @contextlib.contextmanager
    def lent(self, kind: str) -> Iterator[Any]:
        """The group, for a library whose operations are its own: inside, what the calling thread issues on it is
        `kind`, takes its turn in the lane, and is waited for as jobs are."""
        outer, self.log.kind = self.log.kind, kind
        try:
            yield self.group
        finally:
            self.log.kind = outer

    def cpu_ns(self) -> int | None:
        """CPU time so far of the threads that work for this lane; None where the system does not tell."""
        return cpu_ns(self.threads)

    def close(self) -> None:
        """Ends the lane's thread after the jobs that are queued."""


class ThreadedLane(Lane):
    """A lane whose queue is drained by a thread of its own."""

    def __init__(self, spec: LaneSpec, group: Any, timeline: Timeline) -> None:
        super().__init__(spec, group, timeline)
        self._queue: queue.SimpleQueue[tuple[LaneHandle, Callable[[], Any], str] | None] = queue.SimpleQueue()
        self._lent_as = "other"
        self._thread = threading.Thread(target=self._drain, name=f"lane-{spec.name}", daemon=True)
        self._thread.start()
        group.in_turn = self._in_turn

    def submit(self, job: Callable[[], Any], *, kind: str) -> LaneHandle:
        handle = LaneHandle(self)
        if threading.current_thread() is self._thread:
            handle._run(job, kind, finish=True)
        else:
            self._queue.put((handle, job, kind))
        return handle

    @contextlib.contextmanager
    def lent(self, kind: str) -> Iterator[Any]:
        # The log's own kind is the lane's thread's, which may be at another job.
        outer, self._lent_as = self._lent_as, kind
        try:
            yield self.group
        finally:
            self._lent_as = outer

    def _in_turn(self, operation: Callable[[], Any]) -> Any:
        """Carries out an operation that was issued on the group: at once inside a job, else as one."""
        if threading.current_thread() is self._thread:
            return operation()
        return QueuedWork(self.submit(operation, kind=self._lent_as))

    def _drain(self) -> None:
        while (item := self._queue.get()) is not None:
            handle, job, kind = item
            handle._run(job, kind, finish=True)
            # The last handle would otherwise keep its tensors alive until the next job.
            del item, handle, job

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()


def open_lanes(
    wanted: Iterable[LaneSpec],
    timeline: Timeline,
    device: torch.device,
    timeout: timedelta,
    host_classes: Collection[WaitClass] = (),
    activity: Activity | None = None,
) -> dict[str, Lane]:
    """Creates the groups of all lanes, in the same order on every rank: fixed ones first, then by name.

    `host_classes`: lanes of these classes run on gloo whatever the device, as those declared `host` do.
    """
    lanes: dict[str, Lane] = {}
    for spec in ordered(wanted):
        on_host = spec.host or device.type == "cpu" or spec.waits_as in host_classes
        backend = recorder.GLOO if on_host else recorder.NCCL
        before = native_threads()
        group = dist.new_group(backend=backend, timeout=timeout)
        recorder.watch(group, spec.name, activity)
        lane = (ThreadedLane if on_host else Lane)(spec, group, timeline)
        lane.threads = native_threads() - before
        lanes[spec.name] = lane
    return lanes
