"""What `fsbench run --dry-run` prints: the cells, what their strategies state of themselves, and what goes together.

Nothing here was measured and nothing is estimated. The table of combinations is made from the verdicts on the cells,
by which the runs go too.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from tabulate import tabulate

from fsbench.cli.plan import Choice, Plan
from fsbench.matrix import CELL_KEYS, IGNORED, STRATEGY_AXES, Cell


def describe(plan: Plan) -> str:
    """The plan as text, without a final line end."""
    matrix = f"matrix: {plan.matrix}, " if plan.matrix else ""
    counts = f"{matrix}cells: {len(plan.cells)}, repeats: {plan.settings.repeats}, runs: {len(plan.runs)}"
    if plan.settings.workers > 1:
        counts += f", workers: {plan.settings.workers}"
    return "\n\n".join((counts, _cells(plan), _clusters(plan), _strategies(plan), _combinations(plan)))


def _cells(plan: Plan) -> str:
    rows = [[str(number), *dataclasses.astuple(cell)] for number, cell in enumerate(plan.cells, start=1)]
    return _table(rows, ["cell", *CELL_KEYS], align=("right",))


def _clusters(plan: Plan) -> str:
    rows = [[choice.spec, choice.instance.describe(), _here(choice)] for choice in plan.choices["clusters"]]
    return _table(rows, ["cluster", "what it is", "here"])


def _strategies(plan: Plan) -> str:
    headings = ["axis", "strategy", "uses", "lanes", "lookahead", "exact", "here"]
    rows = [_strategy(axis, choice) for axis in STRATEGY_AXES for choice in plan.choices[axis]]
    return _table(rows, headings)


def _strategy(axis: str, choice: Choice) -> list[str]:
    strategy = choice.instance
    uses, lanes = sorted(strategy.uses), [lane.name for lane in strategy.lanes]
    exact = "yes" if strategy.exact else "no"
    stated = (", ".join(uses) or "nothing", ", ".join(lanes) or "none", str(strategy.lookahead), exact)
    return [axis, choice.spec, *stated, _here(choice)]


def _here(choice: Choice) -> str:
    return f"unsupported: {choice.unmet}" if choice.unmet else "runs"


def _combinations(plan: Plan) -> str:
    """Which cells do not run as they were asked for: who is to blame, and what happens instead."""
    cells: dict[tuple[str, str], list[int]] = {}
    for number, cell in enumerate(plan.cells, start=1):
        for happening in _happenings(plan, cell):
            cells.setdefault(happening, []).append(number)
    if not cells:
        return "Every strategy runs with every other, and no axis is ignored."
    rows = [[who, happens, _ranges(numbers)] for (who, happens), numbers in cells.items()]
    return _table(rows, ["together", "what happens", "cells"])


def _happenings(plan: Plan, cell: Cell) -> Iterator[tuple[str, str]]:
    for axis in STRATEGY_AXES:
        if getattr(cell, axis) == IGNORED:
            instead = f"{axis} is {IGNORED}: none of these uses it, so cells that differ only there run once"
            yield plan.indifferent(cell, axis), instead
    if obstacle := plan.obstacle(cell):
        yield obstacle.who, f"unsupported: {obstacle.reason}"


def _ranges(numbers: Sequence[int]) -> str:
    """`1-3, 7`"""
    groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _table(rows: Sequence[Sequence[str]], headings: Sequence[str], align: Sequence[str] = ()) -> str:
    return tabulate(rows, headings, tablefmt="simple", disable_numparse=True, colalign=align or None)
