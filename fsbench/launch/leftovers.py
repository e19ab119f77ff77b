"""What an fsbench that was killed has left: processes of its runs, their folders, network namespaces.

    fsbench --- pipe ---> python -m fsbench.launch.leftovers
       |
       +---> runs, in folders fsbench-PID-*

A janitor process holds the other end of a pipe. When fsbench ends, however it does, the pipe closes and the janitor
removes what is left. (A killed process closes its files a moment before it is gone: unless the janitor was told that
all is done, it waits for that.) It has a session of its own, so that neither a Ctrl-C nor the end of a terminal reaches
it. Had it been killed as well, the next fsbench does its work.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fsbench.launch import links
from fsbench.launch.heartbeat import read_all_beats
from fsbench.launch.system import kill_run, state_of

_END_S = 10.0
_REMOVE_S = 2.0
_POLL_S = 0.01
_DONE = b"done"
_FOLDER = re.compile(r"fsbench-([0-9]{1,9})-")


@contextlib.contextmanager
def janitor() -> Iterator[None]:
    """Inside the context, this process may be killed and leaves nothing."""
    remove_leftovers()
    process = subprocess.Popen(
        [sys.executable, "-m", "fsbench.launch.leftovers", str(os.getpid())],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield
    finally:
        try:
            process.communicate(_DONE, _END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def remove_leftovers() -> None:
    """Of every fsbench that is gone. Those that live are left alone, and so is what is not this user's: the folder for
    temporary files may be everybody's."""
    for folder in Path(tempfile.gettempdir()).glob("fsbench-*-*"):
        owner = _FOLDER.match(folder.name)
        # Without /proc it could not be told whether the owner lives.
        if owner and state_of(int(owner[1])) == "gone" and Path("/proc/self").exists() and _is_ours(folder):
            kill_run(folder)
            _remove(folder)
    links.remove_stale()


def _remove(folder: Path) -> None:
    """Again and again for a moment: a process that is about to die of its parent's death may still make a file."""
    deadline = time.monotonic() + _REMOVE_S
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False


def _kill_runs_of(owner: int) -> None:
    """Those of the fsbench that has just ended, with the groups of ranks that ended before: their numbers are fresh."""
    for folder in Path(tempfile.gettempdir()).glob(f"fsbench-{owner}-*"):
        if _is_ours(folder):
            kill_run(folder, [beat.pid for beat in read_all_beats(folder)])


def main(owner: int) -> None:
    if sys.stdin.buffer.read() == _DONE:
        return
    deadline = time.monotonic() + _END_S
    while state_of(owner) != "gone" and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    _kill_runs_of(owner)
    remove_leftovers()


if __name__ == "__main__":
    main(int(sys.argv[1]))
