"""CPU time of threads, those of libraries too."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable
from pathlib import Path

_TASKS = Path("/proc/self/task")


def native_threads() -> frozenset[int]:
    """Native IDs of this process's threads; empty where the system does not list them."""
    return frozenset(int(task.name) for task in _TASKS.iterdir()) if _TASKS.exists() else frozenset()


def cpu_ns(threads: Iterable[int]) -> int | None:
    """Nanoseconds that threads of this process have run; those that ended count nothing. None on systems without it."""
    if not sys.platform.startswith("linux"):
        return None
    total = 0
    for thread in threads:
        with contextlib.suppress(OSError):
            total += time.clock_gettime_ns(_clock_of(thread))
    return total


def _clock_of(thread: int) -> int:
    """The clock that `pthread_getcpuclockid` gives for a thread, by its native ID: the kernel's encoding of it."""
    per_thread_scheduled_time = 6
    return (~thread << 3) | per_thread_scheduled_time
