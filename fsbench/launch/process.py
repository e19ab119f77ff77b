"""The processes of one run: start, watch, end. Whatever happens, none of them outlives it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fsbench.launch.heartbeat import Beat, read_beats

_POLL_S = 0.1
_TERM_S = 3.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Ended:
    """How the processes of a run ended. `beats`: each rank's last word. `timed_out`: the time limit was reached."""

    exit_code: int
    timed_out: bool
    beats: Sequence[Beat | None]
    wall_s: float


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent dies (Linux; elsewhere it does nothing)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_to_end(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    ranks: int,
    time_limit_s: float,
    on_poll: Callable[[Sequence[Beat | None]], None],
) -> Ended:
    """Runs `command` (a launcher of `ranks` ranks) to its end or the time limit. Output goes to `folder/log.txt`.

    On any exception, KeyboardInterrupt too, all processes are killed before it propagates.
    """
    started = time.monotonic()
    with open(folder / "log.txt", "wb") as log:
        launcher = _start(command, environment, log)
        try:
            timed_out = False
            while launcher.poll() is None:
                beats = read_beats(folder, ranks)
                on_poll(beats)
                if time.monotonic() - started > time_limit_s:
                    timed_out = True
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    launcher.wait(_POLL_S)
        finally:
            last_words = read_beats(folder, ranks)
            _end(launcher, [beat.pid for beat in last_words if beat])
    return Ended(launcher.returncode, timed_out, last_words, time.monotonic() - started)


def _start(command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        # A Ctrl-C in the terminal reaches fsbench alone, which then ends the run in order.
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def _end(launcher: subprocess.Popen[bytes], rank_pids: Sequence[int]) -> None:
    """Asks the launcher to stop, then kills it and every rank that is left."""
    if launcher.poll() is None:
        launcher.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(_TERM_S)
    if launcher.poll() is None:
        launcher.kill()
    launcher.wait()
    for pid in rank_pids:
        if not _is_foreign(pid):
            # Ranks lead process groups of their own: what a strategy started goes with them.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


def _is_foreign(pid: int) -> bool:
    """Whether the number of a rank that has ended has passed to someone else's process."""
    try:
        return b"fsbench.train.rank" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
