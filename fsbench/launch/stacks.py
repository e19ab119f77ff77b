"""Python stacks of ranks that are stuck: written by the rank on a signal, also when it is stuck in C."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from fsbench.launch.system import state_of

_SIGNAL = signal.SIGUSR1
_WAIT_S = 1.0
_POLL_S = 0.05


def offer_stacks(folder: Path, rank: int) -> None:
    """From now on this process writes the stacks of all its threads on demand. A crash in C writes them to its log."""
    faulthandler.enable()
    file = open(_path(folder, rank), "w")  # noqa: SIM115 (open as long as the process lives: the handler keeps it)
    faulthandler.register(_SIGNAL, file, all_threads=True)


def ask_stacks(folder: Path, pids: Mapping[int, int]) -> dict[int, str]:
    """The stacks of ranks (by rank, their processes), for a second at most. Stopped processes answer nothing."""
    asked = [rank for rank, pid in pids.items() if _path(folder, rank).exists() and state_of(pid) == "running"]
    for rank in asked:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pids[rank], _SIGNAL)
    deadline, before = time.monotonic() + _WAIT_S, None
    while (sizes := [_path(folder, rank).stat().st_size for rank in asked]) != before or not all(sizes):
        if time.monotonic() > deadline:
            break
        before = sizes
        time.sleep(_POLL_S)
    return {rank: _path(folder, rank).read_text(errors="replace") for rank in asked}


def _path(folder: Path, rank: int) -> Path:
    return folder / f"stacks-{rank}.txt"
