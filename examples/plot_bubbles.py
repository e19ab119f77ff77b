"""Draws where the time of a step went, one bar a cell: python examples/plot_bubbles.py RESULT... --out FILE.svg

A bar is as long as the median step, and a step takes as long as its slowest rank. It is divided in proportion to all
ranks' step windows, into compute and the parts of the bubble. Figures are those of `fsbench show`: medians over the
runs of a cell. Medians of shares need not sum to one, so they are scaled to fill the bar.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from fsbench.errors import FsbenchError, UserError
from fsbench.matrix import STRATEGY_AXES
from fsbench.results.cells import Record, cell_of, short_names
from fsbench.results.store import ResultSet
from fsbench.results.table import Row, aggregate

try:
    from matplotlib import style
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
except ImportError:
    sys.exit("plot_bubbles: error: drawing needs matplotlib: pip install 'fsbench[plot]'")

BUBBLE = ("straggler", "embedding", "dense", "shuffle", "strategy", "input", "preempted", "other")
# Okabe and Ito's colours, which the colour-blind can tell apart; compute recedes.
COLOURS = ("#d55e00", "#0072b2", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#e69f00", "#555555")
COLOUR_OF = {"compute": "#cccccc", **dict(zip(BUBBLE, COLOURS, strict=True))}
DARK = ("straggler", "embedding", "shuffle", "other")
NEEDED = ("bubble", *(f"bubble_{part}" for part in BUBBLE), "step_ms_p50", "samples_per_s")
NOTE = (
    "A bar is the median step in ms, divided in proportion to all ranks' step windows; all but compute is bubble. "
    "Medians over the runs of a cell; bold: most samples/s (no verdict)."
)
# Text stays text, a user's own settings stay out, and the same set gives the same bytes.
REPRODUCIBLE = {"svg.fonttype": "none", "svg.hashsalt": "fsbench"}
LOOK = {"font.size": 9, "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left"}
POINTS_A_LETTER = 5.4


class Column(NamedTuple):
    """What the strategies of an axis are called, and where that stands: in points, from where the bars begin."""

    axis: str
    names: Mapping[str, str]
    left: float


def drawable(records: Sequence[Record]) -> Iterator[Record]:
    """The records that have all that is drawn; says why the others are left out."""
    for record in records:
        absent = next((name for name in NEEDED if record["metrics"].get(name) is None), None)
        if absent is None:
            yield record
        else:
            reason = record["missing"].get(absent, "not recorded")
            say(f"left out for want of {absent}: {cell_of(record['cell'])}, repeat {record['repeat']}: {reason}")


def panels_of(rows_by_set: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """By title, the rows of one workload, cluster and kind of machine. Titles name the set if there are several."""
    panels: dict[str, list[Row]] = {}
    for name, rows in rows_by_set.items():
        prefix = f"{name}: " if len(rows_by_set) > 1 else ""
        for row in rows:
            title = f"{prefix}{row.cell.workload} on {row.cell.cluster} ({row.kind.upper()})"
            panels.setdefault(title, []).append(row)
    return panels


def divide(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds of the median step by part; they sum to it."""
    shares = {"compute": 1 - metrics["bubble"]} | {part: metrics[f"bubble_{part}"] for part in BUBBLE}
    scale = metrics["step_ms_p50"] / sum(shares.values())
    return {part: share * scale for part, share in shares.items()}


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """A column for each axis on which the cells differ; for all of them where none does."""
    short = short_names(row.cell for row in rows)
    columns: list[Column] = []
    left = 0.0
    for axis in reversed([axis for axis in STRATEGY_AXES if len(short[axis]) > 1] or STRATEGY_AXES):
        left -= POINTS_A_LETTER * (2 + max(map(len, (axis, *short[axis].values()))))
        columns.insert(0, Column(axis, short[axis], left))
    return columns


def longest(of: Row, rows: Sequence[Row]) -> float:
    """The longest step, in ms, on the scale of a row: panels of a workload, whatever its options, share theirs."""

    def scale(row: Row) -> tuple[str, str]:
        return row.cell.workload.partition(":")[0], row.kind

    return max(row.metrics["step_ms_p50"] for row in rows if scale(row) == scale(of))


def draw(panels: Mapping[str, Sequence[Row]]) -> Figure:
    all_rows = [row for rows in panels.values() for row in rows]
    columns = columns_of(all_rows)
    heights = [len(rows) + 1.3 for rows in panels.values()]
    figure = Figure((max(10, 6.5 - columns[0].left / 72), 0.9 + 0.27 * sum(heights)), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, rows) in zip(all_axes, panels.items(), strict=True):
        limit = longest(rows[0], all_rows)
        axes.set(title=title, xlim=(0, 1.3 * limit), ylim=(len(rows) - 0.5, -0.5), yticks=[])
        axes.spines[["left", "right", "top"]].set_visible(False)
        draw_labels(axes, rows, columns)
        draw_bars(axes, rows, limit)
    legend = [Patch(color=colour, label=part) for part, colour in COLOUR_OF.items()]
    figure.legend(handles=legend, loc="outside upper center", ncols=len(legend), frameon=False)
    figure.supxlabel(NOTE, fontsize=8)
    return figure


def draw_labels(axes: Axes, rows: Sequence[Row], columns: Sequence[Column]) -> None:
    for axis, names, left in columns:
        axes.annotate(axis, (0, 1), (left, 6), "axes fraction", "offset points", color="#777777")
        for place, row in enumerate(rows):
            text = names[getattr(row.cell, axis)]
            axes.annotate(text, (0, place), (left, 0), "data", "offset points", va="center", annotation_clip=False)


def draw_bars(axes: Axes, rows: Sequence[Row], limit_ms: float) -> None:
    most = max(row.metrics["samples_per_s"] for row in rows)
    decimals = max(0, 2 - math.floor(math.log10(limit_ms)))
    for place, row in enumerate(rows):
        left = 0.0
        for part, ms in divide(row.metrics).items():
            axes.barh(place, ms, left=left, color=COLOUR_OF[part], edgecolor="white", linewidth=0.4)
            text = f"{ms:.{decimals}f}"
            if ms > 0.016 * len(text) * limit_ms:  # else it would not fit
                ink = "white" if part in DARK else "black"
                axes.text(left + ms / 2, place, text, color=ink, fontsize=8, ha="center", va="center")
            left += ms
        weight = "bold" if len(rows) > 1 and row.metrics["samples_per_s"] == most else "normal"
        axes.annotate(speed_of(row), (left, place), (5, 0), "data", "offset points", va="center", weight=weight)


def speed_of(row: Row) -> str:
    """What stands at the end of a bar."""
    status = "" if row.status == "ok" else f" ({row.status})"
    return f"{row.metrics['samples_per_s']:,.0f} samples/s, {row.runs} run{'s' * (row.runs != 1)}{status}"


@click.command()
@click.argument("results", metavar="RESULT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The figure: FILE.svg or FILE.png.")
def plot(results: Sequence[Path], out: Path) -> None:
    """Draws where the time of a step went, one bar a cell. RESULT is the folder of a result set."""
    if out.suffix not in (".svg", ".png"):
        raise UserError(f"--out {out}: expected a name that ends in .svg or .png")
    sets = {str(result): ResultSet.open(result) for result in results}
    rows = {name: aggregate(list(drawable(of.records())), of.manifest()) for name, of in sets.items()}
    if not any(rows.values()):
        raise UserError(f"no run of {', '.join(rows)} can be drawn")
    undated = {"Date": None} if out.suffix == ".svg" else None
    try:
        with style.context(["default", REPRODUCIBLE, LOOK]):
            draw(panels_of(rows)).savefig(out, dpi=150, bbox_inches="tight", metadata=undated)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from None


def say(message: str) -> None:
    click.echo(f"plot_bubbles: {' '.join(message.split())}", err=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; a failure is one line and an exit code."""
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
    try:
        return plot.main(arguments, "plot_bubbles", standalone_mode=False) or 0
    except (FsbenchError, click.ClickException) as error:
        say(f"error: {error.format_message() if isinstance(error, click.ClickException) else error}")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
