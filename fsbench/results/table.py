"""Tables of a result set: records to rows, rows to text. Loads neither numpy nor torch.

A row is a cell on one kind of machine: the medians of its runs, and how many they are. Rows of simulated and
real runs stand side by side, each with its label; nothing relates one to the other.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsbench.axes import DEFAULTS
from fsbench.matrix import CELL_KEYS, Cell
from fsbench.results.cells import Record, ShortNames, cell_of, full_name_lines, listed, short_names
from fsbench.results.comparability import changes, key_of
from fsbench.results.contrast_table import contrast_blocks
from fsbench.results.contrasts import contrasts
from fsbench.results.grid import grid
from fsbench.results.printable import as_json, printable
from fsbench.results.ratios import MISSING
from fsbench.results.schema import METRICS, STATUSES

FORMATS = ("table", "json", "csv", "markdown")
FLOOR_LIMIT = 0.05
"""Straggler shares are void where the noise floor is above it."""
COLLISION_LIMIT = 0.5
"""Above it little of an embedding exchange can be taken out of the step, whatever the strategy."""
_ONLY_WHERE_TOLD: Mapping[str, tuple[Any, ...]] = {
    "examples_per_s": (None,),
    "staleness_steps": (None, 0),
    "hot_coverage": (None,),
    "sync_gap_p50": (None,),
    "syncs_per_min": (None,),
}
"""Metrics that have a column only where a row has another value than these."""
_KIND_WORDS = {"cpu": "measured on CPU", "gpu": "measured on GPU", "sim": "simulated (SIM)"}


@dataclass(frozen=True)
class Row:
    """A cell on one kind of machine.

    `metrics`: medians over the runs that have a value, `missing`: why a metric has none. `runs`: how many are
    behind them. `statuses`: how many of all its runs ended how.
    """

    cell: Cell
    kind: str
    runs: int
    statuses: Mapping[str, int]
    metrics: Mapping[str, Any]
    missing: Mapping[str, str]

    @property
    def status(self) -> str:
        """`ok`, or, where runs of the cell ended differently, `2 ok, 1 failed`."""
        if len(self.statuses) == 1:
            return next(iter(self.statuses))
        return ", ".join(f"{self.statuses[status]} {status}" for status in STATUSES if status in self.statuses)


@dataclass(frozen=True)
class Column:
    """A column of a printed table: its heading, and the text of a row in it, or None where it has no figure.

    `metric`: whose absence a foot-note explains, if any.
    """

    heading: str
    text: Callable[[Row], str | None]
    metric: str = ""


def aggregate(records: Sequence[Record], manifest: Mapping[str, Any] | None = None) -> list[Row]:
    """One row for each cell and kind, in the order of the manifest's cells: first-named first."""
    groups: dict[tuple[Cell, str], list[Record]] = {}
    for record in records:
        groups.setdefault((cell_of(record["cell"]), record["kind"]), []).append(record)
    places = {cell_of(cell): place for place, cell in enumerate(listed(manifest, "cells"))}
    order = sorted(groups, key=lambda group: (places.get(group[0], len(places)), group))
    return _with_inflation([_row(cell, kind, groups[cell, kind]) for cell, kind in order])


def _with_inflation(rows: Sequence[Row]) -> list[Row]:
    """Relates each row's compute to the reference strategies' on the same workload, cluster and kind of machine.

    It is a property of the set, derived here and stored nowhere.
    """
    compute = {(row.cell, row.kind): row.metrics["compute_us_per_sample"] for row in rows}
    return [_inflated(row, compute.get((replace(row.cell, **DEFAULTS), row.kind))) for row in rows]


def _inflated(row: Row, reference: float | None) -> Row:
    own = row.metrics["compute_us_per_sample"]
    if own is None or not reference:
        reason = row.missing.get("compute_us_per_sample") or f"the set has no {'+'.join(DEFAULTS.values())} cell of it"
        return replace(row, missing={**row.missing, "compute_inflation": reason})
    missing = {name: reason for name, reason in row.missing.items() if name != "compute_inflation"}
    return replace(row, metrics={**row.metrics, "compute_inflation": own / reference}, missing=missing)


def render(records: Sequence[Record], format: str = "table", manifest: Mapping[str, Any] | None = None) -> str:
    """The result set as text, without a final line end.

    Args:
        format: one of `FORMATS`. `csv` and `json` hold every metric in full precision, under its schema name.
        manifest: tells the order of the cells and how many runs were planned.
    """
    records, manifest = printable(list(records), format), printable(manifest, format)
    rows = aggregate(records, manifest)
    if format == "csv":
        return _csv(rows)
    if format == "json":
        return as_json([_json_row(row) for row in rows])
    planned = len({*listed(manifest, "runs"), *(record["run_id"] for record in records)})
    return _report(rows, records, manifest, format, planned)


def _row(cell: Cell, kind: str, records: Sequence[Record]) -> Row:
    """Figures come from the runs of the best status: those that fell back never mix with the others."""
    statuses = Counter(record["status"] for record in records)
    best = min(statuses, key=STATUSES.index)
    chosen = [record for record in records if record["status"] == best]
    metrics = {name: _median([record["metrics"].get(name) for record in chosen]) for name in METRICS}
    reasons: dict[str, str] = {}
    for record in chosen:
        reasons = {**record["missing"], **reasons}
    missing = {name: reasons.get(name, "not recorded") for name, value in metrics.items() if value is None}
    return Row(cell, kind, len(chosen), statuses, metrics, missing)


def _median(values: Iterable[Any]) -> Any:
    """The median of numbers, key by key of objects; None where there are none."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if isinstance(present[0], Mapping):
        keys = dict.fromkeys(key for value in present for key in value)
        return {key: _median([value.get(key) for value in present]) for key in keys}
    return statistics.median(present)


def _report(
    rows: Sequence[Row], records: Sequence[Record], manifest: Mapping[str, Any] | None, format: str, planned: int
) -> str:
    notes: dict[str, int] = {}
    short = short_names(row.cell for row in rows)
    labels = _label_columns(rows, short)
    speed_columns = [*_told(_SPEED_COLUMNS, rows), *_quality_columns(rows)]
    parts_columns = _told(_PARTS_COLUMNS, rows)
    speed = _grid(rows, [*labels, *speed_columns], format, notes)
    parts = _grid(rows, [*labels, *parts_columns], format, notes)
    remarks = [*full_name_lines(short), *_worker_lines(records), *_floor_lines(rows), *_collision_lines(rows)]
    remarks += [*_legend_lines([*speed_columns, *parts_columns]), *_protocol_lines(records)]
    footnotes = "\n".join(f"[{number}] {note}" for note, number in notes.items())
    blocks = [
        _heading(rows, records, planned),
        speed,
        "Where the bubble went, % of all ranks' step windows; in each run the parts sum to the bubble:",
        parts,
        footnotes,
        *contrast_blocks(contrasts(records, manifest), short, format),
        "\n".join(_change_lines(rows, manifest)),
        "\n".join(remarks),
        "\n".join(_trouble_lines(records)),
    ]
    return "\n\n".join(block for block in blocks if block)


def _told(columns: Iterable[Column], rows: Sequence[Row]) -> list[Column]:
    """Without those of `_ONLY_WHERE_TOLD` that tell nothing of any row."""
    return [column for column in columns if _is_told(column.metric, rows)]


def _is_told(metric: str, rows: Sequence[Row]) -> bool:
    idle = _ONLY_WHERE_TOLD.get(metric)
    return idle is None or any(row.metrics[metric] not in idle for row in rows)


def _heading(rows: Sequence[Row], records: Sequence[Record], planned: int) -> str:
    kinds = [words for kind, words in _KIND_WORDS.items() if any(row.kind == kind for row in rows)]
    runs = _count(len(records), "run")
    if planned > len(records):
        runs = f"{len(records)} of {_count(planned, 'run')}"
    cells = _count(len({row.cell for row in rows}), "cell")
    return f"{cells}, {runs}, {' and '.join(kinds)}; medians over the runs of a cell"


def _grid(rows: Sequence[Row], columns: Sequence[Column], format: str, notes: dict[str, int]) -> str:
    """The rows as text. Adds to `notes`, by text, the number of each foot-note it needs."""
    body = [[_entry(row, column, notes) for column in columns] for row in rows]
    figures = [column.heading for column in columns if column.metric]
    return grid(body, [column.heading for column in columns], format, figures)


def _entry(row: Row, column: Column, notes: dict[str, int]) -> str:
    text = column.text(row)
    if text is not None:
        return text
    reason = row.missing.get(column.metric, "not recorded")
    return f"{MISSING} [{notes.setdefault(reason, len(notes) + 1)}]"


def _label_columns(rows: Sequence[Row], short: ShortNames) -> list[Column]:
    """What tells the rows apart: the workload, the sharding, and whatever else differs between them."""
    labels = [_label(key, names) for key, names in short.items() if key in ("workload", "sharding") or len(names) > 1]
    return [*labels, Column("kind", lambda row: row.kind.upper())]


def _label(key: str, names: Mapping[str, str]) -> Column:
    return Column(key, lambda row: names[getattr(row.cell, key)])


def _number(heading: str, metric: str, form: Callable[[float], str]) -> Column:
    def text(row: Row) -> str | None:
        value = row.metrics[metric]
        return None if value is None else form(value)

    return Column(heading, text, metric)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _figures(value: float) -> str:
    """Three significant figures; all of them before the point."""
    if value == 0:
        return "0"
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{decimals}f}" if abs(value) >= 0.1 else f"{value:.3g}"


def _four_decimals(value: float) -> str:
    return f"{value:.4f}"


def _ndcg(row: Row) -> str | None:
    value, error = row.metrics["ndcg_at_10"], row.metrics["ndcg_at_10_se"]
    if value is None:
        return None
    return f"{value:.4f} ± {MISSING if error is None else f'{error:.4f}'}"


_SPEED_COLUMNS = (
    Column("status", lambda row: row.status),
    Column("runs", lambda row: str(row.runs)),
    _number("step ms\np50", "step_ms_p50", _figures),
    _number("samples/s", "samples_per_s", _figures),
    _number("EPS", "examples_per_s", _figures),
    _number("bubble\n%", "bubble", _percent),
    _number("lost us\n/sample", "lost_us_per_sample", _figures),
    _number("compute\ninflation", "compute_inflation", _figures),
    _number("stale\nsteps", "staleness_steps", "{:g}".format),
)
_RANKING_COLUMNS = (
    Column("NDCG@10\n± s.e.", _ndcg, "ndcg_at_10"),
    _number("HR@10", "hr_at_10", _four_decimals),
    _number("NDCG@10\nseen kept", "ndcg_at_10_unfiltered", _four_decimals),
    _number("NDCG@10 of\npopularity", "popularity_ndcg_at_10", _four_decimals),
)
_CLICK_COLUMNS = (
    _number("NE", "ne", _four_decimals),
    _number("AUC", "auc", _four_decimals),
)
_PARTS_COLUMNS = (
    _number("bubble\n%", "bubble", _percent),
    *(
        _number(f"{part}\n%", f"bubble_{part}", _percent)
        for part in ("straggler", "embedding", "dense", "shuffle", "strategy", "input", "preempted", "other")
    ),
    _number("straggler\nfloor %", "straggler_floor", lambda floor: _percent(floor) + " !" * _above(floor)),
    _number("collision\nrate %", "collision_rate", _percent),
    _number("hot\n%", "hot_coverage", _percent),
    _number("sync gap\nsteps", "sync_gap_p50", _figures),
    _number("syncs\n/min", "syncs_per_min", _figures),
)


def _quality_columns(rows: Sequence[Row]) -> list[Column]:
    """Of ranking, and of click-through where a run has it; of that alone, where no run has the other."""
    clicks = list(_CLICK_COLUMNS) if _have(rows, "ne") or _have(rows, "auc") else []
    return [*(_RANKING_COLUMNS if _have(rows, "ndcg_at_10") or not clicks else ()), *clicks]


def _have(rows: Sequence[Row], metric: str) -> bool:
    return any(row.metrics[metric] is not None for row in rows)


def _by_machine(rows: Sequence[Row], metric: str) -> dict[str, float]:
    """The median over the rows of a workload and cluster; real and simulated ranks have figures of their own."""
    figures: dict[str, list[float]] = {}
    for row in rows:
        if (value := row.metrics[metric]) is not None:
            where = f"{row.cell.workload} on {row.cell.cluster}, {row.kind.upper()}"
            figures.setdefault(where, []).append(value)
    return {where: statistics.median(values) for where, values in figures.items()}


def _floor_lines(rows: Sequence[Row]) -> list[str]:
    return [_floor_line(where, floor) for where, floor in _by_machine(rows, "straggler_floor").items()]


def _above(floor: float) -> bool:
    """As printed: a floor shown as 5.0 % is not above 5 %."""
    return round(floor, 3) > FLOOR_LIMIT


def _floor_line(where: str, floor: float) -> str:
    line = f"noise floor: every rank the same samples: {_percent(floor)} % straggler share ({where})"
    return f"! {line}: above 5 %, the machine is too busy to compare stragglers" if _above(floor) else line


def _collision_lines(rows: Sequence[Row]) -> list[str]:
    """What a high rate means, where it is high."""
    return [
        f"collision rate: the next batch needs {_percent(rate)} % of a batch's rows: prioritising can hide at most "
        f"{_percent(1 - rate)} % of the embedding exchange behind compute, and part of the rest beside the dense "
        f"gradients ({where})"
        for where, rate in _by_machine(rows, "collision_rate").items()
        if rate > COLLISION_LIMIT
    ]


def _legend_lines(columns: Iterable[Column]) -> list[str]:
    """What the columns mean that not every table has."""
    told = [column for column in columns if column.metric in _ONLY_WHERE_TOLD]
    names = [column.heading.splitlines()[0] + ": " for column in told]
    return [name + METRICS[of.metric].meaning.removeprefix(name) for name, of in zip(names, told, strict=True)]


def _worker_lines(records: Sequence[Record]) -> list[str]:
    numbers = sorted({record.get("workers", 1) for record in records})
    return [
        f"workers: {number} threads train on each rank, without locks over one copy of its dense parameters; each is a "
        f"rank of its own in what is said of steps, windows and stragglers"
        for number in numbers
        if number > 1
    ]


def _protocol_lines(records: Sequence[Record]) -> list[str]:
    lines: set[str] = set()
    for record in records:
        evaluation = record["observed"].get("evaluation")
        if isinstance(evaluation, Mapping) and evaluation.get("protocol"):
            lines.add(f"evaluation: {evaluation['protocol']} ({record['cell']['workload']})")
    return sorted(lines)


def _change_lines(rows: Sequence[Row], manifest: Mapping[str, Any] | None) -> list[str]:
    """What was not the same for all runs of a resumed set, pairs included."""
    keys = [key_of(manifest or {}, row.cell.workload, row.cell.cluster, row.kind) for row in rows]
    changed = dict.fromkeys(change for key in keys for change in changes(key))
    return [f"! resumed under other circumstances, so that runs may not compare: {change}" for change in changed]


def _trouble_lines(records: Sequence[Record]) -> list[str]:
    """Each run that is not `ok`, and why."""
    return [
        f"{record['status']}: {cell_of(record['cell'])}, repeat {record['repeat']}: {record['reason']}"
        for record in records
        if record["status"] != "ok"
    ]


def _csv(rows: Sequence[Row]) -> str:
    """Objects become JSON; a metric without a value is an empty field, explained in the last one."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*CELL_KEYS, "kind", "status", "runs", *METRICS, "missing"])
    for row in rows:
        cell = [getattr(row.cell, key) for key in CELL_KEYS]
        metrics = [json.dumps(value) if isinstance(value, Mapping) else value for value in row.metrics.values()]
        missing = "; ".join(f"{name}: {reason}" for name, reason in row.missing.items())
        writer.writerow([*cell, row.kind, row.status, row.runs, *metrics, missing])
    return out.getvalue().removesuffix("\n")


def _json_row(row: Row) -> dict[str, Any]:
    return {
        "cell": {key: getattr(row.cell, key) for key in CELL_KEYS},
        "kind": row.kind,
        "status": row.status,
        "runs": row.runs,
        "metrics": row.metrics,
        "missing": row.missing,
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
