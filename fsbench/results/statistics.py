"""From log ratios of runs to a ratio with its interval, and from several of them to verdicts. Plain Python.

The replicate is a fresh run. Runs of one set are interleaved, so run k of a cell and run k of another form a pair:
Student's t on the log ratios of the pairs. Runs of two sets are not: Welch's t on the logs. Several ratios are judged
together, by Holm's method (Scandinavian Journal of Statistics 6, 1979). "The same" is a claim of its own, made where
the 90 % interval lies inside the margin: two one-sided tests at 5 % each (Schuirmann, 1987), not adjusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from fsbench.results.student import quantile, two_sided_p

FASTER, SLOWER, SAME, UNCLEAR = "FASTER", "SLOWER", "SAME", "UNCLEAR"
ALPHA = 0.05
"""Chance, over all ratios judged together, that any of them is called FASTER or SLOWER while none differs."""
MARGIN = 0.02
"""Ratios from 1 / (1 + MARGIN) to 1 + MARGIN count as the same, whichever of the two is on top."""
POWER = 0.8
FEWEST_RUNS = 6
NO_RUNS, NO_INTERVAL, NO_SPREAD = "no runs to compare", "no interval", "no spread"
_ROUNDING = 1e-12
"""Logs of figures that differ by less differ by the rounding of their last bits, not by what a machine did."""
_LARGEST_LOG = 700.0
_LARGE_SAMPLE = 10_000
"""Where Student's t is the normal distribution to the third figure."""
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Spread:
    """What the spread of the runs tells about a log ratio, by Student's t.

    `variances`: of the pairs, or of the runs on top and of those below. `runs`: how many these are.
    """

    log_ratio: float
    runs: tuple[int, ...]
    variances: tuple[float, ...]

    @property
    def error(self) -> float:
        """Standard error of the log ratio."""
        return math.sqrt(sum(self._parts))

    @property
    def freedom(self) -> float:
        """Degrees of freedom by Welch and Satterthwaite; of pairs, their number less one."""
        return sum(self._parts) ** 2 / sum(part**2 / (n - 1) for part, n in zip(self._parts, self.runs, strict=True))

    @property
    def p(self) -> float:
        """Two-sided, not adjusted, that the ratio is 1."""
        return two_sided_p(self.log_ratio / self.error, self.freedom)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Of the ratio."""
        half = quantile(1 - confidence, self.freedom) * self.error
        return _exp(self.log_ratio - half), _exp(self.log_ratio + half)

    def runs_needed(self, alpha: float) -> int:
        """Runs, of each cell, that find a true difference of `MARGIN` with `POWER` at `alpha`.

        Of the margin and not of the ratio just measured, which is itself noise: power at that ratio restates p. The
        usual formula, n = (t(alpha / 2) + t(1 - power))^2 variance / difference^2, t of n - 1, solved for n.
        """
        total = sum(self.variances)
        freedom_of_two = total**2 / sum(variance**2 for variance in self.variances)
        units = total / math.log1p(MARGIN) ** 2
        # From below: what it would be if the spread were known, not measured.
        n = max(FEWEST_RUNS, math.ceil(units * (_NORMAL.inv_cdf(1 - alpha / 2) + _NORMAL.inv_cdf(POWER)) ** 2))
        while n < _LARGE_SAMPLE and n < units * _tails(alpha, freedom_of_two * (n - 1)) ** 2:
            n += 1
        return n

    @property
    def _parts(self) -> list[float]:
        return [variance / n for variance, n in zip(self.variances, self.runs, strict=True)]


@dataclass(frozen=True)
class Estimate:
    """A log ratio. `runs`: how many pairs, or runs on top and runs below.

    `log_ratio`: None where there is nothing to compare. `spread`: None for the reason in `no_interval`.
    """

    log_ratio: float | None
    runs: tuple[int, ...]
    spread: Spread | None
    no_interval: str | None

    @property
    def ratio(self) -> float | None:
        return None if self.log_ratio is None else _exp(self.log_ratio)


@dataclass(frozen=True)
class Judged:
    """A verdict, or None and the reason. `p`: adjusted. `runs_needed`: of each cell, see `Spread.runs_needed`."""

    estimate: Estimate
    verdict: str | None
    reason: str | None
    p: float | None
    runs_needed: int | None


def paired(log_ratios: Sequence[float]) -> Estimate:
    """Of the log ratios of pairs of runs."""
    return _estimate(fmean(log_ratios) if log_ratios else None, log_ratios)


def unpaired(top: Sequence[float], below: Sequence[float]) -> Estimate:
    """Of the logs of runs that were not interleaved, by Welch's method."""
    return _estimate(fmean(top) - fmean(below) if top and below else None, top, below)


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given."""
    adjusted, floor = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        floor = max(floor, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = floor
    return adjusted


def judge(estimates: Sequence[Estimate]) -> list[Judged]:
    """A verdict on each, with one chance of error for all of them.

    Those that cannot have a verdict, by how many runs they have or because these do not spread, are no part of Holm's
    family: nothing is claimed about them.
    """
    spreads = [estimate.spread if min(estimate.runs) >= FEWEST_RUNS else None for estimate in estimates]
    adjusted = iter(holm([spread.p for spread in spreads if spread]))
    ps = [next(adjusted) if spread else None for spread in spreads]
    return [_judged(estimate, p, ALPHA / len(estimates)) for estimate, p in zip(estimates, ps, strict=True)]


def _judged(estimate: Estimate, p: float | None, strictest: float) -> Judged:
    if estimate.spread is None:
        return Judged(estimate, None, _no_verdict(estimate), None, None)
    needed = estimate.spread.runs_needed(strictest)
    if p is None:
        return Judged(estimate, None, _no_verdict(estimate), None, needed)
    return Judged(estimate, _verdict(estimate.spread, p), None, p, needed)


def _verdict(spread: Spread, p: float) -> str:
    if p < ALPHA:
        return FASTER if spread.log_ratio > 0 else SLOWER
    low, high = spread.interval(1 - 2 * ALPHA)
    return SAME if low >= 1 / (1 + MARGIN) and high <= 1 + MARGIN else UNCLEAR


def _no_verdict(estimate: Estimate) -> str | None:
    if estimate.log_ratio is not None and min(estimate.runs) < FEWEST_RUNS:
        return f"needs {FEWEST_RUNS} runs"
    return estimate.no_interval


def _estimate(log_ratio: float | None, *samples: Sequence[float]) -> Estimate:
    runs = tuple(map(len, samples))
    if log_ratio is None or min(runs) < 2:
        return Estimate(log_ratio, runs, None, NO_RUNS if log_ratio is None else NO_INTERVAL)
    spread = Spread(log_ratio, runs, tuple(map(_variance, samples)))
    # An interval of width zero would claim that there is no noise: runs that agree to the last bit, as those of a
    # deterministic simulation, tell nothing about it.
    no_interval = NO_SPREAD if spread.error <= _ROUNDING else None
    return Estimate(log_ratio, runs, None if no_interval else spread, no_interval)


def _variance(sample: Sequence[float]) -> float:
    """Of at least two. The standard library's works on fractions and takes ten times as long."""
    mean = fmean(sample)
    return sum((value - mean) ** 2 for value in sample) / (len(sample) - 1)


def _tails(alpha: float, freedom: float) -> float:
    return quantile(alpha, freedom) + quantile(2 * (1 - POWER), freedom)


def _exp(log_ratio: float) -> float:
    """Bounded: no interval, however absurd, is infinite."""
    return math.exp(max(-_LARGEST_LOG, min(_LARGEST_LOG, log_ratio)))
