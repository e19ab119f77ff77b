"""A stand-in for `torch.cuda` on machines without a GPU: streams and events that write down what is done with them.

Tensors are real and on the CPU: what copies move can be checked, and their place in the order of the streams too.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda = cuda
        self.name = name

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        event = event or FakeEvent(self._cuda)
        event.record(self)
        return event

    def wait_event(self, event: FakeEvent) -> None:
        self._cuda.log.append(("wait", self.name, event.number))

    def synchronize(self) -> None:
        self._cuda.done()
        self._cuda.log.append(("synchronize", self.name))


class FakeEvent:
    """Its time is the device's clock when it was recorded, which only a synchronise lets anyone read."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.number = next(cuda.numbers)
        self.at_ns: int | None = None
        self.is_done = False

    def record(self, stream: FakeStream | None = None) -> None:
        stream = stream or self._cuda.current_stream()
        self.at_ns, self.is_done = self._cuda.clock(), False
        self._cuda.pending.append(self)
        self._cuda.log.append(("record", stream.name, self.number))

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self._cuda.done()
        self._cuda.log.append(("synchronize", self.number))

    def elapsed_time(self, later: FakeEvent) -> float:
        assert self.is_done, "read before it was reached"
        assert later.is_done, "read before it was reached"
        return float(np.float32((later.at_ns - self.at_ns) / 1e6))  # as coarse as CUDA's


class FakeCuda:
    """`log`: what happened, in order: (`record`, stream, event), (`wait`, stream, event), (`copy`, stream),
    (`synchronize`, what), (`keep`, stream) for memory that a stream still needs. `clock`: the device's, nanoseconds."""

    def __init__(self, clock: Callable[[], int] = lambda: 0) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.clock = clock
        self.numbers = itertools.count()
        self.names = itertools.count(1)
        self.pending: list[FakeEvent] = []
        self._current = threading.local()
        self._compute = FakeStream(self, "compute")

    def done(self) -> None:
        for event in self.pending:
            event.is_done = True
        self.pending.clear()

    def current_stream(self, device: Any = None) -> FakeStream:
        return getattr(self._current, "stream", self._compute)

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Any:
        outer, self._current.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._current.stream = outer

    def synchronize(self, device: Any = None) -> None:
        self.done()
        self.log.append(("synchronize", "device"))

    def install(self, monkeypatch: Any) -> FakeCuda:
        """In the place of torch's own."""
        copy = torch.Tensor.copy_

        def logged_copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
            self.log.append(("copy", self.current_stream().name))
            return copy(target, source)

        def record_stream(tensor: Any, stream: FakeStream) -> None:
            self.log.append(("keep", stream.name))

        monkeypatch.setattr(torch.Tensor, "copy_", logged_copy)
        monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: FakeStream(self, f"side-{next(self.names)}"))
        monkeypatch.setattr(torch.cuda, "Event", lambda **options: FakeEvent(self))
        for name in ("current_stream", "stream", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        return self
