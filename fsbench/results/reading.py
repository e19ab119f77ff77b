"""Reading a result set that may be damaged, or of others: what is sound is returned, the rest is named.

A line of `runs.jsonl` that is no record costs that record alone, and a part of the manifest that is not what it should
be costs that part alone. Nothing is quoted, because a message goes to a terminal.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fsbench.errors import DataError
from fsbench.results.decoding import decode
from fsbench.results.manifest_shape import sound_manifest
from fsbench.results.record_shape import record_fault

LONGEST_LINE = 2**24
"""Bytes. A record is some ten thousand; memory must not depend on what a file of others holds."""
LARGEST_MANIFEST = 2**26
"""Bytes; ten thousand cells take about three million."""
_CHUNK = 2**20
_WITHOUT = "the order of the cells, the planned runs and the provenance are not known"

Record = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A line of a file. `content`: None if it is longer than `LONGEST_LINE`. `start`: its first byte. `ended`: whether
    it has its line end; else it is the last, and perhaps torn."""

    number: int
    start: int
    content: bytes | None
    ended: bool

    @property
    def torn(self) -> bool:
        """Whether its writer died before its end: it has none, and is no JSON."""
        if self.ended or self.content is None:
            return not self.ended
        try:
            decode(self.content)
        except ValueError:
            return True
        return False


def lines_of(file: IO[bytes]) -> Iterator[Line]:
    """The lines of a file, in bounded memory."""
    for number in itertools.count(1):
        start = file.tell()
        content = file.readline(LONGEST_LINE + 1)
        if not content:
            return
        ended = content.endswith(b"\n")
        if ended or len(content) <= LONGEST_LINE:
            yield Line(number, start, content.removesuffix(b"\n"), ended)
        else:
            yield Line(number, start, None, _skip_to_line_end(file))


def _skip_to_line_end(file: IO[bytes]) -> bool:
    while piece := file.readline(_CHUNK):
        if piece.endswith(b"\n"):
            return True
    return False


def read_runs(path: Path) -> tuple[list[Record], list[str]]:
    """The runs, oldest first, each once and as recorded last; and for every line that is not among them, why.

    Raises:
        DataError: the file cannot be read at all.
    """
    latest: dict[str, tuple[int, Record]] = {}
    unread: list[tuple[int, str]] = []
    for line in _written_lines(path):
        try:
            record = sound_record(line)
        except ValueError as error:
            unread.append((line.number, str(error)))
            continue
        before = latest.get(record["run_id"])
        if before and before[1]["status"] == "ok":
            unread.append((before[0], f"its run was ok and is recorded again in line {line.number}"))
        latest[record["run_id"]] = line.number, record
    records = [record for _, record in latest.values()]
    return records, [f"{path}:{number}: left out: {why}" for number, why in sorted(unread)]


def _written_lines(path: Path) -> Iterator[Line]:
    """The lines that hold anything."""
    try:
        with open(path, "rb", opener=no_link) as file:
            yield from (line for line in lines_of(file) if line.content != b"")
    except OSError as error:
        raise DataError(f"{path}: {_why(error)}") from None


def no_link(path: str, flags: int) -> int:
    """An opener for files of others: a link would lead out of the result set."""
    return os.open(path, flags | os.O_NOFOLLOW)


def _why(error: OSError) -> str | None:
    return "a link, which is not followed" if error.errno == errno.ELOOP else error.strerror


def sound_record(line: Line) -> Record:
    """The record in a line.

    Raises:
        ValueError: why it is none.
    """
    if line.content is None:
        raise ValueError(f"longer than {LONGEST_LINE // 2**20} MiB")
    try:
        record = decode(line.content)
    except ValueError as error:
        raise ValueError(f"torn, {error}" if line.torn else str(error)) from None
    if fault := record_fault(record):
        raise ValueError(fault)
    return record


def read_manifest(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The manifest without what is wrong with it, empty where nothing is right; and what was left out, and why."""
    try:
        manifest = _decoded_manifest(path)
    except ValueError as error:
        return {}, [f"{path}: left out: {error}; {_WITHOUT}"]
    sound, faults = sound_manifest(manifest)
    return sound, [f"{path}: left out: {fault}" + ("" if sound else f"; {_WITHOUT}") for fault in faults]


def _decoded_manifest(path: Path) -> Any:
    """Raises:
    ValueError: why there is none.
    """
    if not path.is_file() and not path.is_symlink():
        raise ValueError("not a file" if path.exists() else "missing")
    try:
        with open(path, "rb", opener=no_link) as file:
            content = file.read(LARGEST_MANIFEST + 1)
    except OSError as error:
        raise ValueError(_why(error)) from None
    if len(content) > LARGEST_MANIFEST:
        raise ValueError(f"larger than {LARGEST_MANIFEST // 2**20} MiB")
    return decode(content)
