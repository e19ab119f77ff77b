"""The cells of a result set: out of its records and manifest, in the order in which they were named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fsbench.axes import DEFAULTS
from fsbench.matrix import CELL_KEYS, Cell

Record = Mapping[str, Any]
ShortNames = Mapping[str, Mapping[str, str]]
"""By key of a cell and by spec, what a table shows."""


def cell_of(values: Mapping[str, str]) -> Cell:
    """The cell that a record or a manifest describes."""
    return Cell(**{key: values[key] for key in CELL_KEYS})


def listed(manifest: Mapping[str, Any] | None, key: str) -> list[Any]:
    """A list of the manifest, and of those that `--resume` added to it."""
    manifests = [manifest, *manifest.get("resumed", [])] if manifest else []
    return [item for entry in manifests for item in entry.get(key, [])]


def named_cells(records: Sequence[Record], manifest: Mapping[str, Any] | None) -> list[Cell]:
    """Each cell once: those of the manifest, also where no run of them is recorded, then others that have runs.

    Runs are recorded in a shuffled order. Where the manifest does not tell which strategy was named first, it is the
    default of its axis.
    """
    named = dict.fromkeys(map(cell_of, listed(manifest, "cells")))
    others = {cell_of(record["cell"]) for record in records} - named.keys()
    return [*named, *sorted(others, key=_defaults_first)]


def _defaults_first(cell: Cell) -> list[tuple[bool, str]]:
    return [(getattr(cell, key) != DEFAULTS.get(key), getattr(cell, key)) for key in CELL_KEYS]


def short_names(cells: Iterable[Cell]) -> ShortNames:
    """The name alone where no other spec has it: long options would widen every line of a table."""
    different = list(cells)
    return {key: _short({getattr(cell, key) for cell in different}) for key in CELL_KEYS}


def full_name_lines(short: ShortNames) -> list[str]:
    """The specs that are shown without their options."""
    return [
        f"{key} {name}: {spec}" for key, names in short.items() for spec, name in sorted(names.items()) if spec != name
    ]


def _short(specs: Collection[str]) -> dict[str, str]:
    names = Counter(spec.partition(":")[0] for spec in specs)
    return {spec: name if names[name := spec.partition(":")[0]] == 1 else spec for spec in specs}
