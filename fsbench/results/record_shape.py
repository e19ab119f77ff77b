"""What something read from a file must look like to be a record of a run: as `fsbench.results.schema` makes it.

A record that passes can be shown, compared and resumed from, whoever wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fsbench.errors import UserError
from fsbench.matrix import CELL_KEYS, IGNORED
from fsbench.options import Spec, nearest
from fsbench.results.schema import KINDS, SCHEMA, STATUSES

_TYPES: dict[str, type | tuple[type, ...]] = {
    "schema": int,
    "run_id": str,
    "cell": dict,
    "kind": str,
    "repeat": int,
    "seed": int,
    "status": str,
    "reason": (str, type(None)),
    "observed": dict,
    "metrics": dict,
    "missing": dict,
    "per_rank": list,
    "started": str,
    "wall_s": (int, float),
}
_LATER_TYPES: dict[str, type] = {"workers": int}
"""Of keys that records of earlier versions lack."""
_SHOWN = 60
_MOST = 1e150
"""Figures of a larger magnitude, or of a smaller one than its inverse, would not leave a ratio finite."""
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def record_fault(record: Any) -> str | None:
    """Why it is no record that this version understands, or None."""
    if not isinstance(record, dict):
        return "expected an object"
    if fault := schema_fault(record.get("schema"), SCHEMA):
        return fault
    for key, kind in {**_TYPES, **{key: kind for key, kind in _LATER_TYPES.items() if key in record}}.items():
        if not isinstance(record.get(key, ...), kind) or isinstance(record[key], bool):
            return f"{key!r} is missing or of the wrong type"
    for key, known in (("status", STATUSES), ("kind", KINDS)):
        if record[key] not in known:
            return f"unknown {key} {shown(record[key])}; {nearest(record[key][:_SHOWN], known)}"
    return _name_fault(record["run_id"]) or cell_fault(record["cell"]) or _metrics_fault(record)


def schema_fault(found: Any, known: int) -> str | None:
    """Why what carries the schema `found` is left out whole, or None: what a newer version means by a name that this
    one knows too, nobody can tell here."""
    if found == known and type(found) is int:
        return None
    return f"schema {shown(found)}; this version of fsbench reads {known}"


def cell_fault(cell: Any) -> str | None:
    """Why it is no cell, or None."""
    if not isinstance(cell, Mapping) or not all(isinstance(cell.get(key), str) for key in CELL_KEYS):
        return f"'cell' needs {', '.join(CELL_KEYS)}"
    wrong = next((key for key in CELL_KEYS if not (cell[key] == IGNORED or _is_spec(cell[key]))), None)
    return f"'cell' has the {wrong} {shown(cell[wrong])}, which is no NAME:OPTIONS" if wrong else None


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def shown(value: Any) -> str:
    """A value of others in a message: its beginning, without anything that acts on a terminal."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _name_fault(run_id: str) -> str | None:
    """A run's name is also that of its log: it may not lead anywhere else."""
    return None if _RUN_ID.fullmatch(run_id) else f"'run_id' is {shown(run_id)}, which is no name of a run"


def _metrics_fault(record: Mapping[str, Any]) -> str | None:
    for name, value in record["metrics"].items():
        if not (value is None or _is_figure(name, value)):
            return f"metric {shown(name)} is {shown(value)}"
    wrong = next((name for name, reason in record["missing"].items() if not isinstance(reason, str)), None)
    return None if wrong is None else f"the reason why {shown(wrong)} is missing is no text"


def _is_figure(name: str, value: Any) -> bool:
    if name.endswith("_by_class"):
        return isinstance(value, dict) and all(item is None or _is_bounded(item) for item in value.values())
    return _is_bounded(value)


def _is_bounded(value: Any) -> bool:
    return is_number(value) and (value == 0 or 1 / _MOST <= abs(value) <= _MOST)


def _is_spec(text: str) -> bool:
    try:
        Spec.parse(text)
    except UserError:
        return False
    return True
