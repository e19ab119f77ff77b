"""What a strategy changes in quality: differences between cells that train with the same seed, with 95 % intervals.

`python -m tests.bench.differences AXIS FIRST RESULT.. [--metric loss] [--metric ndcg_at_10]`: every other strategy of
the axis less FIRST, all else equal. A result set has one seed: several of them make an interval.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tabulate import tabulate

from fsbench.results.student import quantile

METRICS = ("loss", "ndcg_at_10")


def difference_text(differences: Sequence[float]) -> str:
    """`+0.0012 (-0.0003 to +0.0027)`: mean, and Student's interval."""
    mean = fmean(differences)
    if len(differences) < 2:
        return f"{mean:+.4f} (no interval)"
    half = quantile(0.05, len(differences) - 1) * stdev(differences) / len(differences) ** 0.5
    return f"{mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f})"


def pairs(records: Sequence[dict[str, Any]], axis: str, first: str, metric: str) -> dict[tuple[str, str], list[float]]:
    """By workload and strategy: its figure less that of `first`, seed by seed."""
    figures: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for record in records:
        cell = dict(record["cell"])
        strategy = cell.pop(axis)
        if record["status"] == "ok" and record["metrics"][metric] is not None:
            figures[(*cell.values(), record["seed"], record["repeat"])][strategy] = record["metrics"][metric]
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (workload, *_), by_strategy in figures.items():
        for strategy, figure in by_strategy.items():
            if strategy != first and first in by_strategy:
                found[workload, strategy].append(figure - by_strategy[first])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("axis")
    parser.add_argument("first")
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--metric", action="append")
    asked = parser.parse_args()
    lines = [line for result in asked.results for line in (result / "runs.jsonl").read_text().splitlines()]
    records = list(map(json.loads, lines))
    rows = [
        (workload, metric, f"{strategy} - {asked.first}", difference_text(values), len(values))
        for metric in asked.metric or METRICS
        for (workload, strategy), values in pairs(records, asked.axis, asked.first, metric).items()
    ]
    print(tabulate(rows, headers=["workload", "metric", "difference", "mean (95 % interval)", "runs"]))


if __name__ == "__main__":
    main()
