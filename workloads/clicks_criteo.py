"""Criteo's click logs, as a user has them: a TSV file, read line by line where it lies."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import re
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fsbench.errors import DataError
from fsbench.samples import Int64, Jagged
from fsbench_workloads import keyed
from fsbench_workloads.clicks import Examples, Source, split_in_time
from fsbench_workloads.quoting import quoted

DENSE, CATEGORICAL = 13, 26
_LINE = re.compile(rb"([01])" + rb"\t(-?\d{1,18})?" * DENSE + rb"\t([0-9a-fA-F]{1,15})?" * CATEGORICAL + rb"\r?\n?")
_FIELDS = f"{1 + DENSE + CATEGORICAL} tab-separated fields: 0 or 1, {DENSE} integers, {CATEGORICAL} hexadecimal numbers"
_NUMBERS, _VALUES = slice(1, 1 + DENSE), slice(1 + DENSE, None)
_MARKED = 64
"""The offset of one line in so many is remembered."""
_BLOCK = 2**20
_GZIP = b"\x1f\x8b"


@dataclass
class _Cursor:
    """An open file, and the line that it is at."""

    file: IO[bytes]
    at: int = 0


class CriteoFile(Source):
    """Lines of a label, 13 integers and 26 hexadecimal strings, any of them but the label empty; oldest first. The file
    may be packed by gzip.

    It is read through once, to count and hash its lines; after that a line is read when it is trained. Going back in a
    packed file means to unpack it again from the start, but one pass goes forward. A dense feature is log(1 + x), where
    x is 0 if it is negative or missing. The value of a categorical feature is hashed into the `rows` rows of its table:
    `keyed.bits(0, "criteo", feature, 1 + value) % rows`, with 0 for a missing one.

    Raises:
        DataError: the file cannot be read, is empty, or is none of Criteo's: its first line is malformed.
    """

    dense = DENSE

    def __init__(self, path: Path, rows: int) -> None:
        self._path = path
        self.rows = (rows,) * CATEGORICAL
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: not a regular file")
        self._cursors = threading.local()
        with readable(path), open_lines(path) as file:
            self._lines, self._offsets, self._sha256 = scan(file)
        if not self._lines:
            raise DataError(f"{path}: holds no examples")
        self.train, self.held_out = split_in_time(self._lines)
        self.protocol = f"the last {len(self.held_out):,} of {self._lines:,} lines"
        self.read(np.zeros(1, np.int64))

    def read(self, places: Int64) -> Examples:
        numbered = zip(places.tolist(), self._lines_at(places), strict=True)
        lines = [self._parse(line, place) for place, line in numbered]
        clicked = np.array([line[0] == b"1" for line in lines], bool)
        dense = np.array([[int(text or 0) for text in line[_NUMBERS]] for line in lines], np.float64)
        dense = np.log1p(np.maximum(dense, 0)).astype(np.float32).reshape(-1, DENSE)
        values = np.array([[1 + int(text, 16) if text else 0 for text in line[_VALUES]] for line in lines], np.int64)
        rows = hashed(values.reshape(-1, CATEGORICAL), self.rows[0]).ravel()
        return Examples(dense, Jagged(rows, np.ones_like(rows)), clicked)

    def fingerprint(self) -> Mapping[str, Any]:
        return {
            "data": "Criteo TSV",
            "data_sha256": self._sha256,  # unpacked
            "split": "last tenth of the lines",
            "events": self._lines,
            "rows": sum(self.rows),
            "held_out": len(self.held_out),
        }

    def _lines_at(self, places: Int64) -> list[bytes]:
        """Each as it is in the file. Where that was cut since, lines are missing: empty ones, which are malformed."""
        lines: list[bytes] = []
        with readable(self._path):
            for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
                if len(run):
                    cursor = self._cursor_at(int(run[0]))
                    lines += [cursor.file.readline() for _ in run]
                    cursor.at += len(run)
        return lines

    def _cursor_at(self, place: int) -> _Cursor:
        """This thread's, as each goes forward at its own pace. It reads on where it can: a packed file cannot be
        entered in the middle."""
        if not hasattr(self._cursors, "own"):
            self._cursors.own = _Cursor(open_lines(self._path))
        cursor: _Cursor = self._cursors.own
        mark = place // _MARKED * _MARKED
        if not mark <= cursor.at <= place:
            cursor.file.seek(int(self._offsets[mark // _MARKED]))
            cursor.at = mark
        for _ in itertools.islice(cursor.file, place - cursor.at):
            pass
        cursor.at = place
        return cursor

    def _parse(self, line: bytes, place: int) -> tuple[bytes | None, ...]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise DataError(f"{self._path}:{place + 1}: expected {_FIELDS}, found {quoted(line)}")
        return match.groups()


def hashed(values: Int64, rows: int) -> Int64:
    """Rows of the features' tables, int64[n, CATEGORICAL], from values of the same shape; 0 is no value."""
    return (keyed.bits(0, "criteo", np.arange(CATEGORICAL), values) % np.uint64(rows)).astype(np.int64)


def open_lines(path: Path) -> IO[bytes]:
    """Its contents tell whether it is packed, not its name."""
    with open(path, "rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
    return gzip.open(path) if packed else open(path, "rb")


def scan(file: IO[bytes]) -> tuple[int, NDArray[np.int64], str]:
    """How many lines it has, where every `_MARKED`-th begins, and its SHA-256. Memory: 8 bytes for `_MARKED` lines."""
    digest, lines, size, marks = hashlib.sha256(), 0, 0, [np.zeros(1, np.int64)]
    last = b"\n"
    while block := file.read(_BLOCK):
        digest.update(block)
        begins = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
        marks.append(size + begins[(lines + 1 + np.arange(len(begins))) % _MARKED == 0])
        lines, size, last = lines + len(begins), size + len(block), block[-1:]
    return lines + (last != b"\n"), np.concatenate(marks), digest.hexdigest()


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """What goes wrong with reading it is a DataError with its name."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
