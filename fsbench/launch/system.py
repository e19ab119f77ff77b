"""What the system tells of processes: whether they live, whether they are stopped, and which belong to a run.

Everything that a run starts has the run's folder as its `TMPDIR`, by inheritance: that is how a run's processes are
found, also those that left its process groups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

State = Literal["running", "stopped", "gone"]

_PROC = Path("/proc")
_KILL_S = 2.0
_POLL_S = 0.01


def state_of(pid: int) -> State:
    """A zombie is gone; a process that a debugger holds is stopped."""
    try:
        letter = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return "running" if not _PROC.joinpath("self").exists() and _answers(pid) else "gone"
    return {b"Z": "gone", b"X": "gone", b"T": "stopped", b"t": "stopped"}.get(letter, "running")  # type: ignore[return-value]


def _answers(pid: int) -> bool:
    """For systems without /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def processes_of(folder: Path) -> list[int]:
    """Living processes of the run that has this folder, but for this process itself."""
    mark = f"TMPDIR={folder}".encode()
    found = []
    for entry in _PROC.glob("[0-9]*"):
        # Processes end meanwhile, and those of others do not show their environment.
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def kill_groups(leaders: Iterable[int]) -> None:
    """Kills the process groups that ranks lead, with what they started."""
    for pid in leaders:
        if not _is_foreign(pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


def kill_run(folder: Path, leaders: Iterable[int]) -> None:
    """Kills every process of a run and waits until they are gone, for two seconds at most: a process in a system call
    that cannot be interrupted ends when the call does."""
    kill_groups(leaders)
    deadline = time.monotonic() + _KILL_S
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _is_foreign(pid: int) -> bool:
    """Whether the number of a rank that has ended has passed to someone else's process."""
    try:
        return b"fsbench.train.rank" not in (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
