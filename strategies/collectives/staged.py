"""The operations behind `host-staged`: what goes through a lane's host buffers, and which bytes are whose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fsbench.errors import FsbenchError
from fsbench_strategies.collectives.chunks import cut
from fsbench_strategies.collectives.copiers import Mark
from fsbench_strategies.collectives.staging import Stager, Transfer


def all_to_all(
    stager: Stager,
    group: Any,
    send: torch.Tensor,
    send_splits: Sequence[int],
    receive_splits: Sequence[int],
    *,
    largest_split: int,
    most: int,
    ready: Mark | None,
) -> torch.Tensor:
    """Consecutive blocks of rows of `send`, contiguous, to ranks 0, 1, ...; at most `most` bytes from rank to rank at
    once. `ready`: where `send` is complete.

    Raises:
        FsbenchError: the splits are not those of `send`, or one is larger than `largest_split`.
    """
    _check(send, send_splits, receive_splits, largest_split)
    received = stager.result(send, (sum(receive_splits), *send.shape[1:]), ready)
    source, target = _bytes(send), _bytes(received)
    row_bytes, rank = send.element_size() * math.prod(send.shape[1:]), group.rank()
    outgoing, out_starts = _blocks(send_splits, row_bytes)
    incoming, in_starts = _blocks(receive_splits, row_bytes)
    kept = source[out_starts[rank] :][: outgoing[rank]]
    stager.keep(target[in_starts[rank] :][: incoming[rank]], kept)
    outgoing[rank] = incoming[rank] = 0
    chunks = [cut(*of, most, largest_split * row_bytes) for of in ((outgoing, out_starts), (incoming, in_starts))]
    stager.run(Transfer(source, target, *chunks, wire=partial(dist.all_to_all_single, group=group)))
    return received


def all_gather(stager: Stager, group: Any, tensor: torch.Tensor, *, most: int, ready: Mark | None) -> torch.Tensor:
    """Equal shapes from all ranks, contiguous, to [ranks, *shape]; at most `most` bytes of each rank at once."""
    ranks = group.size()
    gathered = stager.result(tensor, (ranks, *tensor.shape), ready)
    source = _bytes(tensor)
    chunks = [cut(*_blocks([len(source)] * blocks, 1), most, len(source)) for blocks in (1, ranks)]

    def wire(output: torch.Tensor, operand: torch.Tensor, *_: object) -> None:
        dist.all_gather(list(output.view(ranks, len(operand))), operand, group=group)

    stager.run(Transfer(source, _bytes(gathered), *chunks, wire=wire))
    return gathered


def _check(send: torch.Tensor, send_splits: Sequence[int], receive_splits: Sequence[int], largest_split: int) -> None:
    if sum(send_splits) != len(send):
        raise FsbenchError(f"all_to_all: the splits send {sum(send_splits)} rows of {len(send)}")
    if (largest := max(*send_splits, *receive_splits)) > largest_split:
        raise FsbenchError(f"all_to_all: largest_split is {largest_split}, yet a split has {largest} rows")


def _blocks(splits: Sequence[int], row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and starts of blocks that lie end to end, in bytes: i64[ranks] each."""
    lengths = np.asarray(splits, np.int64) * row_bytes
    return lengths, np.cumsum(lengths) - lengths


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as uint8 [bytes]."""
    if not tensor.numel():
        return tensor.new_empty(0, dtype=torch.uint8)  # whatever its strides, which need not be those of a view
    return tensor.view(-1).view(torch.uint8)
