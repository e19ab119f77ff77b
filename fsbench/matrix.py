"""From axes to cells to runs: what is run, in which order. Pure: the same input gives the same plan."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsbench.options import Spec

IGNORED = "-"
"""Stands in a cell for an axis that no strategy of the cell uses."""
DRIVEN_AXES = frozenset({"sharding", "embedding", "sync"})
"""Axes that every step goes through. The others serve strategies, and matter only where one `uses` them."""


@dataclass(frozen=True, order=True)
class Cell:
    """One strategy per axis, on one workload and one cluster; each as `name[:options]` or `-`."""

    workload: str
    cluster: str
    sharding: str
    embedding: str
    collectives: str
    sync: str

    @property
    def strategies(self) -> dict[str, str]:
        """The strategies by axis, without the ignored ones."""
        values = {axis: getattr(self, axis) for axis in STRATEGY_AXES}
        return {axis: value for axis, value in values.items() if value != IGNORED}

    def __str__(self) -> str:
        return f"{self.workload} on {self.cluster}: {' + '.join(self.strategies.values())}"


BUILT_IN: Mapping[str, Sequence[str]] = {
    "workloads": ("ml-100k",),
    "clusters": ("local:ranks=2",),
    "sharding": ("naive", "cost-aware"),
    "embedding": ("plain", "prioritized"),
    "collectives": ("backend", "host-staged"),
    "sync": ("allreduce", "shadow-ma"),
}
"""The matrix of `fsbench run --matrix` alone: 16 cells. `examples/matrix.toml` writes it out."""
MOST = 10**9
"""More steps, repeats or seconds than this are a slip of the finger."""
MOST_WORKERS = 64
"""Threads of a rank share one Python interpreter."""
MOST_CELLS = 1000
MOST_RUNS = 100_000
"""At ten seconds a run, `MOST_CELLS` take three hours, and so many runs a week and a half."""
CELL_KEYS = tuple(field.name for field in dataclasses.fields(Cell))
STRATEGY_AXES = tuple(key for key in CELL_KEYS if key not in ("workload", "cluster"))


@dataclass(frozen=True)
class RunSpec:
    """One execution of a cell. `steps`: how many to train, or None for the workload's default. `workers`: threads that
    train on each rank."""

    run_id: str
    cell: Cell
    repeat: int
    seed: int
    steps: int | None
    time_limit_s: int
    stall_limit_s: int = 300
    workers: int = 1


@dataclass(frozen=True)
class Settings:
    """What `--set KEY=VALUE` may change.

    `repeats`: runs of each cell. `steps`: steps a run, by default the workload's own; every worker takes as many.
    `workers`: threads that train on each rank, over one copy of its dense parameters (Hogwild). `seed`: seeds training
    and the order of the runs. `time_limit_s`: when a run is stopped, in seconds. `stall_limit_s`: for how many of them
    no rank may come to another phase or step; the default leaves a first step time to compile.
    """

    repeats: int = 1
    steps: int | None = None
    workers: int = 1
    seed: int = 1
    time_limit_s: int = 600
    stall_limit_s: int = 300

    def __post_init__(self) -> None:
        for name in ("repeats", "steps", "time_limit_s", "stall_limit_s"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: expected 1 or more")
            if value is not None and value > MOST:
                raise ValueError(f"{name}={value}: expected at most {MOST}")
        if not 1 <= self.workers <= MOST_WORKERS:
            raise ValueError(f"workers={self.workers}: expected 1 to {MOST_WORKERS}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed}: expected 0 to 2**63 - 1")


def product(workloads: Sequence[str], clusters: Sequence[str], axes: Mapping[str, Sequence[str]]) -> tuple[Cell, ...]:
    """Every combination, first-named first, each once. The last axis varies fastest."""
    choices = (workloads, clusters, *(axes[axis] for axis in STRATEGY_AXES))
    return tuple(dict.fromkeys(Cell(*combination) for combination in itertools.product(*choices)))


def ignored_axes(cell: Cell, uses: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """The axes of a cell that make no difference to it.

    Args:
        uses: by axis, the `uses` of the cell's strategy there.
    """
    used = DRIVEN_AXES.union(*(uses[axis] for axis in cell.strategies))
    return tuple(axis for axis in cell.strategies if axis not in used)


def effective_cell(cell: Cell, uses: Mapping[str, frozenset[str]]) -> Cell:
    """The cell with `-` on the axes that make no difference to it: cells that differ only there are one."""
    return dataclasses.replace(cell, **dict.fromkeys(ignored_axes(cell, uses), IGNORED))


def interleave(cells: Sequence[Cell], settings: Settings) -> tuple[RunSpec, ...]:
    """Runs in the order of execution: all cells once, then all again; shuffled within each repeat.

    A machine that slowly warms up or fills up thus hits all cells alike. The order of a repeat depends on the
    seed and the repeat alone, so that asking for more repeats leaves the earlier ones as they were. All
    repeats train with the same seed: they differ by the machine only.
    """
    return tuple(
        RunSpec(
            run_id(cell, repeat, settings.seed),
            cell,
            repeat,
            settings.seed,
            settings.steps,
            settings.time_limit_s,
            settings.stall_limit_s,
            settings.workers,
        )
        for repeat in range(1, settings.repeats + 1)
        for cell in _shuffled(cells, f"{settings.seed}/{repeat}")
    )


def run_id(cell: Cell, repeat: int, seed: int) -> str:
    """`cost-aware-plain-backend-allreduce-r1-5c0e21`: readable, and always the same for the same run."""
    names = "-".join(Spec.parse(strategy).name for strategy in cell.strategies.values())
    key = "\n".join((*dataclasses.astuple(cell), str(repeat), str(seed)))
    return f"{names}-r{repeat}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def _shuffled(cells: Sequence[Cell], key: str) -> list[Cell]:
    return random.Random(key).sample(cells, len(cells))
