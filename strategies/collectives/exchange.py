"""torch.distributed calls behind `backend`: each starts an operation and returns what a lane waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fsbench.samples import ranges
from fsbench.train.lanes import Issued

# The name changed in torch 2.13; the old one warns there.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def whole(group: Any, send: torch.Tensor, send_splits: Sequence[int], receive_splits: Sequence[int]) -> Issued:
    """One all-to-all with uneven splits (rows)."""
    received = send.new_empty(sum(receive_splits), *send.shape[1:])
    work = dist.all_to_all_single(
        received, send.contiguous(), list(receive_splits), list(send_splits), group=group, async_op=True
    )
    return Issued(received, work)


def in_pieces(
    group: Any,
    send: torch.Tensor,
    send_splits: Sequence[int],
    receive_splits: Sequence[int],
    rows_a_piece: int,
    largest_split: int,
) -> torch.Tensor:
    """The same exchange in rounds of at most `rows_a_piece` rows from any rank to any other."""
    received = send.new_empty(sum(receive_splits), *send.shape[1:])
    outgoing, incoming = np.asarray(send_splits, np.int64), np.asarray(receive_splits, np.int64)
    for first in range(0, largest_split, rows_a_piece):
        out_rows, out_splits = _piece(outgoing, first, rows_a_piece, send.device)
        in_rows, in_splits = _piece(incoming, first, rows_a_piece, send.device)
        issued = whole(group, send.index_select(0, out_rows), out_splits, in_splits)
        issued.work.wait()
        received.index_copy_(0, in_rows, issued.result)
    return received


def _piece(splits: np.ndarray, first: int, rows_a_piece: int, device: torch.device) -> tuple[torch.Tensor, list[int]]:
    """Rows [first, first + rows_a_piece) of each rank's block: their places and how many each rank has."""
    lengths = np.clip(splits - first, 0, rows_a_piece)
    starts = np.cumsum(splits) - splits + first
    return torch.from_numpy(ranges(starts, lengths)).to(device), lengths.tolist()


def all_gather(group: Any, tensor: torch.Tensor) -> Issued:
    """Equal shapes from all ranks to [ranks, *shape]."""
    gathered = tensor.new_empty(group.size(), *tensor.shape)
    flat, operand = (gathered.flatten(0, 1), tensor) if tensor.dim() else (gathered, tensor.view(1))
    return Issued(gathered, _all_gather_single(flat, operand.contiguous(), group=group, async_op=True))


def equal(group: Any, received: torch.Tensor, sent: torch.Tensor) -> Any:
    """One all-to-all with equal splits, whose results go to memory that the caller chose; its work."""
    return dist.all_to_all_single(received, sent, group=group, async_op=True)


def gathered(group: Any, received: torch.Tensor, sent: torch.Tensor) -> Any:
    """The same of an all-gather: [n] of every rank to [ranks * n]."""
    return _all_gather_single(received, sent, group=group, async_op=True)


def all_reduce(group: Any, tensor: torch.Tensor) -> Issued:
    """Sum over ranks, in place."""
    return Issued(tensor, dist.all_reduce(tensor, group=group, async_op=True))
