"""Several result sets held against the first of them: cell by cell, as ratios within each, or not at all.

A part of a set is what it ran of one workload on one cluster and kind of machine. Each is matched with the part of the
first set that is most like it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fsbench.errors import UserError
from fsbench.matrix import STRATEGY_AXES, Cell
from fsbench.options import Spec
from fsbench.results.cells import Record, named_cells
from fsbench.results.comparability import Difference, Key, Level, differences, key_of, level
from fsbench.results.contrasts import Contrast, contrasts
from fsbench.results.schema import KINDS
from fsbench.results.speeds import Speeds, across_sets, speeds_of
from fsbench.results.statistics import Judged, judge

Question = tuple[str, str, str]
"""Axis, strategy, and what it is compared with."""


@dataclass(frozen=True)
class Part:
    """What the set `label` ran of one workload in one place: speeds by cell, empty where no run counts."""

    label: str
    workload: str
    cluster: str
    kind: str
    key: Key
    speeds: Mapping[Cell, Speeds]

    def counterpart(self, cell: Cell) -> Cell:
        """The cell of the same strategies here."""
        return replace(cell, workload=self.workload, cluster=self.cluster)

    def __str__(self) -> str:
        return f"{self.workload} on {self.cluster}, {self.kind.upper()}"


@dataclass(frozen=True)
class Compared:
    """A result set. `label`: the letter it goes by here. `name`: what the user called it."""

    label: str
    name: str
    manifest: Mapping[str, Any]
    records: Sequence[Record]

    @cached_property
    def parts(self) -> list[Part]:
        """Those that have a speed, in the order in which they were named."""
        speeds, named = speeds_of(self.records), named_cells(self.records, self.manifest)
        of_place: dict[tuple[str, str, str], dict[Cell, Speeds]] = {}
        for cell, kind in itertools.product(named, KINDS):
            place = of_place.setdefault((cell.workload, cell.cluster, kind), {})
            place[cell] = speeds.get((cell, kind), Speeds(kind, {}))
        return [
            Part(self.label, *place, key_of(self.manifest, *place), of_cell)
            for place, of_cell in of_place.items()
            if any(speed.logs for speed in of_cell.values())
        ]


@dataclass(frozen=True)
class Match:
    """A part of a later set, the part of the first set most like it, and how they differ (first set, later set)."""

    top: Part
    below: Part
    differences: Sequence[Difference]

    @property
    def level(self) -> Level:
        return level(self.differences)


@dataclass(frozen=True)
class CellRatio:
    """A cell of a later set, `top`, over the same cell of the first, `below`."""

    match: Match
    cell: Cell
    top: Speeds
    below: Speeds
    judged: Judged


@dataclass(frozen=True)
class SideBySide:
    """Parts of several sets that trained the same, and the contrasts of each, None where it has none."""

    parts: Sequence[Part]
    rows: Mapping[Question, Sequence[Contrast | None]]


@dataclass(frozen=True)
class Only:
    """What the part of one set has, and the set `missing_in` has not: a cell, or all of the part."""

    part: Part
    missing_in: str
    cell: Cell | None


@dataclass(frozen=True)
class Comparison:
    """`ratios` were judged together; contrasts with the others of their set."""

    sets: Sequence[Compared]
    matches: Sequence[Match]
    ratios: Sequence[CellRatio]
    side_by_side: Sequence[SideBySide]
    only: Sequence[Only]


def compare(sets: Sequence[Compared]) -> Comparison:
    """Holds each set against the first.

    Raises:
        UserError: a set without a speed, or without a cell in common with the first.
    """
    first, *later = sets
    _check_common(first, later)
    matches = [match for other in later for match in _matches(first, other)]
    return Comparison(
        sets,
        matches,
        _cell_ratios([match for match in matches if match.level == Level.DIRECTLY]),
        _side_by_side(sets),
        [only for other in later for only in _only(first, other, [m for m in matches if m.top.label == other.label])],
    )


def _check_common(first: Compared, later: Sequence[Compared]) -> None:
    for compared in (first, *later):
        if not compared.parts:
            raise UserError(f"{compared.name} has no run that is ok and has samples/s; there is nothing to compare")
    for other in later:
        if not _choices(first) & _choices(other):
            has = [f"{one.name} has {', '.join(map(str, one.parts))}" for one in (first, other)]
            raise UserError(f"{first.name} and {other.name} have no cell in common: {'; '.join(has)}")


def _choices(compared: Compared) -> set[tuple[str, ...]]:
    """Names of workloads with the strategies they ran with, wherever that was."""
    cells = [cell for part in compared.parts for cell, speeds in part.speeds.items() if speeds.logs]
    return {(_name(cell.workload), *(getattr(cell, axis) for axis in STRATEGY_AXES)) for cell in cells}


def _name(spec: str) -> str:
    return Spec.parse(spec).name


def _matches(first: Compared, other: Compared) -> list[Match]:
    found = []
    for part in other.parts:
        alike = [mine for mine in first.parts if _name(mine.workload) == _name(part.workload)]
        candidates = [Match(part, mine, differences(mine.key, part.key)) for mine in alike]
        found += sorted(candidates, key=lambda match: (match.level, len(match.differences)))[:1]
    return found


def _cell_ratios(matches: Sequence[Match]) -> list[CellRatio]:
    both = [
        (match, cell, speeds, match.below.speeds[same])
        for match in matches
        for cell, speeds in match.top.speeds.items()
        if (same := match.below.counterpart(cell)) in match.below.speeds
    ]
    estimates = [across_sets(top, below) for _, _, top, below in both]
    return [CellRatio(*of_cell, judged) for of_cell, judged in zip(both, judge(estimates), strict=True)]


def _side_by_side(sets: Sequence[Compared]) -> list[SideBySide]:
    bases = next(iter(sets[0].parts[0].speeds)).strategies
    found = {one.label: contrasts(one.records, one.manifest, bases) for one in sets}
    return [
        SideBySide(group, _rows(group, found))
        for group in _alike([part for one in sets for part in one.parts])
        if len({part.label for part in group}) > 1
    ]


def _alike(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts grouped by what they trained."""
    groups: list[list[Part]] = []
    for part in parts:
        for group in groups:
            if level(differences(group[0].key, part.key)) < Level.NOT_AT_ALL:
                group.append(part)
                break
        else:
            groups.append([part])
    return groups


def _rows(group: Sequence[Part], found: Mapping[str, Sequence[Contrast]]) -> dict[Question, list[Contrast | None]]:
    by_part = [{_question(one): one for one in found[part.label] if _is_of(one, part)} for part in group]
    questions = dict.fromkeys(question for of_part in by_part for question in of_part)
    return {question: [of_part.get(question) for of_part in by_part] for question in questions}


def _question(contrast: Contrast) -> Question:
    return contrast.axis, contrast.strategy, contrast.base


def _is_of(contrast: Contrast, part: Part) -> bool:
    return (contrast.workload, contrast.cluster, contrast.kind) == (part.workload, part.cluster, part.kind)


def _only(first: Compared, other: Compared, matches: Sequence[Match]) -> list[Only]:
    """Parts without a match, and the cells that one of two matched parts has alone."""
    matched = {(part.label, str(part)) for match in matches for part in (match.top, match.below)}
    sides = [(part, other.label) for part in first.parts] + [(part, first.label) for part in other.parts]
    found = [Only(part, missing_in, None) for part, missing_in in sides if (part.label, str(part)) not in matched]
    pairs = [(match.below, match.top) for match in matches if match.level < Level.NOT_AT_ALL]
    for mine, theirs in [*pairs, *((top, below) for below, top in pairs)]:
        lacking = [cell for cell in mine.speeds if theirs.counterpart(cell) not in theirs.speeds]
        found += [Only(mine, theirs.label, cell) for cell in lacking]
    return found
