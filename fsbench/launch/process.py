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

from fsbench.launch.heartbeat import Beats, read_beats
from fsbench.launch.system import kill_groups, kill_run
from fsbench.launch.watchdog import Cut, Limits, Watchdog

_POLL_S = 0.1
_TERM_S = 3.0
_LAST_WORDS_S = 1.5
"""After a rank is gone, the others may say what they saw, and torch's launcher how each ended, for this long."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Ended:
    """How the processes of a run ended. `names`: what they are called. `beats`: each one's last word. `cut`: why it was
    given up, if it was."""

    exit_code: int
    names: Sequence[str]
    beats: Beats
    wall_s: float
    cut: Cut | None = None


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent dies (Linux; elsewhere it does nothing)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_to_end(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    names: Sequence[str],
    limits: Limits,
    on_poll: Callable[[Beats], None],
    hurry: Callable[[], bool] = lambda: False,
) -> Ended:
    """Runs `command`, a launcher of processes that are called `names` by their number, to its end or until it must be
    given up. Output goes to `folder/log.txt`, temporary files into `folder`.

    On any exception, KeyboardInterrupt too, all processes are killed before it propagates. `hurry`: whether that must
    not take the seconds that an orderly end may take.
    """
    started = time.monotonic()
    with open(folder / "log.txt", "wb") as log:
        launcher = _start(command, {**environment, "TMPDIR": str(folder)}, log)
        try:
            cut = _watch(launcher, Watchdog(folder, names, limits), on_poll)
            last_words = read_beats(folder, len(names))
            if cut and cut.kind == "lost":
                _wait(launcher, _LAST_WORDS_S, hurry)
                # What is left sits in an operation that will never end. Its launcher can then tell how all ended.
                kill_groups(folder, _pids(last_words))
        finally:
            _end(launcher, hurry)
            kill_run(folder, _pids(read_beats(folder, len(names))))
    return Ended(launcher.returncode, names, last_words, time.monotonic() - started, cut)


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


def _watch(launcher: subprocess.Popen[bytes], watchdog: Watchdog, on_poll: Callable[[Beats], None]) -> Cut | None:
    """Until the launcher ends, or the run must be given up."""
    while launcher.poll() is None:
        cut = watchdog.look()
        if cut and cut.kind == "lost" and (launcher.poll() or 0) < 0:
            return None  # it was killed, and took its processes along
        if cut:
            return cut
        on_poll(watchdog.beats)
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(_POLL_S)
    return None


def _end(launcher: subprocess.Popen[bytes], hurry: Callable[[], bool]) -> None:
    """Asks the launcher to stop, and kills it if it does not."""
    if launcher.poll() is None:
        launcher.terminate()
        _wait(launcher, _TERM_S, hurry)
    if launcher.poll() is None:
        launcher.kill()
    launcher.wait()


def _wait(launcher: subprocess.Popen[bytes], limit_s: float, hurry: Callable[[], bool]) -> None:
    """Until the launcher ends, the limit is reached or there is no more time for it."""
    deadline = time.monotonic() + limit_s
    while launcher.poll() is None and time.monotonic() < deadline and not hurry():
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(_POLL_S)


def _pids(beats: Beats) -> list[int]:
    return [beat.pid for beat in beats if beat]
