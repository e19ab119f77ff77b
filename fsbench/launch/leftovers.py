"""What an fsbench that was killed has left: processes of its runs, their folders, network namespaces.

    fsbench --- pipe ---> python -m fsbench.launch.leftovers
       |
       +---> runs, in folders fsbench-PID-*

A janitor process holds the other end of a pipe. When fsbench ends, however it does, the pipe closes and the janitor
removes what is left. It has a session of its own, so that neither a Ctrl-C nor the end of a terminal reaches it. Had it
been killed as well, the next fsbench does its work.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fsbench.launch import links
from fsbench.launch.heartbeat import read_all_beats
from fsbench.launch.system import kill_run, state_of

_END_S = 10.0


@contextlib.contextmanager
def janitor() -> Iterator[None]:
    """Inside the context, this process may be killed and leaves nothing."""
    remove_leftovers()
    process = subprocess.Popen(
        [sys.executable, "-m", "fsbench.launch.leftovers"], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        assert process.stdin
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def remove_leftovers() -> None:
    """Of every fsbench that is gone. Those that live are left alone."""
    for folder in Path(tempfile.gettempdir()).glob("fsbench-*-*"):
        owner = folder.name.split("-")[1]
        # Without /proc it could not be told whether the owner lives.
        if owner.isdigit() and state_of(int(owner)) == "gone" and Path("/proc/self").exists():
            kill_run(folder, [beat.pid for beat in read_all_beats(folder)])
            shutil.rmtree(folder, ignore_errors=True)
    links.remove_stale()


def main() -> None:
    sys.stdin.read()
    remove_leftovers()


if __name__ == "__main__":
    main()
