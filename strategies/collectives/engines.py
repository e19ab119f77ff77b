"""The operations behind `copy-engine`: NCCL drives the copy engines, or each rank fetches from its peers' memory.

What a rank sends to another lies in a slot of symmetric memory, `capacity` bytes long on every rank; where it lies
therefore need not be told. Each lane has slots of its own.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from fsbench.train.lanes import Issued
from fsbench_strategies.collectives import exchange
from fsbench_strategies.collectives.side_stream import SideStream
from fsbench_strategies.collectives.symmetric import SymmetricBuffer

Blocks = Sequence[torch.Tensor]
"""By rank: uint8 [bytes], contiguous."""


class Engine(ABC):
    """One lane's. `moved_bytes`: sent to other ranks; `padded_bytes`: of them, those that nobody asked for."""

    def __init__(self, symm: Any, group: Any, device: torch.device) -> None:
        self._group = group
        self._side = SideStream(device)
        self._outgoing = SymmetricBuffer(symm, group, device)
        self.moved_bytes = 0
        self.padded_bytes = 0

    @property
    def buffer_bytes(self) -> int:
        return self._outgoing.bytes

    def all_to_all(
        self, send: torch.Tensor, send_splits: Sequence[int], receive_splits: Sequence[int], largest_split: int
    ) -> Issued:
        """Consecutive blocks of rows of `send`, contiguous, to ranks 0, 1, ..."""
        row_bytes = send.element_size() * math.prod(send.shape[1:])
        with self._side.entered(send):
            received = send.new_empty(sum(receive_splits), *send.shape[1:])
            outgoing = _cut(send, [rows * row_bytes for rows in send_splits])
            incoming = _cut(received, [rows * row_bytes for rows in receive_splits])
            if capacity := largest_split * row_bytes:
                self._exchange(incoming, outgoing, capacity)
            return Issued(received, self._side.ready(received))

    def all_gather(self, tensor: torch.Tensor) -> Issued:
        """Tensors of one shape, contiguous, to [ranks, *shape]."""
        ranks = self._group.size()
        with self._side.entered(tensor):
            gathered = tensor.new_empty(ranks, *tensor.shape)
            own = _bytes(tensor)
            self._gather(_cut(gathered, [len(own)] * ranks), own)
            return Issued(gathered, self._side.ready(gathered))

    @abstractmethod
    def _exchange(self, incoming: Blocks, outgoing: Blocks, capacity: int) -> None:
        """On the side stream."""

    @abstractmethod
    def _gather(self, incoming: Blocks, own: torch.Tensor) -> None:
        """On the side stream."""

    def _count(self, moved: int, asked_for: int) -> None:
        self.moved_bytes += moved
        self.padded_bytes += moved - asked_for

    def _others(self, blocks: Blocks) -> int:
        """Bytes of all blocks but this rank's."""
        return sum(map(len, blocks)) - len(blocks[self._group.rank()])

    def close(self) -> None:
        self._side.close()


class ByNccl(Engine):
    """NCCL's collectives under its zero-CTA policy, on memory that it knows. It has none with uneven splits: all are
    padded to the largest."""

    def __init__(self, symm: Any, group: Any, device: torch.device) -> None:
        super().__init__(symm, group, device)
        self._incoming = SymmetricBuffer(symm, group, device)

    @property
    def buffer_bytes(self) -> int:
        return self._outgoing.bytes + self._incoming.bytes

    def _exchange(self, incoming: Blocks, outgoing: Blocks, capacity: int) -> None:
        ranks = len(outgoing)
        sent, _ = self._outgoing.take(ranks * capacity)
        received, _ = self._incoming.take(ranks * capacity)
        _copy(_slots(sent, outgoing, capacity), outgoing)
        exchange.equal(self._group, received, sent).wait()
        _copy(incoming, _slots(received, incoming, capacity))
        self._count((ranks - 1) * capacity, self._others(outgoing))

    def _gather(self, incoming: Blocks, own: torch.Tensor) -> None:
        sent, _ = self._outgoing.take(len(own))
        received, _ = self._incoming.take(len(incoming) * len(own))
        _copy([sent], [own])
        exchange.gathered(self._group, received, sent).wait()
        _copy(incoming, _slots(received, incoming, len(own)))
        self._count(self._others(incoming), self._others(incoming))


class ByPeers(Engine):
    """Each rank copies what is for it out of its peers' memory: uneven splits need no padding. Ranks of one host, whose
    GPUs reach each other.

    Two barriers, kernels of one thread block, stand around the copies: before the first all slots are filled, after the
    second all are read.
    """

    def _exchange(self, incoming: Blocks, outgoing: Blocks, capacity: int) -> None:
        slots, handle = self._outgoing.take(len(outgoing) * capacity)
        _copy(_slots(slots, outgoing, capacity), outgoing)
        own = self._group.rank()
        _copy([incoming[own]], [outgoing[own]])
        self._group.beside("all_to_all", self._others(outgoing), lambda: self._fetch(handle, incoming, own * capacity))
        self._count(self._others(outgoing), self._others(outgoing))

    def _gather(self, incoming: Blocks, own: torch.Tensor) -> None:
        slot, handle = self._outgoing.take(len(own))
        _copy([slot, incoming[self._group.rank()]], [own, own])
        sent = (len(incoming) - 1) * len(own)
        self._group.beside("all_gather", sent, lambda: self._fetch(handle, incoming, 0))
        self._count(sent, sent)

    def _fetch(self, handle: Any, incoming: Blocks, place: int) -> None:
        """From `place` on in the memory of every peer; each rank starts with its neighbour, so that no rank is
        everyone's first."""
        rank, ranks = self._group.rank(), len(incoming)
        handle.barrier(channel=0)
        for peer in ((rank + step) % ranks for step in range(1, ranks)):
            size = len(incoming[peer])
            if size:
                _copy([incoming[peer]], [handle.get_buffer(peer, (size,), torch.uint8, storage_offset=place)])
        handle.barrier(channel=0)


def _slots(memory: torch.Tensor, blocks: Blocks, capacity: int) -> list[torch.Tensor]:
    """Where each rank's block lies in memory of equal slots."""
    return [memory[rank * capacity :][: len(block)] for rank, block in enumerate(blocks)]


def _cut(tensor: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Blocks of bytes that lie end to end in a tensor."""
    flat = _bytes(tensor)
    bounds = itertools.pairwise(itertools.accumulate(lengths, initial=0))
    return [flat[begin:end] for begin, end in bounds]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as uint8 [bytes]."""
    if not tensor.numel():
        return tensor.new_empty(0, dtype=torch.uint8)  # whatever its strides, which need not be those of a view
    return tensor.view(-1).view(torch.uint8)


def _copy(targets: Blocks, sources: Blocks) -> None:
    """Copies of contiguous bytes, which the driver gives to a copy engine where it can."""
    for target, source in zip(targets, sources, strict=True):
        if len(target):
            target.copy_(source, non_blocking=True)
