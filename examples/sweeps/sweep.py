"""What a sweep is: a TOML file of lists, whose product is computed. `straggler-by-cap.toml` explains each key."""

from __future__ import annotations

import itertools
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from fsbench.errors import UserError
from fsbench.options import nearest

METRICS = ("straggler", "padding")


class Setting(NamedTuple):
    """What a row of the table is about. `cap`: longer histories are cut to so many events."""

    lengths: str
    cap: int
    ranks: int
    samples_per_rank: int
    cost: str


@dataclass(frozen=True)
class Sweep:
    """The keys of the file. `batches`: global batches drawn for each seed."""

    title: str
    metric: str
    sharding: list[str]
    lengths: list[str]
    cap: list[int]
    ranks: list[int]
    samples_per_rank: list[int]
    cost: list[str]
    batches: int
    seeds: list[int]

    def settings(self) -> list[Setting]:
        return [Setting(*values) for values in itertools.product(*(getattr(self, key) for key in Setting._fields))]


def read_sweep(path: Path) -> Sweep:
    """Raises UserError: a file that is no sweep; which key is wrong, and what is expected."""
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None
    kinds = {field.name: str(field.type) for field in fields(Sweep)}
    for key in table:
        if key not in kinds:
            raise UserError(f"{path}: unknown key {key!r}; {nearest(key, kinds)}")
    for key, kind in kinds.items():
        least = 0 if key == "seeds" else 1
        if key not in table:
            raise UserError(f"{path}: {key} is missing; expected {kind}")
        if not _is_a(kind, table[key], least):
            raise UserError(f"{path}: {key} is {table[key]!r}; expected {kind}, no number below {least}")
    if table["metric"] not in METRICS:
        raise UserError(f"{path}: unknown metric {table['metric']!r}; {nearest(table['metric'], METRICS)}")
    return Sweep(**table)


def _is_a(kind: str, value: Any, least: int) -> bool:
    if kind.startswith("list"):
        return isinstance(value, list) and bool(value) and all(_is_a(kind[5:-1], one, least) for one in value)
    return isinstance(value, str) if kind == "str" else type(value) is int and value >= least
