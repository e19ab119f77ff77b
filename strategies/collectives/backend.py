"""Collectives of the process group's own backend: gloo on CPU, NCCL on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsbench.axes import Collectives, Handle
from fsbench.options import ByteSize

if TYPE_CHECKING:
    import torch

    from fsbench.sim.contract import CollectivesPlan
    from fsbench.sim.plan import Script
    from fsbench.train.lanes import Lane


_PIECE = ByteSize(2**24)


class Backend(Collectives):
    """The backend's own collectives (gloo, NCCL), large exchanges in pieces.

    Pieces bound the buffers that an exchange holds, and apply to every strategy alike, so that none wins by them. On
    gloo the all-to-all is `fsbench.collect.gloo`'s, which uses both directions of a link at once.
    """

    @dataclass(frozen=True)
    class Options:
        """`piece`: no rank sends another more than this at once; exchanges with larger splits go in rounds."""

        piece: ByteSize = _PIECE

        def __post_init__(self) -> None:
            if self.piece < 1:
                raise ValueError("piece must be at least 1 byte")

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

    def plan(self, script: Script) -> CollectivesPlan:
        from fsbench_strategies.collectives.plans import BackendPlan

        return BackendPlan(script, self.options.piece)


def _row_bytes(tensor: torch.Tensor) -> int:
    size = tensor.element_size()
    for length in tensor.shape[1:]:
        size *= length
    return size
