"""A result set on disk: `manifest.json` (provenance) and `runs.jsonl` (one line a run, synced as each ends).

A run recorded again, after `--resume`, replaces its earlier record. Whatever happened to the files, reading returns
what is sound and warns of the rest (`fsbench.results.reading`); writing adds lines, and keeps beside what it has to
mend: a torn last line goes to `runs.jsonl.damaged` (`fsbench.results.writing`). One process at a time writes to a set:
the one inside `held`.
"""

from __future__ import annotations

import datetime
import json
import secrets
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsbench.errors import DataError, FsbenchError, UserError
from fsbench.results.lock import sole_writer
from fsbench.results.reading import LARGEST_MANIFEST, Record, lines_of, read_manifest, read_runs
from fsbench.results.writing import DAMAGED, append_line, cut_off, explained, refuse_links, write_whole

MANIFEST = "manifest.json"
RUNS = "runs.jsonl"
LOGS = "logs"
_WRITTEN = (MANIFEST, MANIFEST + ".new", RUNS, RUNS + DAMAGED)
_MOST_NAMED = 20


def default_folder() -> Path:
    """`results/<UTC time>-<four random hex digits>`."""
    now = datetime.datetime.now(datetime.UTC)
    return Path("results") / f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Nothing else writes to the result set in `folder`, which may be yet to be made, while inside the context.

    Raises:
        UserError: another process does, or it cannot be written, or has a link where results would go.
    """
    if (folder / MANIFEST).exists() and not (folder / RUNS).exists():
        raise UserError(f"{folder} has a {MANIFEST} and no {RUNS}: it is no result set; name another --out")
    with ExitStack() as stack:
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            refuse_links(folder, files=_WRITTEN, folders=(LOGS,))
            stack.enter_context(sole_writer(folder / RUNS))
        yield


@dataclass(frozen=True)
class Contents:
    """What is sound of a result set. `unread`: what is not, and why, `file:line: ...`."""

    manifest: dict[str, Any]
    records: list[Record]
    unread: list[str]


@dataclass(frozen=True)
class ResultSet:
    """The folder of a result set."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, manifest: Mapping[str, Any]) -> ResultSet:
        """Starts a result set.

        Raises:
            UserError: the folder holds one already, or cannot be written.
        """
        result_set = cls(folder)
        runs = folder / RUNS
        if (folder / MANIFEST).exists() or (runs.exists() and runs.stat().st_size):
            raise UserError(f"{folder} already holds a result set; add --resume to continue it, or name another --out")
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            runs.touch()
            result_set._write_manifest(manifest)
        return result_set

    @classmethod
    def resume(cls, folder: Path, manifest: Mapping[str, Any]) -> ResultSet:
        """Continues a result set. The first manifest stays; this one is added to its list `resumed`.

        Raises:
            UserError: there is none, its manifest cannot be relied on, or the folder cannot be written.
        """
        result_set = cls.open(folder)
        first = result_set.provenance()
        with explained(folder):
            result_set._mend()
            whole = {**first, "resumed": [*first.get("resumed", []), manifest]} if first else manifest
            result_set._write_manifest(whole)
        return result_set

    @classmethod
    def open(cls, path: Path) -> ResultSet:
        """The result set at `path`: its folder or its `runs.jsonl`.

        Raises:
            UserError: there is none.
        """
        folder = path.parent if path.name == RUNS else path
        if not (folder / RUNS).is_file():
            raise UserError(f"{path} is no result set: expected a folder with {RUNS} in it")
        return cls(folder)

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a run; it is on the disk when this returns."""
        text = json.dumps(record, allow_nan=False, ensure_ascii=False)
        # A full disk in the middle of a matrix is no mistake in what was asked for.
        with explained(self.folder, FsbenchError):
            append_line(self.folder / RUNS, text.encode(errors="backslashreplace"))

    def read(self) -> Contents:
        """All that is sound, with a warning for each thing that is not.

        Raises:
            DataError: `runs.jsonl` cannot be read at all.
        """
        manifest, parts = read_manifest(self.folder / MANIFEST)
        records, lines = read_runs(self.folder / RUNS)
        _warn([*parts, *lines])
        return Contents(manifest, records, [*parts, *lines])

    def manifest(self) -> dict[str, Any]:
        """The provenance, without what of it is not sound, and empty where there is none. Warns as `read`."""
        manifest, unread = read_manifest(self.folder / MANIFEST)
        _warn(unread)
        return manifest

    def records(self) -> list[Record]:
        """The runs, oldest first, each once and as recorded last. Warns and raises as `read`."""
        records, unread = read_runs(self.folder / RUNS)
        _warn(unread)
        return records

    def finished(self) -> set[str]:
        """IDs of the runs that need not run again."""
        return {record["run_id"] for record in self.records() if record["status"] == "ok"}

    def provenance(self) -> dict[str, Any]:
        """The manifest to continue from; empty where there is none, and no run either.

        Raises:
            DataError: a part of it cannot be read.
        """
        path = self.folder / MANIFEST
        manifest, unread = read_manifest(path)
        if not unread:
            return manifest
        if not path.exists() and not (self.folder / RUNS).stat().st_size:
            return {}
        raise DataError(f"{unread[0]}: whether more runs would compare, nobody can tell; name another --out")

    def _mend(self) -> None:
        """Takes a torn last line out, so that the set is whole again; its run is not recorded, and runs again."""
        path = self.folder / RUNS
        with open(path, "rb") as file:
            last = deque(lines_of(file), maxlen=1)
        if last and last[0].torn:
            kept = cut_off(path, last[0].start)
            _warn([f"{path}:{last[0].number}: a torn last line was moved to {kept.name}"])

    def _write_manifest(self, manifest: Mapping[str, Any]) -> None:
        text = json.dumps(manifest, allow_nan=False, ensure_ascii=False, indent=2) + "\n"
        content = text.encode(errors="backslashreplace")
        if len(content) > LARGEST_MANIFEST:
            raise UserError(f"{self.folder}: its manifest would be larger than can be read; name another --out")
        write_whole(self.folder / MANIFEST, content)


def _warn(unread: Sequence[str]) -> None:
    named = [*unread[:_MOST_NAMED]]
    if more := unread[_MOST_NAMED:]:
        named.append(f"{len(more)} more, the last of them {more[-1]}")
    for text in named:
        # Of this line, so that the same warning is shown once however often a set is read.
        warnings.warn(text, stacklevel=1)
