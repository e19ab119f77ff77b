"""Longest processing time first: the largest sample that is left goes to the rank with the least work.

R. Graham, "Bounds on multiprocessing timing anomalies" (1969). With free counts the slowest rank takes at most 4/3 of
the best possible, and far less where samples are many. With equal counts a rank is out once it is full; the ranks that
then have more places left than others end above them.

One heap, one sample at a time: O(n log R) in Python, some 20 ms for 32,768 samples.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta, Sharding
from fsbench_strategies.sharding.checks import check_batch, equal_places, within_token_limit


class LPT(Sharding):
    """Largest sample first, each to the rank with the least work so far."""

    @dataclass(frozen=True)
    class Options(Sharding.Options):
        """`counts`: samples a rank, equal or whatever balances best."""

        counts: Literal["equal", "free"] = "equal"

    options: Options
    lookahead: ClassVar[int] = 1

    def assign(self, batch: BatchMeta) -> NDArray[np.int64]:
        """The rank of each sample, int64[n]. Work is cost over the rank's speed.

        Equal costs go by global index, equally loaded ranks by samples, then by number. Raises what `checks` refuses.
        """
        check_batch(batch)
        n = len(batch.costs)
        equal = self.options.counts == "equal"
        places = (equal_places(n, batch.ranks) if equal else np.full(batch.ranks, n)).tolist()
        falling = np.argsort(-batch.costs, kind="stable")
        costs, speeds = batch.costs[falling].tolist(), batch.speeds.tolist()
        # Seconds, samples, rank: what costs nothing is spread too.
        heap = [(0.0, 0, rank) for rank in range(batch.ranks) if places[rank]]
        ranks = []
        for cost in costs:
            seconds, samples, rank = heap[0]
            ranks.append(rank)
            if samples + 1 < places[rank]:
                heapq.heapreplace(heap, (seconds + cost / speeds[rank], samples + 1, rank))
            else:
                heapq.heappop(heap)
        assignment = np.empty(n, np.int64)
        assignment[falling] = ranks
        return within_token_limit(batch, assignment)
