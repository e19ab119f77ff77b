"""A comparison of result sets as JSON and as CSV, for programs: every figure in full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from fsbench.matrix import CELL_KEYS
from fsbench.results.compare import CellRatio, Comparison, Match, Only, Part
from fsbench.results.contrasts import Contrast
from fsbench.results.printable import as_json
from fsbench.results.ratios import judged_json

_PLACE = ("workload", "cluster", "kind")
_FIGURES = (
    "ratio", "low", "high", "no_interval", "p", "p_adjusted", "verdict", "reason", "runs", "runs_needed",
)  # fmt: skip
_COLUMNS = (
    "what", "set", "against", *CELL_KEYS, "kind", "level", "differences", "axis", "strategy", "base",
    "samples_per_s", "samples_per_s_against", *_FIGURES, "cell_pairs", "left_out",
)  # fmt: skip
"""`what`: `match`, `cell`, `contrast` or `only`; each leaves empty what it has not."""


def comparison_json(comparison: Comparison) -> str:
    return as_json(_data(comparison))


def comparison_csv(comparison: Comparison) -> str:
    """A line an entry of the lists of `comparison_json`; without a final line end."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(_lines(_data(comparison)))
    return out.getvalue().removesuffix("\n")


def _data(comparison: Comparison) -> dict[str, Any]:
    sides = [
        _contrast(part, contrast)
        for side in comparison.side_by_side
        for row in side.rows.values()
        for part, contrast in zip(side.parts, row, strict=True)
        if contrast
    ]
    return {
        "sets": [
            {"set": one.label, "name": one.name, "started": one.manifest.get("started"), "runs": len(one.records)}
            for one in comparison.sets
        ],
        "matches": list(map(_match, comparison.matches)),
        "cells": list(map(_cell, comparison.ratios)),
        "contrasts": sides,
        "only": list(map(_only, comparison.only)),
    }


def _match(match: Match) -> dict[str, Any]:
    found = [{**asdict(difference), "level": difference.level.name.lower()} for difference in match.differences]
    return {
        "set": match.top.label,
        "against": match.below.label,
        **_place(match.top),
        "level": match.level.name.lower(),
        "differences": found,
    }


def _cell(ratio: CellRatio) -> dict[str, Any]:
    top, below = ratio.match.top, ratio.match.below
    return {
        "set": top.label,
        "against": below.label,
        **asdict(ratio.cell),
        "kind": top.kind,
        "samples_per_s": ratio.top.mean,
        "samples_per_s_against": ratio.below.mean,
        **judged_json(ratio.judged),
    }


def _contrast(part: Part, contrast: Contrast) -> dict[str, Any]:
    return {
        "set": part.label,
        **_place(part),
        "axis": contrast.axis,
        "strategy": contrast.strategy,
        "base": contrast.base,
        **judged_json(contrast.judged),
        "cell_pairs": contrast.cell_pairs,
        "left_out": dict(contrast.left_out),
    }


def _only(only: Only) -> dict[str, Any]:
    cell = asdict(only.cell) if only.cell else {}
    return {"set": only.part.label, "against": only.missing_in, **_place(only.part), **cell}


def _place(part: Part) -> dict[str, str]:
    return {name: getattr(part, name) for name in _PLACE}


def _lines(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for what, entries in (("match", "matches"), ("cell", "cells"), ("contrast", "contrasts"), ("only", "only")):
        for entry in data[entries]:
            yield {"what": what, **{name: _field(value) for name, value in entry.items()}}


def _field(value: Any) -> Any:
    """Numbers of runs as `6 7`; differences as `steps: 100 / 200`."""
    if isinstance(value, Mapping):
        return "; ".join(f"{what}: {number}" for what, number in value.items())
    if isinstance(value, list):
        differences = all(isinstance(item, Mapping) for item in value)
        parts = [f"{item['part']}: {item['first']} / {item['second']}" if differences else str(item) for item in value]
        return ("; " if differences else " ").join(parts)
    return value
