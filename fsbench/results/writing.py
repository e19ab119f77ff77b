"""Writing a result set: whole lines at the end, whole files aside and renamed, and nothing that was there is lost.

The folder may be of others. Nothing is written through a link, and so never out of the folder.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fsbench.errors import FsbenchError, UserError

DAMAGED = ".damaged"
"""Ends the name of what is kept of a file that had to be mended."""


@contextmanager
def explained(folder: Path, failure: type[FsbenchError] = UserError) -> Iterator[None]:
    """Turns what the system refuses into one line."""
    try:
        yield
    except OSError as error:
        raise failure(f"cannot write results to {folder}: {error.strerror}") from None


def refuse_links(folder: Path, files: Iterable[str], folders: Iterable[str]) -> None:
    """Raises:
    UserError: one of these, or something in one of the folders, is no plain file or folder: a link would lead what
        is written out of the result set, a pipe would hold it up.
    """
    for path in (folder / name for name in folders):
        _refuse_unless(path, stat.S_ISDIR)
        for inside in path.iterdir() if path.is_dir() else ():
            _refuse_unless(inside, stat.S_ISREG)
    for path in (folder / name for name in files):
        _refuse_unless(path, stat.S_ISREG)


def _refuse_unless(path: Path, is_kind: Callable[[int], bool]) -> None:
    if os.path.lexists(path) and not is_kind(path.lstat().st_mode):
        raise UserError(f"{path} is a link or a special file; nothing is written through it")


def append_line(path: Path, line: bytes) -> None:
    """Adds a line to a file; it is on the disk when this returns. Lines of several processes never mix.

    A last line without its end, which a process that died or a full disk has left, gets it first.

    Raises:
        OSError: what was written of the line before that is left.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        # In one call: what the kernel appends in one call stays together.
        left = (b"" if _ends_a_line(descriptor) else b"\n") + line + b"\n"
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _ends_a_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file aside and renames it: after a crash or a power cut there is the old one or the new one."""
    aside = path.with_name(path.name + ".new")
    with open(aside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    _sync_folder(path.parent)


def cut_off(path: Path, start: int) -> Path:
    """Moves what a file has from byte `start` on to the end of `PATH.damaged`; returns that."""
    kept = path.with_name(path.name + DAMAGED)
    with open(path, "rb") as file, open(kept, "ab") as out:
        file.seek(start)
        shutil.copyfileobj(file, out)
        out.write(b"\n")
        out.flush()
        os.fsync(out.fileno())
    # Only now: a crash between the two leaves it in both.
    os.truncate(path, start)
    return kept


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
