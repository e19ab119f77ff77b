"""Who copies between a tensor and host buffers: the calling thread, a thread beside it, or a GPU's copy engines."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import torch

Copies = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Pairs of one size, target first: uint8, contiguous."""


class Mark(NamedTuple):
    """A place in the order of a GPU's work: where an operand is ready, and the stream that its result is for."""

    stream: torch.cuda.Stream
    reached: torch.cuda.Event


def mark(operand: torch.Tensor) -> Mark | None:
    """The caller's place in its stream; None in host memory, where everything is ready once it is there."""
    if operand.device.type != "cuda":
        return None
    stream = torch.cuda.current_stream(operand.device)
    return Mark(stream, stream.record_event())


class Ticket(Protocol):
    """Copies under way."""

    def wait(self) -> None:
        """Blocks the calling thread until they are done; raises what they raised."""


class Copier(Protocol):
    """Copies start in the order of the calls, to the host and from it apart from each other."""

    name: str

    def buffer(self, size: int) -> torch.Tensor:
        """Host memory, uint8[size]."""

    def result(self, like: torch.Tensor, shape: Sequence[int], ready: Mark | None) -> torch.Tensor:
        """A tensor to copy into. Called first in an operation: nothing is copied before `ready` is reached."""

    def to_host(self, copies: Copies) -> Ticket: ...

    def from_host(self, copies: Copies) -> Ticket: ...

    def close(self) -> None: ...


class _Done:
    def wait(self) -> None:
        pass


class Caller:
    """Copies in host memory, on the calling thread: where nothing runs meanwhile, a thread would only cost."""

    name = "lane"

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def result(self, like: torch.Tensor, shape: Sequence[int], ready: Mark | None) -> torch.Tensor:
        return like.new_empty(shape)

    def to_host(self, copies: Copies) -> Ticket:
        _copy(copies)
        return _Done()

    from_host = to_host

    def close(self) -> None:
        pass


class CopyThread(Caller):
    """Copies in host memory on a thread of its own, which plays the copy engine. It starts with the first copy."""

    name = "thread"

    def __init__(self, lane: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"staging-{lane}")

    def to_host(self, copies: Copies) -> Ticket:
        return _Submitted(self._pool.submit(_copy, copies))

    from_host = to_host

    def close(self) -> None:
        self._pool.shutdown()


class _Submitted:
    def __init__(self, future: Any) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()


class CopyEngines:
    """Copies between a GPU and pinned memory, on a stream for each direction: a GPU has a copy engine for each."""

    name = "copy engines"

    def __init__(self, device: torch.device) -> None:
        self._out = torch.cuda.Stream(device)
        self._in = torch.cuda.Stream(device)

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def result(self, like: torch.Tensor, shape: Sequence[int], ready: Mark | None) -> torch.Tensor:
        assert ready is not None
        self._out.wait_event(ready.reached)
        self._in.wait_event(ready.reached)
        # Memory of the stream that writes it: memory of the caller's could still be in use by what is queued there.
        with torch.cuda.stream(self._in):
            result = like.new_empty(shape)
        result.record_stream(ready.stream)
        return result

    def to_host(self, copies: Copies) -> Ticket:
        return _enqueue(self._out, copies)

    def from_host(self, copies: Copies) -> Ticket:
        return _enqueue(self._in, copies)

    def close(self) -> None:
        self._out.synchronize()
        self._in.synchronize()


class _Recorded:
    """Waits on the host, asleep: who reads the buffer next is the process group, and no stream."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()


def _enqueue(stream: torch.cuda.Stream, copies: Copies) -> Ticket:
    event = torch.cuda.Event(blocking=True)
    with torch.cuda.stream(stream):
        _copy(copies)
        event.record(stream)
    return _Recorded(event)


def _copy(copies: Copies) -> None:
    for target, source in copies:
        target.copy_(source, non_blocking=True)
