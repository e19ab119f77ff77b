"""What a sweep predicts: histories arrive on ranks, a strategy assigns them, costs and lengths are added up."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from laws import cost, law
from numpy.typing import NDArray
from sweep import Setting, Sweep

from fsbench.assignment import checked_assign, unheeded_options
from fsbench.axes import BatchMeta, Sharding
from fsbench.errors import UserError
from fsbench.metrics.balance import least_straggler_share, padding_share, straggler_share
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.samples import Int64, Jagged, Samples
from fsbench.workload import Loader

Float64 = NDArray[np.float64]


class Share(NamedTuple):
    """A share over the seeds, as a fraction."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        """In percent."""
        digits = 1 if self.median >= 0.01 else 4
        median, least, most = (f"{100 * share:.{digits}f}" for share in self)
        return f"{median} [{least}, {most}]"


BOUND = "bound"
"""Stands for a sharding: the least straggler share that any has which keeps the members of a global batch."""


def predict(sweep: Sweep) -> dict[Setting, dict[str, Share]]:
    """By setting and sharding; of straggler shares, the bound too."""
    columns = [*sweep.sharding, BOUND] if sweep.metric == "straggler" else sweep.sharding
    return {setting: {column: over_seeds(sweep, setting, column) for column in columns} for setting in sweep.settings()}


def over_seeds(sweep: Sweep, setting: Setting, column: str) -> Share:
    """One cell of the table."""
    metric, sharding = (BOUND, "naive") if column == BOUND else (sweep.metric, column)
    shares = [share_of(metric, work_of(setting, sharding, seed, sweep.batches)) for seed in sweep.seeds]
    return Share(float(np.median(shares)), min(shares), max(shares))


class Work(NamedTuple):
    """What each rank trains in each global batch: arrays [batches, ranks]. Cost, and that of its costliest sample;
    samples, tokens, and the longest history."""

    costs: Float64
    costliest: Float64
    samples: Int64
    tokens: Int64
    longest: Int64


def share_of(metric: str, work: Work) -> float:
    if metric == "straggler":
        share = straggler_share(work.costs)
    elif metric == BOUND:
        share = least_straggler_share(work.costs, work.costliest)
    else:
        share = padding_share(work.samples, work.tokens, work.longest)
    assert share is not None  # every history has a token
    return share


def work_of(setting: Setting, sharding: str, seed: int, batches: int) -> Work:
    strategy: Sharding = create("sharding", Spec.parse(sharding))
    if unheeded := unheeded_options(strategy):
        raise UserError(f"{sharding}: {unheeded[0]} is for fsbench run; a prediction knows no limits and no times")
    arrivals = Arrivals(setting, seed)
    # Each rank reads for itself: a strategy may change what it reads when.
    loaders = [strategy.reads(arrivals) for _ in range(setting.ranks)]
    steps = [_assigned(strategy, arrivals, loaders, step) for step in range(batches)]
    return Work(*(np.stack(of_steps) for of_steps in zip(*steps, strict=True)))


def _assigned(strategy: Sharding, arrivals: Arrivals, loaders: list[Loader], step: int) -> Work:
    """Of one step, arrays [ranks]."""
    ranks = len(loaders)
    read = [loader.load(step, rank, ranks) for rank, loader in enumerate(loaders)]
    together = Samples.concatenate(read)
    costs, tokens = arrivals.costs(together), together.tokens
    source = np.repeat(np.arange(ranks, dtype=np.int32), [len(samples) for samples in read])
    meta = BatchMeta(costs, tokens, together.bytes, source, ranks, np.ones(ranks), token_limit=None, step=step)
    assignment = checked_assign(strategy, meta)
    longest, costliest = np.zeros(ranks, np.int64), np.zeros(ranks)
    np.maximum.at(longest, assignment, tokens)
    np.maximum.at(costliest, assignment, costs)
    of_rank = functools.partial(np.bincount, assignment, minlength=ranks)
    return Work(of_rank(costs), costliest, of_rank(), of_rank(tokens).astype(np.int64), longest)


class Arrivals:
    """A loader (`fsbench.workload.Loader`) of histories without end, of which only the lengths say anything.

    Lengths are a function of seed and step. A cap cuts the same histories short, and more ranks read on in the same
    stream, so that settings compare.
    """

    def __init__(self, setting: Setting, seed: int) -> None:
        self.samples_per_rank = setting.samples_per_rank
        self._law, self._cap, self._cost = law(setting.lengths), setting.cap, cost(setting.cost)
        self._seed = seed
        self._drawn: dict[int, Int64] = {}

    def load(self, step: int, rank: int, ranks: int) -> Samples:
        each = self.samples_per_rank
        if step not in self._drawn:
            drawn = self._law.draw(np.random.default_rng((self._seed, step)), ranks * each)
            self._drawn[step] = np.ceil(drawn).clip(1, self._cap).astype(np.int64)
        lengths = self._drawn[step][rank * each : (rank + 1) * each]
        index = (step * ranks + rank) * each + np.arange(each)
        return Samples(index, np.ones(each, np.int64), {"history": Jagged(np.zeros(lengths.sum(), np.int8), lengths)})

    def costs(self, samples: Samples) -> Float64:
        return self._cost.of(samples.tokens)

    def cost_features(self, samples: Samples) -> Mapping[str, Float64]:
        return {}

    def build_batch(self, samples: Samples, dtype: Any) -> Any:
        raise NotImplementedError("nothing is trained")
