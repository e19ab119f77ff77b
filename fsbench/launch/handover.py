"""What the launcher and the ranks of a run tell each other: an order in, an outcome or errors out. JSON in a folder."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ORDER = "order.json"
_OUTCOME = "outcome.json"
_KIND = "kind"
_LOST_PEER = ("Connection reset by peer", "Connection closed by peer", "Connection refused", "Broken pipe")


@dataclass(frozen=True)
class Order:
    """What every rank of a run is told. `cell`: spec strings by axis; `-` stands for the axis' default."""

    cell: Mapping[str, str]
    seed: int
    steps: int
    time_limit_s: float
    data_dir: str | None

    def write(self, folder: Path) -> Path:
        """Returns the file to pass to the ranks."""
        path = folder / _ORDER
        path.write_text(json.dumps(dataclasses.asdict(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> Order:
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True)
class RankError:
    """Why a rank ended early. `kind`: `unsupported`, `oom`, `failed`, or `stopped` (by SIGTERM: the launcher's after
    another rank had ended, or someone's). `time_ns`: monotonic, the same on one host."""

    rank: int
    kind: str
    message: str
    phase: str
    time_ns: int

    @property
    def lost_peer(self) -> bool:
        """Whether it tells no more than that another rank was gone."""
        return self.kind == "stopped" or any(sign in self.message for sign in _LOST_PEER)


def write_kind(folder: Path, kind: str) -> None:
    """Called by rank 0 as soon as it knows its device: `cpu` or `gpu`."""
    (folder / _KIND).write_text(kind)


def read_kind(folder: Path) -> str:
    """What the ranks ran on; `cpu` if they ended before they had looked."""
    path = folder / _KIND
    return path.read_text() if path.exists() else "cpu"


def write_outcome(folder: Path, outcome: Mapping[str, Any]) -> None:
    """Called by rank 0 as the last thing. Atomic."""
    partial = folder / (_OUTCOME + ".partial")
    partial.write_text(json.dumps(outcome, allow_nan=False))
    os.replace(partial, folder / _OUTCOME)


def read_outcome(folder: Path) -> dict[str, Any] | None:
    path = folder / _OUTCOME
    return json.loads(path.read_text()) if path.exists() else None


def write_error(folder: Path, rank: int, phase: str, kind: str, error: BaseException) -> None:
    text = str(error).strip()
    message = text if kind == "unsupported" else f"{type(error).__name__}: {text}"
    _write(folder, RankError(rank, kind, message, phase, time.monotonic_ns()))


def write_stopped(folder: Path, rank: int, phase: str) -> None:
    _write(folder, RankError(rank, "stopped", "stopped by SIGTERM", phase, time.monotonic_ns()))


def _write(folder: Path, error: RankError) -> None:
    (folder / f"error-{error.rank}.json").write_text(json.dumps(dataclasses.asdict(error)))


def read_errors(folder: Path) -> list[RankError]:
    """Causes first, then ranks that lost a peer; each by time."""
    errors = [RankError(**json.loads(path.read_text())) for path in folder.glob("error-*.json")]
    return sorted(errors, key=lambda error: (error.lost_peer, error.time_ns))
