"""FreeScale's communication without streaming multiprocessors (arXiv 2604.24073, section on SM-free communication)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fsbench.axes import Collectives, Handle, RankContext
from fsbench.errors import FsbenchError
from fsbench.options import ByteSize
from fsbench_strategies.collectives.backend import Backend

if TYPE_CHECKING:
    import torch

    from fsbench.sim.contract import CollectivesPlan
    from fsbench.sim.plan import Script
    from fsbench.train.lanes import Lane
    from fsbench_strategies.collectives.staging import Stager

_CHUNK = ByteSize(2**22)


class HostStaged(Collectives):
    """All-to-all and all-gather through host memory, in chunks, by copy engines and the CPU; sums by the backend.

    A chunk goes from the device into a host buffer, over a CPU process group into the host buffers of the other ranks,
    and on to their devices: copy engines and CPUs do all of it, and compute keeps every multiprocessor. The three
    stages of neighbouring chunks overlap. As published the CPUs drive RDMA; here they drive gloo's sockets.

    Tensors in host memory take the same way, with a thread in the place of the copy engines, so that the cost of
    staging is part of what is measured. What a rank keeps passes no buffer.
    """

    on_host = frozenset({"embedding", "shuffle", "control"})

    @dataclass(frozen=True)
    class Options:
        """`chunk`: a rank puts no more than this on the wire at once, to all others together. `buffers`: for so many
        chunks, each way; with one, copies and wire take turns."""

        chunk: ByteSize = _CHUNK
        buffers: int = 2

        def __post_init__(self) -> None:
            if self.chunk < 1:
                raise ValueError("chunk must be at least 1 byte")
            if self.buffers < 1:
                raise ValueError("buffers must be at least 1")

    options: Options

    def setup(self, context: RankContext) -> None:
        super().setup(context)
        self._backend = Backend()
        self._stagers: dict[tuple[str, str], Stager] = {}
        self._most = self._at_once(context.ranks)

    def _at_once(self, ranks: int) -> int:
        """Bytes from one rank to another at once: the buffers do not grow with the number of ranks."""
        return max(1, self.options.chunk // max(1, ranks - 1))

    def all_to_all(
        self,
        lane: Lane,
        send: torch.Tensor,
        send_splits: Sequence[int],
        receive_splits: Sequence[int],
        *,
        largest_split: int,
        kind: str,
    ) -> Handle[torch.Tensor]:
        from fsbench_strategies.collectives import staged

        move = partial(staged.all_to_all, largest_split=largest_split)
        return self._submit(lane, kind, move, send, send_splits, receive_splits)

    def all_gather(self, lane: Lane, tensor: torch.Tensor, *, kind: str) -> Handle[torch.Tensor]:
        from fsbench_strategies.collectives import staged

        return self._submit(lane, kind, staged.all_gather, tensor)

    def all_reduce(self, lane: Lane, tensor: torch.Tensor, *, kind: str) -> Handle[torch.Tensor]:
        return self._backend.all_reduce(lane, tensor, kind=kind)

    def _submit(
        self, lane: Lane, kind: str, move: Callable[..., torch.Tensor], operand: torch.Tensor, *splits: Sequence[int]
    ) -> Handle[torch.Tensor]:
        from fsbench_strategies.collectives.copiers import mark

        # On a GPU the operand is ready when the caller's stream gets here; the job, on another thread, could not tell.
        packed = operand.detach().contiguous()
        ready = mark(packed)

        def job() -> torch.Tensor:
            stager = self._stager(lane, packed.device)
            return move(stager, lane.group, packed, *splits, most=self._most, ready=ready)

        return lane.submit(job, kind=kind)

    def _stager(self, lane: Lane, device: torch.device) -> Stager:
        """The lane's own, made by its first job: only the thread that runs its jobs asks."""
        from fsbench.collect import recorder
        from fsbench_strategies.collectives.staging import Stager

        if lane.group.getBackendName() == recorder.NCCL:
            raise FsbenchError(
                f"collectives host-staged: lane {lane.name} runs on NCCL, which moves nothing in host memory; "
                f"valid: lanes declared with host=True or of class {', '.join(sorted(self.on_host))}"
            )
        key = lane.name, device.type
        if key not in self._stagers:
            self._stagers[key] = Stager(lane.name, device, self.options.buffers)
        return self._stagers[key]

    def plan(self, script: Script) -> CollectivesPlan:
        from fsbench_strategies.collectives.plans import HostStagedPlan

        most, piece = self._at_once(script.ranks), Backend.Options().piece
        return HostStagedPlan(script, piece=piece, most=most, buffers=self.options.buffers)

    def evidence(self) -> Mapping[str, Any]:
        stagers = list(self._stagers.values())
        return {
            "through_host": ["all_gather", "all_to_all"],
            "by_backend": ["all_reduce"],
            "copies_by": sorted({stager.copier for stager in stagers}),
            "chunks": sum(stager.chunks for stager in stagers),
            "staged_bytes": sum(stager.bytes for stager in stagers),
            "buffer_bytes": sum(stager.buffer_bytes for stager in stagers),
        }

    def close(self) -> None:
        for stager in self._stagers.values():
            stager.close()
