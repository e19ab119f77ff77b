"""Criteo's click logs, as a user has them: a TSV file, read line by line where it lies."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
_PARTS = (slice(1), slice(1, 1 + DENSE), slice(1 + DENSE, None))
_MARKED = 64
"""The offset of one line in so many is remembered."""
_BLOCK = 2**20


class CriteoFile(Source):
    """Lines of a label, 13 integers and 26 hexadecimal strings, any of them but the label empty; oldest first.

    The file is read through once, to count and hash it; after that a line is read when it is trained. A dense feature
    is log(1 + x), where x is 0 if it is negative or missing. The value of a categorical feature is hashed into the
    `rows` rows of its table: `keyed.bits(0, "criteo", feature, 1 + value) % rows`, with 0 for a missing one.
    """

    dense = DENSE

    def __init__(self, path: Path, rows: int) -> None:
        self._path = path
        self.rows = (rows,) * CATEGORICAL
        self._lines, self._offsets, self._sha256 = scan(path)
        self.train, self.held_out = split_in_time(self._lines)
        self.protocol = f"the last {len(self.held_out):,} of {self._lines:,} lines"

    def read(self, places: Int64) -> Examples:
        fields = [self._parse(line, number) for number, line in self._read_lines(places)]
        labels, numbers, values = ([line[part] for line in fields] for part in _PARTS)
        clicked = np.array(labels).ravel() == b"1"
        dense = np.array([[int(text or 0) for text in line] for line in numbers], np.float64).reshape(-1, DENSE)
        rows = np.array([[1 + int(text, 16) if text else 0 for text in line] for line in values], np.int64)
        rows = hashed(rows.reshape(-1, CATEGORICAL), self.rows[0]).ravel()
        return Examples(np.log1p(np.maximum(dense, 0)).astype(np.float32), Jagged(rows, np.ones_like(rows)), clicked)

    def fingerprint(self) -> Mapping[str, Any]:
        return {
            "data": "Criteo TSV",
            "data_sha256": self._sha256,
            "split": "last tenth of the lines",
            "events": self._lines,
            "rows": sum(self.rows),
            "held_out": len(self.held_out),
        }

    def _read_lines(self, places: Int64) -> Iterator[tuple[int, bytes]]:
        """Each place with its line."""
        runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
        try:
            with open(self._path, "rb") as file:
                for run in runs if len(places) else ():
                    mark, skipped = divmod(int(run[0]), _MARKED)
                    file.seek(int(self._offsets[mark]))
                    lines = itertools.islice(file, skipped, skipped + len(run))
                    # A file that was cut since has fewer: an empty line is found malformed.
                    yield from itertools.zip_longest(run.tolist(), lines, fillvalue=b"")
        except OSError as error:
            raise DataError(f"{self._path}: {error.strerror or error}") from None

    def _parse(self, line: bytes, place: int) -> tuple[bytes | None, ...]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise DataError(f"{self._path}:{place + 1}: expected {_FIELDS}, found {quoted(line)}")
        return match.groups()


def hashed(values: Int64, rows: int) -> Int64:
    """Rows of the features' tables, int64[n, CATEGORICAL], from values of the same shape; 0 is no value."""
    return (keyed.bits(0, "criteo", np.arange(CATEGORICAL), values) % np.uint64(rows)).astype(np.int64)


def scan(path: Path) -> tuple[int, NDArray[np.int64], str]:
    """How many lines the file has, where every `_MARKED`-th begins, and its SHA-256. Memory: 8 bytes for `_MARKED`
    lines.

    Raises:
        DataError: the file cannot be read, or is empty.
    """
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: not a regular file")
    digest, lines, size, marks = hashlib.sha256(), 0, 0, [np.zeros(1, np.int64)]
    last = b""
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                begins = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
                marks.append(size + begins[(lines + 1 + np.arange(len(begins))) % _MARKED == 0])
                lines, size, last = lines + len(begins), size + len(block), block[-1:]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    if not size:
        raise DataError(f"{path}: holds no examples")
    return lines + (last != b"\n"), np.concatenate(marks), digest.hexdigest()
