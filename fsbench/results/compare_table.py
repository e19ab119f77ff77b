"""A comparison of result sets as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from fsbench.matrix import STRATEGY_AXES
from fsbench.results.cells import ShortNames, full_name_lines, short_names
from fsbench.results.comparability import Level
from fsbench.results.compare import CellRatio, Compared, Comparison, Match, Only, Part, SideBySide
from fsbench.results.contrast_table import contrast_name
from fsbench.results.contrasts import Contrast
from fsbench.results.grid import grid
from fsbench.results.ratios import (
    MISSING,
    RUNS,
    RUNS_NEEDED,
    needed_text,
    ratio_text,
    rules,
    runs_text,
    verdict_rule,
    verdict_text,
)
from fsbench.results.speeds import Speeds, counts

_LEVELS = {
    Level.DIRECTLY: "cell by cell; same key, and machines described alike (host names are not recorded)",
    Level.AS_RATIOS: "only as ratios within each set",
    Level.NOT_AT_ALL: "not at all",
}
_CELLS_ABOVE = (
    "Cell by cell, a later set / the first: above 1, FASTER, the later set trains more samples a second. "
    "Speeds are geometric means:"
)
_NOT_INTERLEAVED = (
    "Welch's t over single runs, because the sets were not interleaved: a drift of the machine from one set to the "
    "other is part of the ratio, and is in its interval only as far as it shows within a set"
)
_SIDES_ABOVE = (
    "Contrasts within each set, a strategy / what it is compared with on its axis: above 1, FASTER, the strategy "
    "trains more samples a second there:"
)
_TOP, _BELOW = "samples/s\nlater", "samples/s\nfirst"


def comparison_report(comparison: Comparison, format: str) -> str:
    """The comparison as text, without a final line end.

    Args:
        format: `table` or `markdown`.
    """
    short = short_names(cell for one in comparison.sets for part in one.parts for cell in part.speeds)
    tables = [
        *_cell_blocks(comparison.ratios, short, format),
        *(block for side in comparison.side_by_side for block in _side_blocks(side, short, format)),
    ]
    blocks = [
        "\n".join(map(_set_line, comparison.sets)),
        "\n".join(map(_match_line, comparison.matches)),
        *(tables or [_nothing(comparison)]),
        "\n".join([*map(_only_line, comparison.only), *(full_name_lines(short) if tables else [])]),
    ]
    return "\n\n".join(block for block in blocks if block)


def _nothing(comparison: Comparison) -> str:
    if all(match.level == Level.NOT_AT_ALL for match in comparison.matches):
        return "Nothing compares."
    return "No set ran two strategies of an axis: there is no ratio within a set to put beside another."


def _set_line(one: Compared) -> str:
    git = one.manifest.get("git") or {}
    commit = f", commit {git['commit'][:12]}{' (changed)' if git.get('dirty') else ''}" if git.get("commit") else ""
    runs = f"{sum(map(counts, one.records))} of {len(one.records)} runs count"
    return f"{one.label}: {one.name}, {one.manifest.get('started', 'date not recorded')}{commit}, {runs}"


def _match_line(match: Match) -> str:
    top, below = match.top, match.below
    told = [difference.told(below.label, top.label) for difference in match.differences]
    return f"{top.label} with {below.label}, {top}: " + "; ".join([_LEVELS[match.level], *told])


def _cell_blocks(ratios: Sequence[CellRatio], short: ShortNames, format: str) -> list[str]:
    """Of the cells only what tells them apart, beside workload and sharding."""
    if not ratios:
        return []
    varying = {key for key in short if len({getattr(ratio.cell, key) for ratio in ratios}) > 1}
    shown = {key: names for key, names in short.items() if key in {"workload", "sharding", *varying}}
    headings = ["sets", *shown, "kind", _TOP, _BELOW, "ratio\n(95 % interval)", "verdict", RUNS, RUNS_NEEDED]
    table = grid(
        [_cell_row(ratio, shown) for ratio in ratios], headings, format, figures=(_TOP, _BELOW, RUNS, RUNS_NEEDED)
    )
    return [_CELLS_ABOVE, table, "\n".join([_NOT_INTERLEAVED, *rules([ratio.judged for ratio in ratios], "cells")])]


def _cell_row(ratio: CellRatio, shown: ShortNames) -> list[str]:
    top, below = ratio.match.top, ratio.match.below
    return [
        f"{top.label} / {below.label}",
        *(names[getattr(ratio.cell, key)] for key, names in shown.items()),
        top.kind.upper(),
        _speed_text(ratio.top),
        _speed_text(ratio.below),
        ratio_text(ratio.judged.estimate),
        verdict_text(ratio.judged),
        runs_text(ratio.judged.estimate),
        needed_text(ratio.judged),
    ]


def _speed_text(speeds: Speeds) -> str:
    return MISSING if speeds.mean is None else f"{speeds.mean:.4g}"


def _side_blocks(side: SideBySide, short: ShortNames, format: str) -> list[str]:
    if not side.rows:
        return []
    workload = short["workload"][side.parts[0].workload]
    headings = ["axis", workload, *(f"{_where(part)}\n{part.kind.upper()}" for part in side.parts)]
    named = [(_name(row, short), row) for row in side.rows.values()]
    body = [[axis, name, *map(_contrast_text, row)] for (axis, *_), (name, row) in zip(side.rows, named, strict=True)]
    notes = [note for name, row in named for note in _unequal(name, side.parts, row)]
    rule = verdict_rule("the contrasts of each set, as `fsbench show` has it")
    return [_SIDES_ABOVE, grid(body, headings, format, figures=()), "\n".join([rule, *notes])]


def _where(part: Part) -> str:
    return f"{part.label}: {part.cluster}"


def _name(row: Sequence[Contrast | None], short: ShortNames) -> str:
    return next(contrast_name(contrast, short) for contrast in row if contrast)


def _contrast_text(contrast: Contrast | None) -> str:
    if contrast is None:
        return MISSING
    ratio, verdict = ratio_text(contrast.judged.estimate), verdict_text(contrast.judged)
    return ratio if verdict in ratio else f"{ratio} {verdict}"


def _unequal(name: str, parts: Sequence[Part], row: Sequence[Contrast | None]) -> list[str]:
    """Says so where one ratio is a mean over more cells than the other beside it."""
    means = {_where(part): contrast.cell_pairs for part, contrast in zip(parts, row, strict=True) if contrast}
    numbers = ", ".join(f"{number} in {where}" for where, number in means.items())
    return [f"! {name}: pairs of cells that it is a mean over: {numbers}"] if len(set(means.values())) > 1 else []


def _only_line(only: Only) -> str:
    cell = f": {' + '.join(getattr(only.cell, axis) for axis in STRATEGY_AXES)}" if only.cell else ""
    return f"only in {only.part.label}, not in {only.missing_in}: {only.part}{cell}"
