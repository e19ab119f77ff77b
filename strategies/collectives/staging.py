"""One lane's way through host memory, a chunk at a time: while one is on the wire, its neighbours are copied."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fsbench_strategies.collectives.chunks import Chunk
from fsbench_strategies.collectives.copiers import Caller, Copier, CopyEngines, CopyThread, Mark, Ticket

Wire = Callable[[torch.Tensor, torch.Tensor, list[int], list[int]], object]
"""(received, sent, bytes from each rank, bytes to each rank): one operation of the process group, on uint8 [bytes]."""


@dataclass(frozen=True)
class Transfer:
    """What an operation moves from `source` to `target`, both uint8 [bytes]: a chunk at a time over `wire`."""

    source: torch.Tensor
    target: torch.Tensor
    outgoing: list[Chunk]
    incoming: list[Chunk]
    wire: Wire


@dataclass
class Slot:
    """Host memory for one chunk, both ways."""

    sent: torch.Tensor
    received: torch.Tensor


class Stager:
    """Host buffers of one lane, and who copies to and from them. Only the thread that runs the lane's jobs uses it.

    Lanes share nothing, so that none ever waits for another. `chunks`: operations put on the wire; `bytes`: copied to
    and from the buffers.
    """

    def __init__(self, lane: str, device: torch.device, buffers: int) -> None:
        on_gpu = device.type == "cuda"
        self._buffers = buffers
        self._beside: Copier = CopyEngines(device) if on_gpu else CopyThread(lane)
        self._alone: Copier = self._beside if on_gpu else Caller()
        self._slots: list[Slot] = []
        self.chunks = 0
        self.bytes = 0

    @property
    def copier(self) -> str:
        return self._beside.name

    @property
    def buffer_bytes(self) -> int:
        return sum(len(slot.sent) + len(slot.received) for slot in self._slots)

    def result(self, like: torch.Tensor, shape: Sequence[int], ready: Mark | None) -> torch.Tensor:
        """An empty tensor beside `like`. An operation starts with it: its copies wait until `ready` is reached."""
        return self._beside.result(like, shape, ready)

    def keep(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies what stays on this rank: it needs no host memory."""
        self._alone.from_host([(target, source)]).wait()

    def run(self, transfer: Transfer) -> None:
        """Moves everything, and returns when it is where it belongs."""
        depth = min(self._buffers, len(transfer.outgoing))
        # One chunk has nothing to overlap with: a thread would only cost.
        copier = self._beside if depth > 1 else self._alone
        _Pipeline(transfer, copier, self._reserve(transfer, depth)).run()
        self.chunks += len(transfer.outgoing)
        self.bytes += sum(chunk.bytes for chunk in (*transfer.outgoing, *transfer.incoming))

    def _reserve(self, transfer: Transfer, depth: int) -> list[Slot]:
        """Buffers that hold the first chunk, which is the largest. They only grow, to powers of two."""
        while len(self._slots) < depth:
            self._slots.append(Slot(self._beside.buffer(0), self._beside.buffer(0)))
        for slot in self._slots[:depth]:
            slot.sent = self._grown(slot.sent, transfer.outgoing[0].bytes)
            slot.received = self._grown(slot.received, transfer.incoming[0].bytes)
        return self._slots[:depth]

    def _grown(self, buffer: torch.Tensor, size: int) -> torch.Tensor:
        return buffer if len(buffer) >= size else self._beside.buffer(1 << (size - 1).bit_length())

    def close(self) -> None:
        self._beside.close()
        self._slots.clear()


class _Pipeline:
    """An operation under way. `_filling`, `_emptying`: copies into and out of the buffers, oldest first."""

    def __init__(self, transfer: Transfer, copier: Copier, slots: list[Slot]) -> None:
        self._transfer = transfer
        self._copier = copier
        self._slots = slots
        self._filling: deque[Ticket] = deque()
        self._emptying: deque[Ticket] = deque()

    def run(self) -> None:
        try:
            for chunk in range(len(self._slots)):
                self._fill(chunk)
            for chunk in range(len(self._transfer.outgoing)):
                self._send(chunk)
            while self._emptying:
                self._emptying.popleft().wait()
        finally:
            # After an error, what is still being copied must end before the buffers are used again.
            for ticket in (*self._filling, *self._emptying):
                with contextlib.suppress(Exception):
                    ticket.wait()

    def _slot(self, chunk: int) -> Slot:
        return self._slots[chunk % len(self._slots)]

    def _fill(self, chunk: int) -> None:
        source, buffer = self._transfer.source, self._slot(chunk).sent
        runs = self._transfer.outgoing[chunk].runs
        copies = [(buffer[at : at + size], source[place : place + size]) for place, at, size in runs]
        self._filling.append(self._copier.to_host(copies))

    def _send(self, chunk: int) -> None:
        """Puts a chunk on the wire. Meanwhile the next one is copied in, and the one before it out."""
        slot, outgoing, incoming = self._slot(chunk), self._transfer.outgoing[chunk], self._transfer.incoming[chunk]
        self._filling.popleft().wait()
        if chunk >= len(self._slots):
            self._emptying.popleft().wait()
        received = slot.received[: incoming.bytes]
        self._transfer.wire(received, slot.sent[: outgoing.bytes], incoming.splits, outgoing.splits)
        self._empty(incoming, received)
        if chunk + len(self._slots) < len(self._transfer.outgoing):
            self._fill(chunk + len(self._slots))

    def _empty(self, chunk: Chunk, buffer: torch.Tensor) -> None:
        target = self._transfer.target
        copies = [(target[place : place + size], buffer[at : at + size]) for place, at, size in chunk.runs]
        self._emptying.append(self._copier.from_host(copies))
