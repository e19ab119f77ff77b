"""Collectives of the process group's own backend: gloo on CPU, NCCL on CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsbench.axes import Collectives, Engine, Handle, NcclOptions, RankContext
from fsbench.errors import Unsupported
from fsbench.options import ByteSize

if TYPE_CHECKING:
    import torch

    from fsbench.train.lanes import Lane


_PIECE = ByteSize(2**24)


class Backend(Collectives):
    """The backend's own collectives (gloo, NCCL), large exchanges in pieces.

    Pieces bound the buffers that an exchange holds, and apply to every strategy alike, so that none wins by them. On
    gloo the all-to-all is `fsbench.collect.gloo`'s, which uses both directions of a link at once.
    """

    @dataclass(frozen=True)
    class Options:
        """`piece`: no rank sends another more than this at once; exchanges with larger splits go in rounds.
        `sm_limit`: the most multiprocessors of a GPU that an operation of NCCL may take; none: as many as it likes."""

        piece: ByteSize = _PIECE
        sm_limit: int | None = None

        def __post_init__(self) -> None:
            if self.piece < 1:
                raise ValueError("piece must be at least 1 byte")
            if self.sm_limit is not None and self.sm_limit < 1:
                raise ValueError("sm_limit must be at least 1")

    options: Options

    def requirements(self) -> str | None:
        from fsbench_strategies.collectives import needs

        return needs.of_sm_limit(needs.look()) if self.options.sm_limit is not None else None

    def setup(self, context: RankContext) -> None:
        """Raises:
        Unsupported: a limit on multiprocessors is asked for, and the ranks have none.
        """
        super().setup(context)
        if self.options.sm_limit is not None and context.device.type != "cuda":
            raise Unsupported("collectives backend: sm_limit needs a GPU for each rank, there are fewer than ranks")

    def nccl(self) -> NcclOptions:
        return NcclOptions(sm_limit=self.options.sm_limit)

    def engines(self) -> Mapping[str, Engine]:
        return dict.fromkeys(("all_to_all", "all_gather", "all_reduce"), "multiprocessors")

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
        from fsbench_strategies.collectives import exchange

        row_bytes = max(1, _row_bytes(send))
        rows_a_piece = max(1, self.options.piece // row_bytes)
        if largest_split <= rows_a_piece:
            return lane.submit(lambda: exchange.whole(lane.group, send, send_splits, receive_splits), kind=kind)
        return lane.submit(
            lambda: exchange.in_pieces(lane.group, send, send_splits, receive_splits, rows_a_piece, largest_split),
            kind=kind,
        )

    def all_gather(self, lane: Lane, tensor: torch.Tensor, *, kind: str) -> Handle[torch.Tensor]:
        from fsbench_strategies.collectives import exchange

        return lane.submit(lambda: exchange.all_gather(lane.group, tensor), kind=kind)

    def all_reduce(self, lane: Lane, tensor: torch.Tensor, *, kind: str) -> Handle[torch.Tensor]:
        from fsbench_strategies.collectives import exchange

        return lane.submit(lambda: exchange.all_reduce(lane.group, tensor), kind=kind)


def _row_bytes(tensor: torch.Tensor) -> int:
    size = tensor.element_size()
    for length in tensor.shape[1:]:
        size *= length
    return size
