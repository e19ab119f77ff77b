"""What this process holds: threads, child processes, sockets and files. What a task adds to it and does not give back
is left behind."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsbench.launch.system import processes_of

PATIENCE_S = 1.0
"""A thread that was joined, or a socket that was closed, may be listed a moment longer."""
_SELF = Path("/proc/self")


@dataclass(frozen=True)
class Footprint:
    """Each thing by a key that no other has while it lives, with words for it."""

    things: dict[object, str]

    @classmethod
    def of_this_process(cls, folder: Path) -> Footprint:
        """`folder`: the one for temporary files, all of which count."""
        return cls({**dict(_threads()), **dict(_children(folder)), **dict(_descriptors()), **dict(_files(folder))})


def left_behind(before: Footprint, folder: Path) -> tuple[str, ...]:
    """What is there now and was not before, in words; looks again for a while before it says so."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        now = Footprint.of_this_process(folder)
        left = tuple(words for key, words in now.things.items() if key not in before.things)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _threads() -> Iterator[tuple[object, str]]:
    """Those that Python knows by name, those of libraries by what the system calls them."""
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    for task in _listed(_SELF / "task"):
        with contextlib.suppress(OSError):
            name = known.get(int(task.name)) or (task / "comm").read_text().strip()
            yield ("thread", task.name), f"thread {name}"


def _children(folder: Path) -> Iterator[tuple[object, str]]:
    """Processes that this one started, and theirs: also those whose parent is gone and that left its session."""
    marked = set(processes_of(folder))
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            parent, _, session = map(int, (process / "stat").read_text().rpartition(")")[2].split()[1:4])
            pid, own = int(process.name), os.getpid()
            if pid != own and (own in (parent, session) or pid in marked):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                yield ("process", process.name), f"process {process.name} ({command or 'ended, not waited for'})"


def _descriptors() -> Iterator[tuple[object, str]]:
    for descriptor in _listed(_SELF / "fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(descriptor)
            if not target.startswith("/proc/"):
                yield ("descriptor", target), f"open {target}"


def _files(folder: Path) -> Iterator[tuple[object, str]]:
    for path in folder.rglob("*"):
        yield ("file", str(path)), f"file {path.relative_to(folder)} in the folder for temporary files"


def _listed(folder: Path) -> list[Path]:
    """Empty where the system has no such folder."""
    return list(folder.iterdir()) if folder.exists() else []
