"""What really moved: a process group that writes down every operation before it passes it on.

It knows no strategy and no plan. Each lane's group is one of these, so that operations, bytes and arrival times are
observed where tensors enter the process group, whoever issued them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch.distributed as dist

from fsbench.collect.gloo import DuplexGloo
from fsbench.metrics.trace import LaneOps

# torch's stubs know neither subclassing in Python nor all of the option types.
_c10d: Any = dist

GLOO = "fsbench-gloo"
NCCL = "fsbench-nccl"


class OperationLog:
    """Operations of one lane on one rank, in issue order: the position is the sequence number.

    `host`: the ranks of this rank's host, itself included. What goes to them crosses no link between hosts.
    """

    def __init__(self, host: range) -> None:
        self.host = host
        self.kind = "other"
        """What the bytes of the operations to come are; set by the lane."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._bytes: list[int] = []
        self._crossing: list[int] = []
        self._kinds: list[str] = []
        self._names: list[str] = []

    def begin(self, name: str, bytes_sent: int, crossing: int) -> None:
        self._names.append(name)
        self._kinds.append(self.kind)
        self._bytes.append(bytes_sent)
        self._crossing.append(crossing)
        self._starts.append(time.monotonic_ns())
        self._ends.append(self._starts[-1])

    def end(self) -> None:
        self._ends[-1] = time.monotonic_ns()

    def clear(self) -> None:
        for column in (self._starts, self._ends, self._bytes, self._crossing, self._kinds, self._names):
            column.clear()

    def crossing(self) -> tuple[int, int]:
        """Bytes that left this rank for other hosts, and in how many operations it sent them."""
        return sum(self._crossing), len(self._crossing)

    def operations(self) -> dict[str, int]:
        """How many operations of each name (`all_to_all rows`) were issued."""
        counts: dict[str, int] = {}
        for name, kind in zip(self._names, self._kinds, strict=True):
            counts[f"{name} {kind}"] = counts.get(f"{name} {kind}", 0) + 1
        return counts

    def sent(self) -> dict[str, int]:
        """Bytes by kind."""
        totals: dict[str, int] = {}
        for kind, size in zip(self._kinds, self._bytes, strict=True):
            totals[kind] = totals.get(kind, 0) + size
        return totals

    def sequence(self) -> list[tuple[str, str, int]]:
        """Name, kind and bytes of each operation, in issue order."""
        # A background lane may be adding to them.
        return list(zip(self._names, self._kinds, self._bytes, strict=False))

    def arrays(self, kinds: Sequence[str]) -> LaneOps:
        """As arrays; `kinds` gives the code of each kind."""
        code = {kind: i for i, kind in enumerate(kinds)}
        return LaneOps(
            starts=np.array(self._starts, dtype=np.int64),
            ends=np.array(self._ends, dtype=np.int64),
            bytes_sent=np.array(self._bytes, dtype=np.int64),
            kinds=np.array([code[kind] for kind in self._kinds], dtype=np.int16),
        )

    def kinds(self) -> set[str]:
        return set(self._kinds)


class RecordedGroup(_c10d.ProcessGroup):
    """Passes every operation on to `inner` and logs its name, wire bytes, arrival and end.

    Bytes are those this rank sends to other ranks: an all-to-all's blocks for the others, (n - 1) times its own
    block for an all-gather, 2 (n - 1) / n of the tensor for an all-reduce (ring).

    `blocking`: operations return when they are done, so that their end is known. A lane's thread has nothing else
    to do meanwhile. Off for NCCL, whose operations end on a stream.
    """

    def __init__(self, inner: Any, rank: int, size: int, *, blocking: bool) -> None:
        super().__init__(rank, size)
        self.log = OperationLog(range(rank, rank + 1))
        self._inner = inner
        self._blocking = blocking

    def getBackendName(self) -> str:
        return GLOO if self._blocking else NCCL

    def _run(self, name: str, bytes_sent: int, crossing: int, issue: Any) -> Any:
        self.log.begin(name, bytes_sent, crossing)
        work = issue()
        if self._blocking:
            work.wait()
            self.log.end()
        return work

    def _ring(self, name: str, bytes_sent: int, issue: Any) -> Any:
        sends_out = self._crosses and self.rank() == self.log.host.start
        return self._run(name, bytes_sent, bytes_sent if sends_out else 0, issue)

    @property
    def _crosses(self) -> bool:
        return len(self.log.host) < self.size()

    def alltoall_base(self, output: Any, operand: Any, output_splits: Any, input_splits: Any, opts: Any = None) -> Any:
        splits = input_splits or [operand.shape[0] // self.size()] * self.size()
        row_bytes = _bytes(operand) // max(1, operand.shape[0])
        host = self.log.host
        opts = opts or _c10d.AllToAllOptions()
        return self._run(
            "all_to_all",
            _bytes(operand) - splits[self.rank()] * row_bytes,
            (sum(splits[: host.start]) + sum(splits[host.stop :])) * row_bytes,
            lambda: self._inner.alltoall_base(output, operand, output_splits, input_splits, opts),
        )

    def _allgather_base(self, output: Any, operand: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.AllgatherOptions()
        return self._ring(
            "all_gather",
            _bytes(operand) * (self.size() - 1),
            lambda: self._inner._allgather_base(output, operand, opts),
        )

    # torch 2.13 calls these operations by new names; both lead to the same place.
    all_gather_single = _allgather_base
    all_to_all_single = alltoall_base

    def allgather(self, outputs: Any, operands: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.AllgatherOptions()
        return self._ring(
            "all_gather",
            sum(map(_bytes, operands)) * (self.size() - 1),
            lambda: self._inner.allgather(outputs, operands, opts),
        )

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.AllreduceOptions()
        return self._ring(
            "all_reduce",
            2 * sum(map(_bytes, tensors)) * (self.size() - 1) // self.size(),
            lambda: self._inner.allreduce(tensors, opts),
        )

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.BroadcastOptions()
        size = sum(map(_bytes, tensors)) if opts.rootRank == self.rank() else 0
        return self._run(
            "broadcast",
            size * (self.size() - 1),
            size if self._crosses else 0,
            lambda: self._inner.broadcast(tensors, opts),
        )

    def barrier(self, opts: Any = None) -> Any:
        opts = opts or _c10d.BarrierOptions()
        return self._run("barrier", 0, 0, lambda: self._inner.barrier(opts))

    def send(self, tensors: Any, destination: int, tag: int = 0) -> Any:
        issue = lambda: self._inner.send(tensors, destination, tag)  # noqa: E731
        size = sum(map(_bytes, tensors))
        return self._run("send", size, 0 if destination in self.log.host else size, issue)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        return self._run("receive", 0, 0, lambda: self._inner.recv(tensors, source, tag))


def _bytes(tensor: Any) -> int:
    return tensor.numel() * tensor.element_size()


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> RecordedGroup:
    return RecordedGroup(DuplexGloo(store, rank, size, timeout), rank, size, blocking=True)


def _nccl(store: Any, rank: int, size: int, timeout: timedelta) -> RecordedGroup:
    opts = dist.ProcessGroupNCCL.Options()
    opts._timeout = timeout
    return RecordedGroup(dist.ProcessGroupNCCL(store, rank, size, opts), rank, size, blocking=False)


def register_backends() -> None:
    """Makes the recorded backends known to torch.distributed. Calling it again does nothing."""
    if GLOO not in dist.Backend.backend_list:
        dist.Backend.register_backend(GLOO, _gloo, devices=["cpu"])
        dist.Backend.register_backend(NCCL, _nccl, devices=["cuda"])
