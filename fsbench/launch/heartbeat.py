"""Where each rank is: one small memory-mapped file a rank, written in passing, read by the launcher."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PHASES = ("start", "data", "rendezvous", "tables", "train", "evaluate", "noise floor", "report", "done")
"""In the order in which a rank goes through them."""
SERVES = "serve"
"""The phase of a server process, once all ranks have come."""
_SIZE = 256
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Beat:
    """A rank's last word: its process, its phase, and how far it is (`done` of `total`; 0 of 0 if unknown)."""

    pid: int
    phase: str
    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.phase} {self.done}/{self.total}" if self.total else self.phase


Beats = Sequence[Beat | None]
"""By rank; None for one that has not started."""


class Heartbeat:
    """Written by a rank: `beat` costs about a microsecond and no system call."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._map = map_new(_path(folder, rank), _SIZE)
        self.last = ""
        """The phase of the last beat."""
        self.beat("start")

    def beat(self, phase: str, done: int = 0, total: int = 0) -> None:
        self.last = f"{phase} {done}/{total}" if total else phase
        text = f"{os.getpid()} {done} {total} {phase}".encode()[: _SIZE - 1]
        self._map[:] = text.ljust(_SIZE, b"\0")


def map_new(path: Path, size: int) -> mmap.mmap:
    """A new file of zeros, mapped for reading and writing.

    Raises:
        OSError: there is no room for it. A hole in the file would be made as well on a full disk, and kill the process
            by SIGBUS when it writes there.
    """
    with open(path, "w+b") as file:
        file.write(bytes(size))
        file.flush()
        return mmap.mmap(file.fileno(), size)


def read_beats(folder: Path, ranks: int) -> list[Beat | None]:
    """The last word of each rank; None for one that has not started."""
    return [_read(_path(folder, rank)) for rank in range(ranks)]


def read_all_beats(folder: Path) -> list[Beat]:
    """The last words of the ranks that have started, however many."""
    return [beat for path in folder.glob("heartbeat-*") if path.is_file() and (beat := _read(path))]


def _read(path: Path) -> Beat | None:
    try:
        text = path.read_bytes().rstrip(b"\0").decode(errors="replace")
    except FileNotFoundError:
        return None
    fields = text.split(" ", 3)
    if len(fields) < 4 or not all(map(_NUMBER.fullmatch, fields[:3])):
        return None
    return Beat(int(fields[0]), fields[3], int(fields[1]), int(fields[2]))


def _path(folder: Path, rank: int) -> Path:
    return folder / f"heartbeat-{rank}"
