"""The contrasts of a set as the block under its tables."""

from __future__ import annotations

from collections.abc import Sequence

from fsbench.results.cells import ShortNames
from fsbench.results.contrasts import Contrast
from fsbench.results.grid import grid
from fsbench.results.ratios import RUNS, RUNS_NEEDED, needed_text, ratio_text, rules, runs_text, verdict_text

_ABOVE = (
    "Contrasts, a strategy / the first-named of its axis: above 1, FASTER, the strategy trains more samples a second. "
    "Ratios are geometric means over the cells of the other axes; runs of one repeat are pairs:"
)
_RATIO = "samples/s ratio\n(95 % interval)"
_HEADINGS = ("workload", "cluster", "kind", "axis", "contrast", _RATIO, "verdict", RUNS, RUNS_NEEDED)


def contrast_blocks(contrasts: Sequence[Contrast], short: ShortNames, format: str) -> list[str]:
    """What introduces the table, the table, and the lines below it; nothing where no axis has two strategies.

    Args:
        format: `table` or `markdown`.
    """
    if not contrasts:
        return []
    body = [_row(contrast, short) for contrast in contrasts]
    below = [*rules([contrast.judged for contrast in contrasts], "contrasts"), *_notes(contrasts, short)]
    return [_ABOVE, grid(body, _HEADINGS, format, figures=(RUNS, RUNS_NEEDED)), "\n".join(below)]


def contrast_name(contrast: Contrast, short: ShortNames) -> str:
    """`cost-aware / naive`."""
    # A cell that never ran has no short name.
    names = short[contrast.axis]
    return " / ".join(names.get(spec, spec) for spec in (contrast.strategy, contrast.base))


def _row(contrast: Contrast, short: ShortNames) -> list[str]:
    return [
        short["workload"][contrast.workload],
        short["cluster"][contrast.cluster],
        contrast.kind.upper(),
        contrast.axis,
        contrast_name(contrast, short),
        ratio_text(contrast.judged.estimate),
        verdict_text(contrast.judged),
        runs_text(contrast.judged.estimate),
        needed_text(contrast.judged),
    ]


def _notes(contrasts: Sequence[Contrast], short: ShortNames) -> list[str]:
    opposed = [note for contrast in contrasts for note in _opposed_notes(contrast, short)]
    return [*opposed, *(_left_out_note(contrast, short) for contrast in contrasts if contrast.left_out)]


def _opposed_notes(contrast: Contrast, short: ShortNames) -> list[str]:
    if contrast.opposed is None:
        return []
    faster, slower = contrast.opposed
    return [
        f"! {_about(contrast, short)}: of {contrast.cell_pairs} pairs of cells {faster} faster and {slower} slower, "
        f"each beyond its noise: it depends on the other axes, and the mean ratio tells little"
    ]


def _left_out_note(contrast: Contrast, short: ShortNames) -> str:
    numbers = "; ".join(f"{what}: {number}" for what, number in contrast.left_out.items())
    return f"left out of {_about(contrast, short)}: {numbers}"


def _about(contrast: Contrast, short: ShortNames) -> str:
    where = f"{contrast.workload} on {contrast.cluster}, {contrast.kind.upper()}"
    return f"{contrast_name(contrast, short)} ({where})"
