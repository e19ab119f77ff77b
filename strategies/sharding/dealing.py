"""Dealing all samples anew, wherever they lie: equal counts, and as nearly as can be equal time.

By falling cost, each sample goes to the rank whose *projected* load is lowest: the load it has, plus the mean cost of
all samples yet to be dealt for every place it has free. This is the greedy LPT rule (Graham, 1969) made aware of the
counts. Under a mere cap on counts, LPT levels the loads of the moment, and the ranks that then have more places left
than others end above them.

For n samples on R ranks: a sort of n, and O(n / R * log R) rounds of dealing that sort R projections each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta
from fsbench_strategies.sharding.checks import equal_places
from fsbench_strategies.sharding.split import TOLERANCE

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

LEAST_SHARE = 1 / 8
"""A round of dealing serves at least this share of the ranks with free places: it bounds the rounds."""


def deal(batch: BatchMeta) -> Int64:
    """The rank of each sample, int64[n]. Equal costs go by global index; the first ranks take what does not divide.

    One round does what dealing one by one would do until it returns to the lightest rank: it serves every rank
    projected below where the lightest will be once it is served.
    """
    falling = np.argsort(-batch.costs, kind="stable")
    costs, speeds = batch.costs[falling], batch.speeds
    rank_of = np.empty(len(costs), np.int64)
    loads, free = np.zeros(batch.ranks), equal_places(len(costs), batch.ranks)
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
        rank_of[falling[dealt]] = to = lightest_first[:served]
        loads[to] += costs[dealt]
        free[to] -= 1
        first += served
    return rank_of
