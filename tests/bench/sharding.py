"""Balance, time and bytes moved of the shardings, beside the algorithms of public suites, in one run.

Samples have lengths of several distributions, capped at 21,000, and cost 24 L d^2 + 4 L^2 d at d = 256: a layer of a
transformer. Every rank loads 128 of them. `verl` is a public suite's partitioner as its users run it (`public.py`); the
partitioners of `tests.partitioners` are the public algorithms in plain and lean Python; `numpy.argsort` of the costs is
what no sorting answer can beat.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from tabulate import tabulate

from fsbench.axes import BatchMeta
from fsbench.options import Spec
from fsbench.plugins import create
from tests import partitioners
from tests.bench import public

WIDTH = 256
LONGEST = 21_000
PER_RANK = 128
DISTRIBUTIONS: Mapping[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "gamma(0.78, 6100)": lambda rng, n: rng.gamma(0.78, 6100, n),
    "lognormal(6, 1.5)": lambda rng, n: rng.lognormal(6, 1.5, n),
    "lognormal(6, 1.2)": lambda rng, n: rng.lognormal(6, 1.2, n),
    "exponential(300)": lambda rng, n: rng.exponential(300, n),
    "uniform": lambda rng, n: rng.uniform(1, LONGEST, n),
    "zipf(1.2)": lambda rng, n: rng.zipf(1.2, n).astype(np.float64),
}
Assign = Callable[[BatchMeta], np.ndarray]


def batch_of(distribution: str, ranks: int, seed: int = 0, speeds: np.ndarray | None = None) -> BatchMeta:
    n = ranks * PER_RANK
    drawn = DISTRIBUTIONS[distribution](np.random.default_rng(seed), n)
    tokens = np.rint(np.minimum(drawn, LONGEST)).clip(1).astype(np.int64)
    costs = 24.0 * tokens * WIDTH**2 + 4.0 * tokens.astype(np.float64) ** 2 * WIDTH
    source = np.repeat(np.arange(ranks, dtype=np.int32), PER_RANK)
    return BatchMeta(costs, tokens, tokens * 8, source, ranks, np.ones(ranks) if speeds is None else speeds, None, 0)


def strategy(spec: str) -> Assign:
    assign: Assign = create("sharding", Spec.parse(spec)).assign
    return assign


def plain(partition: Callable[..., list[int]], **options: object) -> Assign:
    """A partitioner on lists, as a sharding."""
    return lambda batch: np.array(partition(batch.costs.tolist(), batch.ranks, **options))


def of_parts(partition: Callable[[list[float], int], list[list[int]]]) -> Assign:
    """A partitioner that answers with the samples of each rank, as a sharding."""

    def assign(batch: BatchMeta) -> np.ndarray:
        parts = partition(batch.costs.tolist(), batch.ranks)
        assignment = np.empty(len(batch.costs), np.int64)
        assignment[np.concatenate(parts)] = np.repeat(np.arange(batch.ranks), [len(part) for part in parts])
        return assignment

    return assign


VERL = f"{public.VERSION}: Karmarkar-Karp, equal"
LEAN = {
    "lean Python: Karmarkar-Karp, equal": plain(partitioners.karmarkar_karp, equal=True),
    "lean Python: heap LPT, equal": plain(partitioners.heap_lpt, places=PER_RANK),
    "lean Python: heap LPT, free": plain(partitioners.heap_lpt),
}
PUBLIC = {**({VERL: of_parts(verl)} if (verl := public.karmarkar_karp()) else {}), **LEAN}
SLOW = {"lean Python: Karmarkar-Karp, free": plain(partitioners.karmarkar_karp, equal=False)}
"""Takes 13 s for 256 ranks."""
OURS = {
    spec: strategy(spec)
    for spec in (
        "naive",
        "snake",
        "variable-batch:alpha=2",
        "karmarkar-karp",
        "lpt",
        "lpt:counts=free",
        "cost-aware",
        "cost-aware:counts=free",
    )
}


@dataclass(frozen=True)
class Measured:
    """`over_bound`: the slowest rank over max(mean, largest sample), less one; `moved`: share of all bytes."""

    ms: float
    over_bound: float
    over_mean: float
    moved: float


def measure(assign: Assign, batch: BatchMeta, repeats: int = 3) -> Measured:
    """The shortest of some repeats, as the machine only ever adds; with Python's garbage collector, as users run it."""
    times = []
    gc.enable()
    for _ in range(repeats):
        begin = time.perf_counter()
        assignment = assign(batch)
        times.append(time.perf_counter() - begin)
    seconds = np.bincount(assignment, batch.costs, batch.ranks) / batch.speeds
    mean = batch.costs.sum() / batch.speeds.sum()
    bound = max(mean, batch.costs.max() / batch.speeds.max())
    moved = batch.bytes[assignment != batch.source].sum() / batch.bytes.sum()
    return Measured(min(times) * 1e3, seconds.max() / bound - 1, seconds.max() / mean, float(moved))


def argsort_ms(batch: BatchMeta) -> float:
    """`numpy.argsort` of the costs, the shortest of some repeats."""
    return measure(lambda batch: np.argsort(batch.costs) * 0, batch, repeats=9).ms


def medians(measured: Sequence[Measured]) -> Measured:
    columns = zip(*((m.ms, m.over_bound, m.over_mean, m.moved) for m in measured), strict=True)
    return Measured(*map(median, columns))


Table = dict[str, dict[str, Measured]]
"""By distribution, then by method."""


def compare(ranks: int, seeds: int, methods: Mapping[str, Assign]) -> Table:
    """Medians over seeds. Methods take turns, so that all see the same machine."""
    found = {}
    for distribution in DISTRIBUTIONS:
        batches = [batch_of(distribution, ranks, seed) for seed in range(seeds)]
        each = [{name: measure(assign, batch) for name, assign in methods.items()} for batch in batches]
        found[distribution] = {name: medians([one[name] for one in each]) for name in methods}
    return found


def report(found: Table) -> str:
    headings = ["lengths", "method", "ms", "above the bound", "max / mean", "bytes moved"]
    rows = [
        [lengths, method, f"{m.ms:.2f}", f"{m.over_bound:.4%}", f"{m.over_mean:.5f}", f"{m.moved:.1%}"]
        for lengths, methods in found.items()
        for method, m in methods.items()
    ]
    return tabulate(rows, headings, disable_numparse=True, colalign=["left", "left", *["right"] * 4])


@dataclass(frozen=True)
class Bar:
    """What must be reached: a figure and its limit, `at_least` or at most."""

    what: str
    figure: float
    limit: float
    unit: str
    at_least: bool = False

    def row(self) -> list[str]:
        met = self.figure >= self.limit if self.at_least else self.figure <= self.limit
        figure, limit = (f"{value:.4%}" if self.unit == "%" else f"{value:.2f} {self.unit}" for value in self.figures)
        return [self.what, figure, f"{'at least' if self.at_least else 'at most'} {limit}", "met" if met else "MISSED"]

    @property
    def figures(self) -> tuple[float, float]:
        return self.figure, self.limit


def bars_at_256(found: Table) -> list[Bar]:
    """Of the table on 256 ranks: 32,768 samples."""
    bars = []
    for lengths in ("gamma(0.78, 6100)", "lognormal(6, 1.5)"):
        argsort = median(argsort_ms(batch_of(lengths, 256, seed)) for seed in range(3))
        ours = found[lengths]["cost-aware"]
        bars.append(Bar(f"{lengths}: above the bound", ours.over_bound, 0.0005, "%"))
        bars.append(Bar(f"{lengths}: time (argsort: {argsort:.2f} ms)", ours.ms, max(8 * argsort, 25), "ms"))
    ours = found["lognormal(6, 1.2)"]["cost-aware"]
    bars.append(Bar("lognormal(6, 1.2): above the bound", ours.over_bound, 0.0005, "%"))
    bars.append(Bar("lognormal(6, 1.2): time", ours.ms, 40, "ms"))
    for lengths, methods in found.items():
        ours = methods["cost-aware"]
        if VERL not in methods:
            continue
        verl = methods[VERL]
        bars.append(Bar(f"{lengths}: slowest rank over verl's", ours.over_mean / verl.over_mean, 1.0001, "x"))
        bars.append(Bar(f"{lengths}: times as fast as verl", verl.ms / ours.ms, 5, "x", at_least=True))
    return bars


def bars_at_8192() -> list[Bar]:
    """1,048,576 samples."""
    ours = measure(OURS["cost-aware"], batch_of("gamma(0.78, 6100)", 8192))
    return [
        Bar("gamma(0.78, 6100) on 8,192 ranks: above the bound", ours.over_bound, 0.01, "%"),
        Bar("gamma(0.78, 6100) on 8,192 ranks: time", ours.ms, 500, "ms"),
    ]


def bars_of_speeds() -> list[Bar]:
    """Some ranks half as fast, counts free: the slowest rank over the ideal, work over the sum of speeds."""
    bars = []
    for ranks, slow in ((2, 1), (8, 1), (256, 128)):
        speeds = np.ones(ranks)
        speeds[:slow] = 0.5
        ours = measure(OURS["cost-aware:counts=free"], batch_of("gamma(0.78, 6100)", ranks, speeds=speeds))
        bars.append(
            Bar(f"{slow} of {ranks} ranks half as fast, counts free: over the ideal", ours.over_mean - 1, 0.01, "%")
        )
    return bars


def report_bars(bars: Sequence[Bar]) -> str:
    return tabulate([bar.row() for bar in bars], ["cost-aware", "measured", "must be", ""], disable_numparse=True)
