"""Work of a lane on a stream of its own: behind what its caller has queued, beside what the caller queues next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """A stream beside the caller's. What is queued on it stays in order, so that buffers can be used again at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    @contextmanager
    def entered(self, operand: torch.Tensor) -> Iterator[None]:
        """Inside, work goes to this stream, after everything that its caller has queued so far. `operand`: the
        caller's, whose memory must not be used anew before this stream has read it."""
        self._stream.wait_event(torch.cuda.current_stream(self._device).record_event())
        with torch.cuda.stream(self._stream):
            yield
        operand.record_stream(self._stream)

    def ready(self, result: torch.Tensor) -> Ready:
        """When what is queued so far is done. `result`: memory of this stream that the caller will read."""
        return Ready(self._stream.record_event(), result, self._device)

    def close(self) -> None:
        self._stream.synchronize()


class Ready:
    """What a lane waits for; on the stream of who waits, and never on the host."""

    def __init__(self, reached: torch.cuda.Event, result: torch.Tensor, device: torch.device) -> None:
        self._reached = reached
        self._result = result
        self._device = device

    def wait(self) -> None:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._reached)
        self._result.record_stream(stream)
