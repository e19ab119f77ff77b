"""MovieLens-100K: where it comes from, where it lies, how it is read.

fsbench may not ship the data, so `fetch` takes it out of a published Python package that holds it, and a user
may point at a copy of their own. Two file formats are read: the original `u.data` and RecBole's
`ml-100k.inter`.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fsbench.errors import DataError, UserError
from fsbench_workloads.quoting import quoted

TERMS = """\
MovieLens-100K is made by GroupLens, University of Minnesota. Its terms, in short: it may be used for
research; it may not be redistributed without separate permission, nor used for commercial purposes without
GroupLens' permission; do not state or imply the university's endorsement; cite F. M. Harper and J. A.
Konstan, "The MovieLens Datasets: History and Context", ACM Transactions on Interactive Intelligent Systems
5(4), 2015, in work that uses it."""

PACKAGE = "recbole==1.2.1"
MEMBER = "recbole/dataset_example/ml-100k/ml-100k.inter"
SHA256 = "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"

_FOLDER = "ml-100k"
_FILES = ("ml-100k.inter", "u.data")
_HEADER = b"user_id:token\titem_id:token\trating:float\ttimestamp:float"
_LARGEST = 2**63 - 1
_MOST_BYTES = 2**24
"""Of the ratings file in a package; it has two million. A package may claim anything."""
_RATING = rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_ROW = re.compile(rb"([+-]?\d+)\t([+-]?\d+)\t(%b)\t([+-]?\d+)(?:\.0*)?\r?" % _RATING)
# Lines without a sign, an exponent or a number of 16 digits: what float64 holds exactly.
_PLAIN_ROWS = re.compile(rb"(?:[1-9]\d{0,14}\t[1-9]\d{0,14}\t\d+(?:\.\d*)?\t\d{1,15}(?:\.0*)?(?:\r?\n|\r?\Z))*+")


_EVENT = np.dtype([("user", np.int64), ("item", np.int64), ("rating", np.float64), ("timestamp", np.int64)])


@dataclass(frozen=True)
class Ratings:
    """Events in file order: `user`, `item`, `timestamp` (seconds), int64[n] each, and `rating`, float64[n], as in the
    file.

    `sha256`: of the whole file.
    """

    user: NDArray[np.int64]
    item: NDArray[np.int64]
    rating: NDArray[np.float64]
    timestamp: NDArray[np.int64]
    sha256: str


@dataclass(frozen=True)
class Fetched:
    """Where the data lies, and the terms to show; `terms` is None if it was there already."""

    path: Path
    terms: str | None

    def __str__(self) -> str:
        return f"{self.path}\n\n{self.terms}" if self.terms else str(self.path)


def default_data_dir() -> Path:
    """`$FSBENCH_DATA`, or a folder in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "fsbench")
    return Path(os.environ.get("FSBENCH_DATA") or cache).expanduser()


def fetch(data_dir: Path | None = None) -> Fetched:
    """Puts MovieLens-100K into `data_dir`, unless it is there. A file that is there is a whole one.

    Raises:
        UserError: the folder cannot be written, or pip cannot download the package.
        DataError: the package holds other data than it should.
    """
    folder = (data_dir or default_data_dir()) / _FOLDER
    path = folder / _FILES[0]
    if path.is_file():
        return Fetched(path, None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside its destination: an unwritable folder shows before the download, and the move is atomic.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            body = _extract(_download(Path(scratch)))
            with open(Path(scratch, path.name), "wb") as whole:
                whole.write(body)
                whole.flush()
                os.fsync(whole.fileno())
            os.replace(whole.name, path)
    except OSError as error:
        raise UserError(f"cannot write MovieLens-100K to {folder}: {error.strerror or error}") from None
    return Fetched(path, TERMS)


def locate(data_dir: Path | None = None) -> Path:
    """The file to read: `ml-100k.inter` or `u.data`, in `ml-100k/` or in the folder itself.

    Raises:
        DataError: there is none.
    """
    root = data_dir or default_data_dir()
    for path in (folder / name for folder in (root / _FOLDER, root) for name in _FILES):
        if os.path.lexists(path):
            return path
    raise DataError(
        f"MovieLens-100K is not in {root}: run `fsbench data fetch ml-100k` or pass --data-dir with a folder "
        f"that holds ml-100k/u.data"
    )


def read(path: Path) -> Ratings:
    """Reads either format; the header tells which.

    Raises:
        DataError: the file cannot be read, is empty, has a malformed line, or an ID out of range; with its
        line.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(f"{path}: not a regular file")
    try:
        body = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    events = parse(body, path)
    columns = {name: np.ascontiguousarray(events[name]) for name in _EVENT.names or ()}
    return Ratings(**columns, sha256=hashlib.sha256(body).hexdigest())


def parse(body: bytes, path: Path) -> NDArray[np.void]:
    """The event of each line, [n] of `_EVENT`. `path` is for messages."""
    body = body.removeprefix(codecs.BOM_UTF8)
    first, _, rest = body.partition(b"\n")
    has_header = first.startswith(b"user_id")
    if has_header:
        if first.rstrip(b"\r") != _HEADER:
            raise DataError(f"{path}:1: expected the header {_HEADER.decode()!r}, found {quoted(first)}")
        body = rest
    body = body.rstrip(b"\r\n")
    if not body:
        raise DataError(f"{path}: holds no ratings")
    rows = parse_plain(body)
    return parse_lines(body.split(b"\n"), path, 1 + has_header) if rows is None else rows


def parse_plain(body: bytes) -> NDArray[np.void] | None:
    """What `parse_lines` returns, faster, for a body in which nothing is unusual; None for any other."""
    if not _PLAIN_ROWS.fullmatch(body):
        return None
    columns = np.fromstring(body.decode("ascii"), dtype=np.float64, sep=" ").reshape(-1, 4)
    events = np.empty(len(columns), _EVENT)
    for name, column in zip(_EVENT.names or (), columns.T, strict=True):
        events[name] = column
    return events


def parse_lines(lines: Sequence[bytes], path: Path, first_number: int) -> NDArray[np.void]:
    """Reads line by line: [n] of `_EVENT`. `path` and `first_number` say in messages where a line is.

    Raises:
        DataError: `path:line:` and what is wrong with the line.
    """
    rows = []
    for number, line in enumerate(lines, start=first_number):
        try:
            rows.append(_parse_row(line))
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
    return np.array(rows, dtype=_EVENT)


def _parse_row(line: bytes) -> tuple[int, int, float, int]:
    match = _ROW.fullmatch(line)
    if match is None:
        raise ValueError(f"expected 4 tab-separated fields user, item, rating, timestamp, found {quoted(line)}")
    user, item, rating, timestamp = match.groups()
    fields = zip(("user", "item", "timestamp"), (user, item, timestamp), (1, 1, -_LARGEST), strict=True)
    for name, text, least in fields:
        # Lengths first: Python refuses to read a number of thousands of digits.
        if len(text) > 20 or not least <= int(text) <= _LARGEST:
            raise ValueError(f"{name} {quoted(text)} is out of range: expected {least} to {_LARGEST}")
    return int(user), int(item), float(rating), int(timestamp)


def _download(folder: Path) -> Path:
    """The wheel, downloaded into `folder` with the user's own pip and its settings; nothing is installed."""
    pip_download = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "--disable-pip-version-check"]
    command = [*pip_download, "-d", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise UserError(f"pip could not download {PACKAGE}, which holds MovieLens-100K: {said.strip()}")
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        raise UserError(f"pip downloaded no wheel of {PACKAGE}, which holds MovieLens-100K")
    return wheels[0]


def _extract(wheel: Path) -> bytes:
    """The ratings file out of the wheel, checked. It is read by its name and nothing is unpacked, so no member of the
    archive decides where anything is written."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member:
            body = member.read(_MOST_BYTES + 1)
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise DataError(f"{wheel.name} has no readable {MEMBER}: {error}") from None
    if len(body) > _MOST_BYTES:
        raise DataError(f"{wheel.name}: {MEMBER} has more than {_MOST_BYTES // 2**20} MiB")
    digest = hashlib.sha256(body).hexdigest()
    if digest != SHA256:
        raise DataError(f"{wheel.name}: {MEMBER} has SHA-256 {digest}, expected {SHA256}")
    return body
