"""Exchanges between GPUs by their copy engines: compute keeps every multiprocessor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fsbench.axes import Collectives, Engine, Handle, NcclOptions, RankContext
from fsbench.errors import FsbenchError, Unsupported
from fsbench_strategies.collectives.backend import Backend

if TYPE_CHECKING:
    import torch

    from fsbench.train.lanes import Lane
    from fsbench_strategies.collectives.engines import Engine


class CopyEngine(Collectives):
    """All-to-all and all-gather by the GPUs' copy engines; sums by the backend, on multiprocessors.

    Copy engines cannot add: an all-reduce stays with NCCL. Lanes in host memory (metadata, samples) stay with gloo.
    What really moved the bytes is not known here, for NCCL falls back without a word: a profiled run tells.
    """

    @dataclass(frozen=True)
    class Options:
        """`by`: `nccl`, its zero-CTA policy, where uneven exchanges are padded to their largest split; or `peers`,
        each rank copying out of the memory of the others, which must be on its host."""

        by: Literal["nccl", "peers"] = "nccl"

    options: Options

    def requirements(self) -> str | None:
        from fsbench_strategies.collectives import needs

        return needs.of_copy_engines(needs.look(), by_nccl=self.options.by == "nccl")

    def nccl(self) -> NcclOptions:
        return NcclOptions(zero_cta=self.options.by == "nccl")

    def engines(self) -> Mapping[str, Engine]:
        return {"all_to_all": "copy engines", "all_gather": "copy engines", "all_reduce": "multiprocessors"}

    def setup(self, context: RankContext) -> None:
        """Raises:
        Unsupported: the ranks have no GPU each.
        """
        super().setup(context)
        if context.device.type != "cuda":
            raise Unsupported("collectives copy-engine: needs a GPU for each rank, there are fewer than ranks")
        self._backend = Backend()
        self._engines: dict[str, Engine] = {}

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
        if lane.spec.host:
            return self._backend.all_to_all(
                lane, send, send_splits, receive_splits, largest_split=largest_split, kind=kind
            )
        packed = send.detach().contiguous()
        return lane.submit(
            lambda: self._engine(lane).all_to_all(packed, send_splits, receive_splits, largest_split), kind=kind
        )

    def all_gather(self, lane: Lane, tensor: torch.Tensor, *, kind: str) -> Handle[torch.Tensor]:
        if lane.spec.host:
            return self._backend.all_gather(lane, tensor, kind=kind)
        packed = tensor.detach().contiguous()
        return lane.submit(lambda: self._engine(lane).all_gather(packed), kind=kind)

    def all_reduce(self, lane: Lane, tensor: torch.Tensor, *, kind: str) -> Handle[torch.Tensor]:
        return self._backend.all_reduce(lane, tensor, kind=kind)

    def _engine(self, lane: Lane) -> Engine:
        """The lane's own, made by its first operation, which is the same on every rank."""
        if lane.name not in self._engines:
            self._engines[lane.name] = self._open(lane)
        return self._engines[lane.name]

    def _open(self, lane: Lane) -> Engine:
        from fsbench_strategies.collectives.engines import ByNccl, ByPeers
        from fsbench_strategies.collectives.symmetric import introduce

        by_nccl, device = self.options.by == "nccl", self.context.device
        try:
            with lane.lent("setup"):
                symm = introduce(lane.group, device, "NCCL" if by_nccl else "CUDA")
        except RuntimeError as error:
            raise FsbenchError(f"collectives copy-engine: no symmetric memory for lane {lane.name}: {error}") from error
        return (ByNccl if by_nccl else ByPeers)(symm, lane.group, device)

    def evidence(self) -> Mapping[str, Any]:
        engines = list(self._engines.values())
        moved = sum(engine.moved_bytes for engine in engines)
        return {
            "asked": dict(self.engines()),
            "by": self.options.by,
            "moved_bytes": moved,
            "padded_share": sum(engine.padded_bytes for engine in engines) / moved if moved else None,
            "buffer_bytes": sum(engine.buffer_bytes for engine in engines),
        }

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()
