"""Between a rank and a server process: a pair of two, on which the rank asks and the server answers.

No other rank has a part in it: whoever waits here waits for the server, and for what other ranks asked it before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fsbench.axes import Handle, LaneSpec
from fsbench.collect.cpu import native_threads
from fsbench.collect.gloo import DuplexGloo
from fsbench.collect.memory import peak_rss_mib
from fsbench.collect.operations import OperationLog
from fsbench.collect.recorder import RecordedGroup, size_of
from fsbench.collect.timeline import Timeline, Timelines
from fsbench.errors import FsbenchError
from fsbench.launch.activity import REQUESTS, Activity
from fsbench.roles import ServerProcess
from fsbench.train.lanes import ThreadedLane

# torch's stubs do not know what is not public.
_c10d: Any = dist

T = TypeVar("T")
MOST_NUMBERS = 4
"""Of a request."""
_RANK, _SERVER = 0, 1
_ENDS, _MEMORY = -1, -2


class RecordedPair(RecordedGroup):
    """A rank and a server. Servers keep no record, so that what the rank receives is counted as what it sends is."""

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        issue = lambda: self._inner.recv(tensors, source, tag)  # noqa: E731
        return self._run("receive", sum(map(size_of, tensors)), 0, issue)


class Channel:
    """One end of a pair. What one end sends the other receives, in this order, and knows its shape. In host memory.

    `kind`: what the bytes are, for the record.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._peer = 1 - group.rank()

    @property
    def log(self) -> OperationLog:
        """What this end sent and received."""
        log: OperationLog = self._group.log
        return log

    def request(self, *numbers: int) -> None:
        """A rank's request: up to `MOST_NUMBERS` integers, whose meaning is the strategy's."""
        if not 1 <= len(numbers) <= MOST_NUMBERS:
            raise FsbenchError(f"a request of {len(numbers)} numbers; expected 1 to {MOST_NUMBERS}")
        self._head(len(numbers), numbers)

    def end(self) -> None:
        """A rank's last word."""
        self._head(_ENDS, ())

    def peak_rss_mib(self) -> float:
        """A rank's request, which the server's end answers by itself: the peak memory of its process."""
        self._head(_MEMORY, ())
        return float(self.receive((1,), torch.float64, kind="state"))

    def next_request(self) -> list[int] | None:
        """A rank's next request, at its server; None after the last."""
        length, *numbers = self.receive((1 + MOST_NUMBERS,), torch.int64, kind=REQUESTS).tolist()
        while length == _MEMORY:
            self.send(torch.tensor([peak_rss_mib()], dtype=torch.float64), kind="state")
            length, *numbers = self.receive((1 + MOST_NUMBERS,), torch.int64, kind=REQUESTS).tolist()
        return None if length == _ENDS else numbers[:length]

    def send(self, tensor: torch.Tensor, *, kind: str) -> None:
        """Nothing is sent of a tensor without elements."""
        if tensor.numel():
            self._carry(kind, lambda: self._group.send([tensor.contiguous()], self._peer, 0))

    def receive(self, shape: Sequence[int], dtype: torch.dtype, *, kind: str) -> torch.Tensor:
        tensor = torch.empty(tuple(shape), dtype=dtype)
        if tensor.numel():
            self._carry(kind, lambda: self._group.recv([tensor], self._peer, 0))
        return tensor

    def _head(self, length: int, numbers: Sequence[int]) -> None:
        padding = [0] * (MOST_NUMBERS - len(numbers))
        self.send(torch.tensor([length, *numbers, *padding], dtype=torch.int64), kind=REQUESTS)

    def _carry(self, kind: str, issue: Any) -> None:
        outer, self.log.kind = self.log.kind, kind
        try:
            issue()
        finally:
            self.log.kind = outer


class ServerLane(ThreadedLane):
    """A rank's queue of jobs with one server. Other ranks have nothing to do with it."""

    collective = False

    def __init__(self, spec: LaneSpec, pair: RecordedPair, timeline: Timeline | Timelines) -> None:
        super().__init__(spec, pair, timeline)
        self._channel = Channel(pair)

    def ask(self, job: Callable[[Channel], T], *, kind: str) -> Handle[T]:
        """Queues `job`, which has the channel for itself: a request, and what belongs to it."""
        return self.submit(partial(job, self._channel), kind=kind)

    def peak_rss_mib(self) -> float:
        """Of the server's process."""
        return self.ask(Channel.peak_rss_mib, kind="state").wait()

    def close(self) -> None:
        self.ask(Channel.end, kind=REQUESTS)
        super().close()


def meeting_point() -> Any:
    """The store at which the ranks of the default group met."""
    return _c10d.distributed_c10d._get_default_store()


class Pairs:
    """Makes pairs. Both ends meet at `store`; a worker asks its servers, and a server its workers, in the order of
    their numbers. Where a server knows ranks only (`ServerProcess.of_workers`), the first worker is the rank's."""

    def __init__(
        self, store: Any, ranks: int, timeout: timedelta, activity: Activity | None = None, workers: int = 1
    ) -> None:
        self._store = store
        self._ranks = ranks
        self._timeout = timeout
        self._activity = activity
        self._workers = workers

    def lanes(
        self, servers: Iterable[ServerProcess], rank: int, timeline: Timeline | Timelines, worker: int = 0
    ) -> dict[str, list[ServerLane]]:
        """A worker's lanes to all servers that know it, by role."""
        lanes: dict[str, list[ServerLane]] = {}
        for number, server in enumerate(servers, start=self._ranks):
            if worker and not server.of_workers:
                continue
            spec = LaneSpec(server.lane, server.waits_as, host=True)
            before = native_threads()
            lane = ServerLane(spec, self._pair(server, rank, worker, _RANK, number), timeline)
            lane.threads = native_threads() - before
            lanes.setdefault(server.role, []).append(lane)
        return lanes

    def channels(self, server: ServerProcess, number: int) -> list[Channel]:
        """A server's, by rank, and by worker where it knows them. `number`: of its process."""
        workers = range(self._workers if server.of_workers else 1)
        return [
            Channel(self._pair(server, rank, worker, _SERVER, number))
            for rank in range(self._ranks)
            for worker in workers
        ]

    def _pair(self, server: ServerProcess, rank: int, worker: int, end: int, number: int) -> RecordedPair:
        name = f"{server.lane} of rank {rank}"
        if server.of_workers and self._workers > 1:
            name = f"{name}, worker {worker}"
        gloo = DuplexGloo(dist.PrefixStore(f"pair/{name}", self._store), end, 2, self._timeout)
        pair = RecordedPair(gloo, end, 2, blocking=True)
        pair.log.lane = name
        pair.log.activity = self._activity.lane(name, (rank, number)) if self._activity else None
        return pair
