"""A result set on disk: `manifest.json` (provenance) and `runs.jsonl` (one line a run, synced as each ends).

A run recorded again, after `--resume`, replaces its earlier record. A process that dies while it writes
leaves a torn last line: it is dropped with a warning. Any other unreadable line is an error that names it.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsbench.errors import DataError, FsbenchError, UserError
from fsbench.results.schema import record_fault

MANIFEST = "manifest.json"
RUNS = "runs.jsonl"


def default_folder() -> Path:
    """`results/<UTC time>-<four random hex digits>`."""
    now = datetime.datetime.now(datetime.UTC)
    return Path("results") / f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


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
        if (folder / MANIFEST).exists() or (folder / RUNS).exists():
            raise UserError(f"{folder} already holds a result set; add --resume to continue it, or name another --out")
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            result_set._write_manifest(manifest)
            (folder / RUNS).touch()
        return result_set

    @classmethod
    def resume(cls, folder: Path, manifest: Mapping[str, Any]) -> ResultSet:
        """Continues a result set. The first manifest stays; this one is added to its list `resumed`.

        Raises:
            UserError: there is none, or the folder cannot be written.
        """
        result_set = cls.open(folder)
        first = result_set.manifest()
        with _writing(folder):
            result_set._mend()
            result_set._write_manifest({**first, "resumed": [*first.get("resumed", []), manifest]})
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
        line = json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n"
        # A full disk in the middle of a matrix is no mistake in what was asked for.
        with _writing(self.folder, FsbenchError), open(self.folder / RUNS, "ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def records(self) -> list[dict[str, Any]]:
        """The runs, oldest first, each once and as recorded last.

        Raises:
            DataError: a line that is no record of a schema this version reads.
        """
        latest: dict[str, dict[str, Any]] = {}
        for record in self._lines():
            latest[record["run_id"]] = record
        return list(latest.values())

    def finished(self) -> set[str]:
        """IDs of the runs that need not run again."""
        return {record["run_id"] for record in self.records() if record["status"] == "ok"}

    def manifest(self) -> dict[str, Any]:
        """The provenance; empty where it is missing.

        Raises:
            DataError: it is no JSON object.
        """
        path = self.folder / MANIFEST
        try:
            manifest = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (ValueError, OSError) as error:
            raise DataError(f"{path}: {error}") from None
        if not isinstance(manifest, dict):
            raise DataError(f"{path}: expected an object")
        return manifest

    def _lines(self) -> Iterator[dict[str, Any]]:
        path = self.folder / RUNS
        content = _read(path).removesuffix(b"\n")
        lines = content.split(b"\n") if content else []
        for number, line in enumerate(lines, start=1):
            try:
                record = _decode(line)
            except ValueError as error:
                if number < len(lines):
                    raise DataError(f"{path}:{number}: {error}") from None
                warnings.warn(f"{path}:{number}: dropped a torn last line", stacklevel=2)
                return
            if fault := record_fault(record):
                raise DataError(f"{path}:{number}: {fault}")
            yield record

    def _mend(self) -> None:
        """Ends the file after its last whole line, so that the next record does not join a torn one."""
        path = self.folder / RUNS
        content = _read(path).removesuffix(b"\n")
        last = content.rpartition(b"\n")[2]
        try:
            _decode(last)
        except ValueError:
            os.truncate(path, len(content) - len(last))
        else:
            os.truncate(path, len(content))
            with open(path, "ab") as file:
                file.write(b"\n")

    def _write_manifest(self, manifest: Mapping[str, Any]) -> None:
        text = json.dumps(manifest, allow_nan=False, ensure_ascii=False, indent=2) + "\n"
        # Written aside and renamed: a crash leaves the old manifest or the new one.
        aside = self.folder / (MANIFEST + ".new")
        aside.write_text(text, encoding="utf-8")
        aside.replace(self.folder / MANIFEST)


@contextmanager
def _writing(folder: Path, failure: type[FsbenchError] = UserError) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise failure(f"cannot write results to {folder}: {error.strerror}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def _decode(line: bytes) -> Any:
    try:
        return json.loads(line.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
