"""Contrasts: each strategy against the first-named of its axis, within a workload, a cluster and a kind of machine.

The replicate is a repeat of all cells, not a pair of cells: log ratios are first averaged over the cells of the other
axes within each repeat, and Student's t takes one figure a repeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fsbench.matrix import IGNORED, STRATEGY_AXES, Cell
from fsbench.results.cells import Record, cell_of, named_cells
from fsbench.results.schema import KINDS
from fsbench.results.speeds import Repeat, Speeds, counts, paired_logs, speeds_of
from fsbench.results.statistics import ALPHA, Judged, judge, paired

CellPairs = Mapping[tuple[Cell, Cell], Mapping[Repeat, float]]
"""By the cell on top and the cell below, the log ratio of each repeat in which both ran."""


@dataclass(frozen=True)
class Contrast:
    """A strategy over the first-named of its axis.

    `cell_pairs`: how many pairs of cells the ratio is a mean of. `left_out`: what is not in it, by what it is, as
    numbers of runs or cells. `opposed`: of the pairs of cells, how many are faster and how many slower, each beyond its
    own noise; None unless there are some of either.
    """

    workload: str
    cluster: str
    kind: str
    axis: str
    strategy: str
    base: str
    judged: Judged
    cell_pairs: int
    left_out: Mapping[str, int]
    opposed: tuple[int, int] | None


@dataclass(frozen=True)
class _Group:
    """The cells of one workload and cluster, as they were named, and their speeds on one kind of machine."""

    workload: str
    cluster: str
    kind: str
    cells: Sequence[Cell]
    speeds: Mapping[tuple[Cell, str], Speeds]
    records: Sequence[Record]

    def having(self, axis: str, strategy: str) -> list[Cell]:
        return [cell for cell in self.cells if getattr(cell, axis) == strategy]


@dataclass(frozen=True)
class _Question:
    group: _Group
    axis: str
    strategy: str
    base: str

    def cell_pairs(self) -> CellPairs:
        """Cells that differ on the axis only. One with `-` on another axis stands for all strategies there."""
        none = Speeds(self.group.kind, {})
        speeds = {cell: self.group.speeds.get((cell, self.group.kind), none) for cell in self.group.cells}
        return {
            (top, below): paired_logs(speeds[top], speeds[below])
            for top in self.group.having(self.axis, self.strategy)
            for below in self.group.having(self.axis, self.base)
            if _agree(top, below, self.axis)
        }

    def left_out(self, cells: Collection[Cell], repeats: Collection[Repeat]) -> dict[str, int]:
        """What is not in a ratio that is made of these repeats of these cells."""
        asked = {*self.group.having(self.axis, self.strategy), *self.group.having(self.axis, self.base)}
        runs = [run for run in self.group.records if cell_of(run["cell"]) in asked]
        numbers = Counter(_reason(run) for run in runs if not _within(run, cells, repeats))
        numbers["cells without a run"] = len(asked - {cell_of(run["cell"]) for run in runs})
        numbers[f"cells with {IGNORED} on the axis"] = len(self.group.having(self.axis, IGNORED))
        return {what: number for what, number in numbers.items() if number}


def contrasts(
    records: Sequence[Record], manifest: Mapping[str, Any] | None = None, bases: Mapping[str, str] | None = None
) -> list[Contrast]:
    """The contrasts of a set, judged together, by workload, cluster, kind and axis.

    Args:
        manifest: tells in which order strategies were named.
        bases: by axis, what to compare with instead of the first-named, wherever there is a cell with it.
    """
    questions = [question for group in _groups(records, manifest) for question in _questions(group, bases or {})]
    answers = [_balanced(question.cell_pairs()) for question in questions]
    verdicts = judge([paired(_repeat_means(cell_pairs, repeats)) for cell_pairs, repeats in answers])
    return [
        Contrast(
            question.group.workload,
            question.group.cluster,
            question.group.kind,
            question.axis,
            question.strategy,
            question.base,
            judged,
            cell_pairs=len(cell_pairs),
            left_out=question.left_out({cell for pair in cell_pairs for cell in pair}, repeats),
            opposed=_opposed(cell_pairs, repeats),
        )
        for question, (cell_pairs, repeats), judged in zip(questions, answers, verdicts, strict=True)
    ]


def _groups(records: Sequence[Record], manifest: Mapping[str, Any] | None) -> list[_Group]:
    """By workload, cluster and each kind of machine that measured anything there."""
    speeds = speeds_of(records)
    cells: dict[tuple[str, str], list[Cell]] = {}
    for cell in named_cells(records, manifest):
        cells.setdefault((cell.workload, cell.cluster), []).append(cell)
    runs: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        runs.setdefault((record["cell"]["workload"], record["cell"]["cluster"]), []).append(record)
    return [
        _Group(*place, kind, of_place, speeds, [run for run in runs[place] if run["kind"] == kind or not counts(run)])
        for place, of_place in cells.items()
        for kind in KINDS
        if any((cell, kind) in speeds for cell in of_place)
    ]


def _questions(group: _Group, bases: Mapping[str, str]) -> list[_Question]:
    questions = []
    for axis in STRATEGY_AXES:
        named = list(dict.fromkeys(getattr(cell, axis) for cell in group.cells if getattr(cell, axis) != IGNORED))
        base = bases.get(axis) if bases.get(axis) in named else named[0] if named else None
        questions += [_Question(group, axis, strategy, base) for strategy in named if base and strategy != base]
    return questions


def _agree(first: Cell, second: Cell, but: str) -> bool:
    pairs = [(getattr(first, axis), getattr(second, axis)) for axis in STRATEGY_AXES if axis != but]
    return all(mine == other or IGNORED in (mine, other) for mine, other in pairs)


def _balanced(cell_pairs: CellPairs) -> tuple[CellPairs, list[Repeat]]:
    """Pairs of cells and repeats such that all of the pairs ran in all of the repeats: as many runs as can be had.

    Means over other cells in one repeat than in the next would show the difference between the cells as noise, or hide
    noise as a difference.
    """
    fullest = sorted((pair for pair in cell_pairs if cell_pairs[pair]), key=lambda pair: -len(cell_pairs[pair]))
    best: tuple[list[tuple[Cell, Cell]], set[Repeat]] = [], set()
    common: set[Repeat] | None = None
    for number, pair in enumerate(fullest, start=1):
        common = set(cell_pairs[pair]) if common is None else common & cell_pairs[pair].keys()
        if number * len(common) > len(best[0]) * len(best[1]):
            best = fullest[:number], common
    return {pair: cell_pairs[pair] for pair in best[0]}, sorted(best[1])


def _repeat_means(cell_pairs: CellPairs, repeats: Sequence[Repeat]) -> list[float]:
    return [fmean(logs[repeat] for logs in cell_pairs.values()) for repeat in repeats]


def _opposed(cell_pairs: CellPairs, repeats: Sequence[Repeat]) -> tuple[int, int] | None:
    """How many pairs are faster and how many slower, each beyond noise, with one chance of error for all of them."""
    confidence = 1 - ALPHA / max(1, len(cell_pairs))
    spreads = [paired([logs[repeat] for repeat in repeats]).spread for logs in cell_pairs.values()]
    intervals = [spread.interval(confidence) for spread in spreads if spread]
    faster, slower = sum(low > 1 for low, _ in intervals), sum(high < 1 for _, high in intervals)
    return (faster, slower) if faster and slower else None


def _within(run: Record, cells: Collection[Cell], repeats: Collection[Repeat]) -> bool:
    return counts(run) and cell_of(run["cell"]) in cells and (run["seed"], run["repeat"]) in repeats


def _reason(run: Record) -> str:
    if run["status"] != "ok":
        return f"runs {run['status']}"
    return "runs without a pair" if counts(run) else "runs without samples/s"
