"""What really moved: a process group that writes down every operation before it passes it on.

It knows no strategy and no plan. Each lane's group is one of these, so that operations, bytes and arrival times are
observed where tensors enter the process group, whoever issued them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fsbench.axes import NcclOptions
from fsbench.collect.gloo import DuplexGloo
from fsbench.collect.matching import Matching, Meant
from fsbench.collect.operations import OperationLog
from fsbench.launch.activity import Activity
from fsbench.metrics.movers import range_name

# torch's stubs know neither subclassing in Python nor all of the option types.
_c10d: Any = dist

GLOO = "fsbench-gloo"
NCCL = "fsbench-nccl"


class RecordedGroup(_c10d.ProcessGroup):
    """Passes every operation on to `inner` and logs its name, wire bytes, arrival and end.

    Bytes are those this rank sends to other ranks: an all-to-all's blocks for the others, (n - 1) times its own
    block for an all-gather, 2 (n - 1) / n of the tensor for an all-reduce (ring).

    `blocking`: operations return when they are done, so that their end is known. A lane's thread has nothing else
    to do meanwhile. Off for NCCL, whose operations end on a stream.

    `in_turn`: what carries an operation out and returns its work; at first, whoever issued it. A lane with a queue puts
    those that other threads issue into it.
    """

    in_turn: Callable[[Callable[[], Any]], Any]

    def __init__(self, inner: Any, rank: int, size: int, *, blocking: bool) -> None:
        super().__init__(rank, size)
        self.log = OperationLog(range(rank, rank + 1))
        self._inner = inner
        self._blocking = blocking
        self._matching = Matching(size)
        self.in_turn = lambda operation: operation()

    def getBackendName(self) -> str:
        return GLOO if self._blocking else NCCL

    def _run(
        self, name: str, bytes_sent: int, crossing: int, issue: Any, *, operand: Any = None, splits: Any = None
    ) -> Any:
        """`operand`: a tensor whose type and shape must be the same on all ranks, but for its number of rows where
        `splits` says what is sent to and expected of each; None where ranks may differ in what they issue."""
        return self.in_turn(lambda: self._carry_out(name, bytes_sent, crossing, issue, operand, splits))

    def _carry_out(self, name: str, bytes_sent: int, crossing: int, issue: Any, operand: Any, splits: Any) -> Any:
        self.log.announce(name)
        if operand is not None and self._matching.due(name, self.log.kind):
            self._check(Meant.of(name, self.log.kind, operand, splits), operand.device)
        self.log.begin(name, bytes_sent, crossing)
        with self._range(name):
            work = issue()
        if self._blocking:
            work.wait()
            self.log.end()
        elif self.log.on_device:
            work = self.log.on_device.end(work, issue)
        self.log.settle()
        return work

    def _range(self, name: str) -> AbstractContextManager[Any]:
        """What a profiler sees of an operation, if there is one: all that is launched inside belongs to it."""
        if self._blocking or not torch.autograd._profiler_enabled():
            return nullcontext()
        return torch.profiler.record_function(range_name(self.log.lane, name))

    def beside(self, name: str, bytes_sent: int, issue: Callable[[], Any]) -> Any:
        """Records an operation among ranks of one host that its caller carries out past the process group."""
        return self._run(name, bytes_sent, 0, issue)

    def _check(self, meant: Meant, device: Any) -> None:
        own = meant.encode(self.size()).to(device)
        everyone = [torch.empty_like(own) for _ in range(self.size())]
        self._inner.allgather([everyone], [own]).wait()
        self._matching.require(self.log.lane, torch.stack(everyone).cpu())
        sends_out = self._crosses and self.rank() == self.log.host.start
        self.log.checked(own.numel() * (self.size() - 1) if sends_out else 0)

    def _ring(self, name: str, bytes_sent: int, issue: Any, operand: Any) -> Any:
        sends_out = self._crosses and self.rank() == self.log.host.start
        return self._run(name, bytes_sent, bytes_sent if sends_out else 0, issue, operand=operand)

    @property
    def _crosses(self) -> bool:
        return len(self.log.host) < self.size()

    def alltoall_base(self, output: Any, operand: Any, output_splits: Any, input_splits: Any, opts: Any = None) -> Any:
        splits = input_splits or [operand.shape[0] // self.size()] * self.size()
        row_bytes = size_of(operand) // max(1, operand.shape[0])
        host = self.log.host
        opts = opts or _c10d.AllToAllOptions()
        return self._run(
            "all_to_all",
            size_of(operand) - splits[self.rank()] * row_bytes,
            (sum(splits[: host.start]) + sum(splits[host.stop :])) * row_bytes,
            lambda: self._inner.alltoall_base(output, operand, output_splits, input_splits, opts),
            operand=operand,
            splits=(splits, output_splits or [output.shape[0] // self.size()] * self.size()),
        )

    def _allgather_base(self, output: Any, operand: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.AllgatherOptions()
        return self._ring(
            "all_gather",
            size_of(operand) * (self.size() - 1),
            lambda: self._inner._allgather_base(output, operand, opts),
            operand,
        )

    # torch 2.13 calls these operations by new names; both lead to the same place.
    all_gather_single = _allgather_base
    all_to_all_single = alltoall_base

    def allgather(self, outputs: Any, operands: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.AllgatherOptions()
        return self._ring(
            "all_gather",
            sum(map(size_of, operands)) * (self.size() - 1),
            lambda: self._inner.allgather(outputs, operands, opts),
            operands[0],
        )

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.AllreduceOptions()
        return self._ring(
            "all_reduce",
            2 * sum(map(size_of, tensors)) * (self.size() - 1) // self.size(),
            lambda: self._inner.allreduce(tensors, opts),
            tensors[0],
        )

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.BroadcastOptions()
        size = sum(map(size_of, tensors)) if opts.rootRank == self.rank() else 0
        return self._run(
            "broadcast",
            size * (self.size() - 1),
            size if self._crosses else 0,
            lambda: self._inner.broadcast(tensors, opts),
            operand=tensors[0],
        )

    def barrier(self, opts: Any = None) -> Any:
        opts = opts or _c10d.BarrierOptions()
        return self._run("barrier", 0, 0, lambda: self._inner.barrier(opts))

    def send(self, tensors: Any, destination: int, tag: int = 0) -> Any:
        issue = lambda: self._inner.send(tensors, destination, tag)  # noqa: E731
        size = sum(map(size_of, tensors))
        return self._run("send", size, 0 if destination in self.log.host else size, issue)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        return self._run("receive", 0, 0, lambda: self._inner.recv(tensors, source, tag))


def size_of(tensor: Any) -> int:
    """Bytes."""
    return tensor.numel() * tensor.element_size()


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> RecordedGroup:
    return RecordedGroup(DuplexGloo(store, rank, size, timeout), rank, size, blocking=True)


def _nccl(where: Any, wanted: NcclOptions) -> RecordedGroup:
    """`where`: torch's `_DistributedBackendOptions`."""
    rank, size = where.group_rank, where.group_size
    inner = _c10d.ProcessGroupNCCL(where.store, rank, size, nccl_options(wanted, where.timeout))
    group = RecordedGroup(inner, rank, size, blocking=False)
    # Symmetric memory looks for the communicator here; operations are still issued on the group itself.
    group._register_backend(torch.device("cuda"), _c10d.ProcessGroup.BackendType.NCCL, inner)
    return group


def nccl_options(wanted: NcclOptions, timeout: timedelta) -> Any:
    """As torch has them. What is not wanted stays as NCCL has it."""
    options = _c10d.ProcessGroupNCCL.Options()
    options._timeout = timeout
    if wanted.sm_limit is not None:
        options.config.max_ctas = wanted.sm_limit
    if wanted.zero_cta:
        options.config.cta_policy = _c10d.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO
    return options


def watch(group: Any, lane: str, activity: Activity | None) -> None:
    """Names a group's lane, for messages, and tells what it does to whoever watches."""
    group.log.lane = lane
    group.log.activity = activity.lane(lane) if activity else None


def register_backends() -> None:
    """Makes the recorded backends known to torch.distributed. Calling it again does nothing."""
    if GLOO not in dist.Backend.backend_list:
        dist.Backend.register_backend(GLOO, _gloo, devices=["cpu"])
        dist.Backend.register_backend(NCCL, _nccl, extended_api=True, devices=["cuda"])
