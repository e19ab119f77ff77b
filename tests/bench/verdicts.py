"""How often verdicts are right, by simulation: `python -m tests.bench.verdicts`.

Runs are log-normal around a drift that all cells share: the machine warms up steadily and wanders at random, and runs
stand in the shuffled, interleaved order of a matrix. A contrast's spread is what it is asked to be after averaging over
the cells of the other axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import log1p

import numpy as np
from tabulate import tabulate

from fsbench.results.statistics import (
    ALPHA,
    FASTER,
    FEWEST_RUNS,
    MARGIN,
    SAME,
    SLOWER,
    Judged,
    Spread,
    judge,
    paired,
    unpaired,
)  # fmt: skip

COMPARISONS = 4000
SEED = 1
SPREAD = 0.015
WARMING, WANDERING = 0.1, 0.5
"""The drift between one run and the next, in units of the run's own noise: steady, and at random."""


@dataclass(frozen=True)
class Tally:
    """Shares of the comparisons: `called`, any contrast FASTER or SLOWER; `found`, FASTER over the contrasts that truly
    are; `same`, SAME over all contrasts."""

    called: float
    found: float | None
    same: float


def interleaved(effects: Sequence[float], repeats: int = FEWEST_RUNS, spread: float = SPREAD) -> Tally:
    """Verdicts on the matrix of as many axes of two strategies as there are `effects`, true ratios less one."""
    noise = _contrasts(_speeds(2 ** len(effects), repeats), len(effects))
    logs = noise / noise.std() * spread + np.log1p(effects)
    return _tally([judge([paired(pairs) for pairs in matrix.T.tolist()]) for matrix in logs], effects)


def apart(effect: float, spreads: tuple[float, float], comparisons: int = COMPARISONS) -> Tally:
    """Verdicts on a cell of two sets that were not interleaved, on a machine that does not drift."""
    noise = np.random.default_rng(SEED).normal(size=(comparisons, 2, FEWEST_RUNS)) * np.array(spreads)[:, None]
    logs = noise + np.array([log1p(effect), 0.0])[:, None]
    return _tally([judge([unpaired(*sets)]) for sets in logs.tolist()], [effect])


def runs_for(spread: float, contrasts: int = 1) -> int:
    """What `runs needed` says at this spread."""
    return Spread(0.0, (FEWEST_RUNS,), (spread**2,)).runs_needed(ALPHA / contrasts)


def _speeds(cells: int, repeats: int) -> np.ndarray:
    """float64[COMPARISONS, repeats, cells]: logs of speeds of cells that do not differ."""
    rng = np.random.default_rng(SEED)
    shape = (COMPARISONS, repeats, cells)
    steps = WARMING + WANDERING * rng.normal(size=shape)
    drift = steps.reshape(COMPARISONS, -1).cumsum(axis=1).reshape(shape)
    return rng.permuted(drift, axis=2) + rng.normal(size=shape)


def _contrasts(speeds: np.ndarray, axes: int) -> np.ndarray:
    """float64[COMPARISONS, repeats, axes]: log ratios of each repeat, means over the cells of the other axes."""
    signs = np.array(list(product((-1, 1), repeat=axes)))
    return speeds @ signs / (len(signs) / 2)


def _tally(matrices: Sequence[Sequence[Judged]], effects: Sequence[float]) -> Tally:
    verdicts = np.array([[judged.verdict for judged in matrix] for matrix in matrices])
    truly = np.array(effects) > 0
    return Tally(
        called=float(np.isin(verdicts, (FASTER, SLOWER)).any(axis=1).mean()),
        found=float((verdicts[:, truly] == FASTER).mean()) if truly.any() else None,
        same=float((verdicts == SAME).mean()),
    )


def main() -> None:
    asked = runs_for(2 * SPREAD)
    tallies = {
        "one contrast, equal": interleaved([0.0]),
        "one contrast, 3 % faster": interleaved([0.03]),
        "four contrasts, all equal": interleaved([0.0] * 4),
        "four contrasts, one 3 % faster": interleaved([0.03, 0.0, 0.0, 0.0]),
        "four contrasts, all 3 % faster": interleaved([0.03] * 4),
        f"one contrast, 2 % faster, spread 3 %, the {asked} runs asked for": interleaved([MARGIN], asked, 2 * SPREAD),
        "two sets, equal": apart(0.0, (SPREAD, SPREAD)),
        "two sets, equal, spreads 0.5 % and 3 %": apart(0.0, (SPREAD / 3, 2 * SPREAD)),
        "two sets, 3 % faster": apart(0.03, (SPREAD, SPREAD)),
    }
    rows = [[what, *map(_percent, (tally.called, tally.found, tally.same))] for what, tally in tallies.items()]
    print(f"{COMPARISONS} comparisons each, {FEWEST_RUNS} runs and a spread of {SPREAD:.1%} unless said otherwise\n")
    print(tabulate(rows, ["", "any called", "true ones found", "SAME"], colalign=["left", "right", "right", "right"]))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


if __name__ == "__main__":
    main()
