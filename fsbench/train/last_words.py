"""How a rank ends early: it says why, once, and goes at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

from fsbench.errors import Unsupported, WorkerFailed
from fsbench.launch.handover import RankError, make_room, write_error
from fsbench.launch.heartbeat import Heartbeat

_RESERVE = 2**20
_TURN_S = 1.0
_NO_MEMORY = ("not enough memory", "can't allocate memory", "Cannot allocate memory", "std::bad_alloc")


class LastWords:
    """The first that a rank has to say is the cause; what follows, of other threads or by signal, is not heard."""

    def __init__(self, folder: Path, rank: int) -> None:
        make_room(folder, rank)
        self._folder, self._rank = folder, rank
        self._heartbeat: Heartbeat | None = None
        self._floor = threading.Lock()  # taken once, by the first to speak, and never released
        # Without memory not even the error could be told: this much is let go of first.
        self._reserve: bytes | None = b"\1" * _RESERVE

    def listen(self, heartbeat: Heartbeat) -> None:
        """From now on a SIGTERM and an exception that ends a thread end the rank, in the phase of its last beat."""
        self._heartbeat = heartbeat
        signal.signal(signal.SIGTERM, self._terminated)
        threading.excepthook = self._thread_failed

    def _terminated(self, *_: object) -> None:
        # Who is speaking already may be the very thread that this interrupts: it goes on, and then ends the rank.
        if not self._floor.locked():
            self._end("stopped", "SIGTERM", 128 + signal.SIGTERM)

    def fail(self, error: BaseException) -> NoReturn:
        self._reserve = None
        message = str(error).strip()
        if not isinstance(error, Unsupported | WorkerFailed):
            message = f"{type(error).__name__}: {message}" if message else type(error).__name__
        self._end(kind_of(error), message, 1, error)

    def _thread_failed(self, failed: threading.ExceptHookArgs) -> None:
        """A strategy whose background has died must not be measured as if it had not."""
        if failed.exc_value is None or isinstance(failed.exc_value, SystemExit):
            return
        self._reserve = None
        name = failed.thread.name if failed.thread else "unknown"
        message = f"thread {name!r}: {type(failed.exc_value).__name__}: {failed.exc_value}"
        self._end(kind_of(failed.exc_value), message, 1, failed.exc_value)

    def _end(self, kind: str, message: str, exit_code: int, error: BaseException | None = None) -> NoReturn:
        if not self._floor.acquire(blocking=False):
            threading.Event().wait(_TURN_S)  # another thread is speaking, and ends the rank as soon as it has done
            os._exit(exit_code)
        try:
            phase = self._heartbeat.last if self._heartbeat else "start"
            write_error(self._folder, RankError(self._rank, kind, message, phase, time.monotonic_ns()))
            if error:
                traceback.print_exception(error)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # Lane threads may sit in a collective that no peer will join: there is nothing to wait for. And whatever
            # failed while the error was told, there is nobody left to tell.
            os._exit(exit_code)


def kind_of(error: BaseException) -> str:
    """`unsupported`, `oom` or `failed`."""
    if isinstance(error, WorkerFailed) and error.__cause__:
        return kind_of(error.__cause__)
    if isinstance(error, Unsupported):
        return "unsupported"
    no_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return "oom" if no_memory or any(sign in str(error) for sign in _NO_MEMORY) else "failed"
