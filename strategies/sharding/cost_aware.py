"""Equal work at equal counts, over all ranks of a global batch.

Every rank gets the same number of samples (the first `n mod ranks` get one more) and, as nearly as can be,
the same cost per unit of speed. Two phases:

1. **Deal** the samples by falling cost, each to the rank whose *projected* load is lowest: the load it has,
   plus the mean cost of all samples yet to be dealt for every place it has free. This is the greedy LPT rule
   (Graham, "Bounds on multiprocessing timing anomalies", 1969) made aware of the counts. Under a mere cap on
   counts, LPT levels the loads of the moment, and the ranks that then have more places left than others end
   above them.
2. **Exchange** samples between the fullest rank and the emptiest ones where the first phase left a
   difference, which it does when ranks have few samples (`levelling.py`).

FreeScale (arXiv 2604.24073), at a fixed batch size, sorts by length and deals in snake order. Like
equal-count Karmarkar-Karp, that gives every rank one sample of each sorted block, so that nothing makes up
for one very long history. Here the rank that holds it is left out until only the shortest samples remain.

Time for n samples on R ranks: a sort of n, and O(n / R * log R) rounds of dealing that sort R projections
each. Swaps cost O(n) each, at most `SWAPS_PER_RANK` a rank; ranks of many samples come out of the first
phase level and need hardly any.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta, Sharding
from fsbench_strategies.sharding.levelling import Split, level_ranks

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

TOLERANCE = 1e-4
"""Differences below this share of the mean load count as none."""
LEAST_SHARE = 1 / 8
"""A round of dealing serves at least this share of the ranks with free places: it bounds the rounds."""


class CostAware(Sharding):
    """Equal counts, equal cost: moves samples so that no rank waits for the one with the long histories."""

    lookahead: ClassVar[int] = 1
    equal_counts = True

    def assign(self, batch: BatchMeta) -> Int64:
        """The rank of each sample, int64[n]. Ties go by global index, then by rank.

        Where arrival order is as good already, nothing moves. `batch.token_limit` is not looked at yet: equal
        counts keep tokens near each other, but do not bound them.

        Raises:
            ValueError: a cost that is negative or not finite, or a speed that is not finite and positive.
        """
        _check(batch)
        falling = np.argsort(-batch.costs, kind="stable")
        costs, places = batch.costs[falling], _places(len(batch.costs), batch.ranks)
        split = Split(costs, _deal(costs, batch.speeds, places), batch.speeds)
        level_ranks(split, TOLERANCE)
        assignment = np.empty_like(split.rank_of)
        assignment[falling] = split.rank_of
        return _unless_arrival_is_as_good(batch, places, assignment)


def _check(batch: BatchMeta) -> None:
    costs, speeds = batch.costs, batch.speeds
    bad_costs = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
    if len(bad_costs):
        sample = bad_costs[0]
        raise ValueError(f"step {batch.step}: cost {costs[sample]} of sample {sample} is not finite and >= 0")
    if not (np.isfinite(speeds) & (speeds > 0)).all():
        raise ValueError(f"step {batch.step}: speeds {speeds.tolist()} are not all finite and > 0")


def _places(samples: int, ranks: int) -> Int64:
    """int64[ranks]: how many samples each rank gets; the first ones take what does not divide."""
    return samples // ranks + (np.arange(ranks) < samples % ranks)


# Every rank computes the assignment for itself, and all must agree to the bit, on different CPUs too. Hence
# only element-wise arithmetic, `cumsum` and `bincount`, which add in one order; never `sum` or `@`, whose
# order varies.


def _deal(costs: Float64, speeds: Float64, places: Int64) -> Int64:
    """The rank of each sample, int64[n], for costs in falling order.

    One round does what dealing one by one would do until it returns to the lightest rank: it serves every
    rank projected below where the lightest will be once it is served.
    """
    rank_of = np.empty(len(costs), np.int64)
    loads, free = np.zeros(len(speeds)), places.copy()
    yet_to_deal = costs[::-1].cumsum()[::-1]
    first = 0
    while first < len(costs):
        mean = yet_to_deal[first] / (len(costs) - first)
        projected = np.where(free > 0, (loads + free * mean) / speeds, np.inf)
        lightest_first = np.argsort(projected, kind="stable")
        lightest = lightest_first[0]
        lifted = projected[lightest] * (1 + TOLERANCE) + (costs[first] - mean) / speeds[lightest]
        open_ranks = np.count_nonzero(free)
        served = np.searchsorted(projected[lightest_first], lifted, side="right")
        served = min(max(served, int(np.ceil(open_ranks * LEAST_SHARE))), open_ranks)

        dealt = slice(first, first + served)
        rank_of[dealt] = to = lightest_first[:served]
        loads[to] += costs[dealt]
        free[to] -= 1
        first += served
    return rank_of


def _unless_arrival_is_as_good(batch: BatchMeta, places: Int64, assignment: Int64) -> Int64:
    arrival = batch.source.astype(np.int64)
    if not np.array_equal(np.bincount(arrival, minlength=batch.ranks), places):
        return assignment

    def slowest(ranks: Int64) -> float:
        return (np.bincount(ranks, batch.costs, minlength=batch.ranks) / batch.speeds).max()

    return arrival if slowest(arrival) <= slowest(assignment) else assignment
