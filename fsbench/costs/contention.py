"""How much slower a kernel is beside copies: from pairs of timings to the contention constants of a cluster profile."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fsbench.errors import DataError, UserError
from fsbench.results.statistics import paired

FORMAT = 1
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Pair:
    """Seconds of a kernel `alone` and, right after, `beside` copies. `copied_per_s`: bytes a second that these moved.
    `outlasted`: they were under way until the last kernel ended; if not, the pair says nothing."""

    alone_s: float
    beside_s: float
    copied_per_s: float
    outlasted: bool


@dataclass(frozen=True)
class Row:
    """A kernel beside one way to copy. `blocks`: thread blocks that copy, 0 for copy engines. `slowdown`: time beside
    over time alone, with its 95 % interval. What could not be measured is None, for the `reason`."""

    kernel: str
    copy: str
    blocks: int
    runs: int
    slowdown: float | None = None
    low: float | None = None
    high: float | None = None
    copied_gb_per_s: float | None = None
    reason: str | None = None


def row(kernel: str, copy: str, blocks: int, pairs: Sequence[Pair]) -> Row:
    """Each pair is a replicate: the interval is Student's t on log ratios."""
    short = sum(not pair.outlasted for pair in pairs)
    if short:
        return Row(kernel, copy, blocks, len(pairs), reason=f"copies ended before the kernels in {short} runs")
    estimate = paired([math.log(pair.beside_s / pair.alone_s) for pair in pairs])
    rate = sum(pair.copied_per_s for pair in pairs) / len(pairs) / 1e9 if pairs else None
    low, high = estimate.spread.interval(CONFIDENCE) if estimate.spread else (None, None)
    return Row(kernel, copy, blocks, len(pairs), estimate.ratio, low, high, rate, estimate.no_interval)


def write(path: Path, rows: Sequence[Row], source: Mapping[str, Any]) -> None:
    """As TOML, `[contention]` and a `[[contention.row]]` each. `source`: where the constants come from.

    Raises:
        UserError: it cannot be written.
    """
    lines = ["[contention]", f"format = {FORMAT}", *_pairs({"source": source_text(source)})]
    for one in rows:
        lines += ["", "[[contention.row]]", *_pairs(vars(one))]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def source_text(source: Mapping[str, Any]) -> str:
    return "measured by fsbench contention: " + ", ".join(f"{name} {value}" for name, value in source.items())


def read(content: Mapping[str, Any], path: Path) -> list[Row]:
    """The rows out of the table `contention` of a profile that was read as TOML from `path`.

    Raises:
        DataError: no such table, or one that this version does not read.
    """
    table = content.get("contention")
    if not isinstance(table, Mapping) or table.get("format") != FORMAT:
        raise DataError(f"{path}: no table contention of format {FORMAT}; `fsbench contention` makes one")
    known = {field.name for field in fields(Row)}
    rows = []
    for number, values in enumerate(table.get("row", [])):
        if unknown := values.keys() - known:
            raise DataError(f"{path}: contention row {number} has the unknown key {min(unknown)!r}")
        try:
            rows.append(Row(**values))
        except TypeError as error:
            raise DataError(f"{path}: contention row {number}: {error}") from None
    return rows


def _pairs(values: Mapping[str, Any]) -> list[str]:
    """TOML has no null: what is None is left out. Its strings and numbers are written as JSON's are."""
    return [f"{name} = {json.dumps(value)}" for name, value in values.items() if value is not None]
