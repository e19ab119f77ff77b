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
    found = []
    for entry in _PROC.glob("[0-9]*"):
        # Processes end meanwhile, and those of others do not show their environment.
        with contextlib.suppress(OSError):
            if _is_marked((entry / "environ").read_bytes(), folder):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def _is_marked(environment: bytes, folder: Path) -> bool:
    """Whether the temporary files of a process with this environment go to the folder, or to one in it."""
    mark = f"TMPDIR={folder}".encode()
    return any(variable == mark or variable.startswith(mark + b"/") for variable in environment.split(b"\0"))


def kill_groups(folder: Path, leaders: Iterable[int]) -> None:
    """Kills the process groups that ranks of a run lead, with what they started. Groups of others, and those that no
    rank leads, are left alone."""
    for pid in leaders:
        if _may_be_killed(pid, folder):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


def kill_run(folder: Path, leaders: Iterable[int] = ()) -> None:
    """Kills every process of a run and waits until they are gone, for two seconds at most: a process in a system call
    that cannot be interrupted ends when the call does.

    `leaders`: ranks as this session knows them. A group whose leader has ended bears no mark of its run, so that the
    numbers must not come out of what another session has left: they may be someone else's by now.
    """
    kill_groups(folder, leaders)
    deadline = time.monotonic() + _KILL_S
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _may_be_killed(pid: int, folder: Path) -> bool:
    """Not where the number is no rank's, or has passed to someone else's process."""
    if pid <= 1 or pid == os.getpgrp():
        return False
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended, or is about to
    except OSError:
        return False
    return not environment or _is_marked(environment, folder)  # that of a zombie is empty
