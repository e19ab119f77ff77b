"""What the launcher and the ranks of a run tell each other: an order in, an outcome or errors out. JSON in a folder."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsbench.axes import DEFAULTS
from fsbench.matrix import IGNORED
from fsbench.options import Spec

_ORDER = "order.json"
_OUTCOME = "outcome.json"
_KIND = "kind"
_ROOM = 4096
_LOST_PEER = ("Connection reset by peer", "Connection closed by peer", "Connection refused", "Broken pipe")


@dataclass(frozen=True)
class Order:
    """What every rank of a run is told. `cell`: spec strings by axis; `-` stands for the axis' default."""

    cell: Mapping[str, str]
    seed: int
    steps: int
    time_limit_s: float
    data_dir: str | None
    workers: int = 1

    def write(self, folder: Path) -> Path:
        """Returns the file to pass to the ranks."""
        path = folder / _ORDER
        path.write_text(json.dumps(dataclasses.asdict(self)))
        return path

    def strategy(self, axis: str) -> Spec:
        """The strategy on an axis. One that the cell's strategies ignore still serves the loader: by its default."""
        text = self.cell[axis]
        return Spec.parse(DEFAULTS[axis] if text == IGNORED else text)

    @classmethod
    def read(cls, path: Path) -> Order:
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True)
class RankError:
    """Why a rank ended early. `kind`: `unsupported`, `oom`, `failed`, or `stopped`, by a SIGTERM: torch's
    launcher sends it when another rank has ended. `time_ns`: monotonic, the same on one host."""

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


def make_room(folder: Path, rank: int) -> None:
    """Takes the room for a rank's error at its start, so that it can still tell when the disk is full.

    Raises:
        OSError: it is full already.
    """
    _error_file(folder, rank).write_bytes(b" " * _ROOM)


def write_error(folder: Path, error: RankError) -> None:
    """Called by a rank as the last thing, after `make_room`."""
    fields = dataclasses.asdict(error)
    fields["message"] = error.message[: _ROOM // 8]  # a character may take six bytes in JSON
    with open(_error_file(folder, error.rank), "r+b") as file:
        file.write(json.dumps(fields).encode().ljust(_ROOM))


def read_errors(folder: Path) -> list[RankError]:
    """Causes first, then ranks that lost a peer; each by time."""
    texts = [path.read_text() for path in folder.glob("error-*.json")]
    errors = [error for text in texts if (error := _error(text))]
    return sorted(errors, key=lambda error: (error.lost_peer, error.time_ns))


def _error(text: str) -> RankError | None:
    """None if the rank had nothing to say, or was killed while it did."""
    try:
        return RankError(**json.loads(text))
    except ValueError:
        return None


def _error_file(folder: Path, rank: int) -> Path:
    return folder / f"error-{rank}.json"
