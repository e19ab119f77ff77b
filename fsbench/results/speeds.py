"""The speeds of a result set that count, by cell and repeat, and the only two ways in which speeds are divided."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fsbench.matrix import Cell
from fsbench.results.cells import Record, cell_of
from fsbench.results.statistics import Estimate, unpaired

SPEED = "samples_per_s"
"""Every workload has it, and every kind of run."""
Repeat = tuple[int, int]
"""Seed and number of a repeat: runs that share it stood beside each other in the interleaved order."""


@dataclass(frozen=True)
class Speeds:
    """Logs of samples/s of a cell's runs on one kind of machine."""

    kind: str
    logs: Mapping[Repeat, float]

    @property
    def mean(self) -> float | None:
        """Their geometric mean, in samples/s: the one whose ratios are the ratios shown."""
        return math.exp(math.fsum(self.logs.values()) / len(self.logs)) if self.logs else None


def speeds_of(records: Iterable[Record]) -> dict[tuple[Cell, str], Speeds]:
    """By cell and kind. Only runs that did what was asked count: one that fell back measured something else."""
    logs: dict[tuple[Cell, str], dict[Repeat, float]] = {}
    for record in records:
        if counts(record):
            repeat = record["seed"], record["repeat"]
            logs.setdefault((cell_of(record["cell"]), record["kind"]), {})[repeat] = math.log(record["metrics"][SPEED])
    return {(cell, kind): Speeds(kind, of_cell) for (cell, kind), of_cell in logs.items()}


def counts(record: Record) -> bool:
    """Whether a run's speed counts."""
    return record["status"] == "ok" and (record["metrics"].get(SPEED) or 0) > 0


def paired_logs(top: Speeds, below: Speeds) -> dict[Repeat, float]:
    """Log ratios of the repeats in which both ran, within a set.

    Raises:
        ValueError: speeds of two kinds: a simulated and a measured one have no ratio.
    """
    _check_kinds(top, below)
    return {repeat: log - below.logs[repeat] for repeat, log in top.logs.items() if repeat in below.logs}


def across_sets(top: Speeds, below: Speeds) -> Estimate:
    """The ratio of two sets' speeds, whose runs were not interleaved.

    Raises:
        ValueError: as `paired_logs`.
    """
    _check_kinds(top, below)
    return unpaired(list(top.logs.values()), list(below.logs.values()))


def _check_kinds(top: Speeds, below: Speeds) -> None:
    if top.kind != below.kind:
        raise ValueError(f"a speed of kind {top.kind!r} and one of kind {below.kind!r} have no ratio")
