"""Levelling ranks by swapping equally many samples between two of them at a time.

Up to `HAND` samples of each of two ranks are laid open. Out of all pairs of equally large subsets, the one
that levels the two best is swapped. It is found by meeting in the middle: `2 * 2**HAND` subset sums and a
binary search stand for `C(2 * HAND, HAND)` splits (Horowitz and Sahni, 1974). Between two ranks of at most
`HAND` samples each the result is the best of all equal splits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

HAND = 8
"""Samples of a rank that one swap considers."""
PARTNERS = 8
"""How many of the emptiest ranks the fullest one tries before it is left as it is."""
SWAPS_PER_RANK = 4
"""Bounds the time that levelling may take; rarely reached."""


@dataclass
class Split:
    """Which rank has which sample.

    `costs`: float64[n], in any order that every rank agrees on; `rank_of`: int64[n]; `speeds`:
    float64[ranks]. `loads`: float64[ranks], the cost that each rank has, kept up to date by `swap`.
    """

    costs: Float64
    rank_of: Int64
    speeds: Float64

    def __post_init__(self) -> None:
        self.loads = np.bincount(self.rank_of, self.costs, minlength=len(self.speeds))

    @property
    def seconds(self) -> Float64:
        """float64[ranks]: load over speed, in units of its own. The step takes as long as the largest."""
        return self.loads / self.speeds

    def hand(self, rank: int, turn: int) -> Int64:
        """Up to `HAND` samples of a rank, spread evenly over its list; others at another turn."""
        mine = np.flatnonzero(self.rank_of == rank)
        if len(mine) <= HAND:
            return mine
        spread = np.arange(HAND) * (len(mine) - 1) // (HAND - 1)
        return mine[(spread + turn) % len(mine)]

    def swap(self, rank: int, given: Int64, partner: int, taken: Int64) -> None:
        """`rank` gives the samples `given` to `partner` and takes `taken` for them."""
        self.rank_of[given], self.rank_of[taken] = partner, rank
        moved = self.costs[given].cumsum()[-1] - self.costs[taken].cumsum()[-1]
        self.loads[rank] -= moved
        self.loads[partner] += moved


def level_ranks(split: Split, tolerance: float) -> None:
    """Swaps until the fullest rank is within `tolerance` of the mean, or no partner can relieve it."""
    enough = (1 + tolerance) * split.loads.cumsum()[-1] / split.speeds.cumsum()[-1]
    for turn in range(SWAPS_PER_RANK * len(split.speeds)):
        seconds = split.seconds
        emptiest_first = np.argsort(seconds, kind="stable")
        fullest = emptiest_first[-1]
        if seconds[fullest] <= enough:
            return
        partners = emptiest_first[:-1][:PARTNERS]
        if not any(relieve(split, fullest, partner, turn + i) for i, partner in enumerate(partners)):
            return


def relieve(split: Split, full: int, spare: int, turn: int = 0) -> bool:
    """Makes the best swap between the hands of a full rank and one with room; False if none helps."""
    mine, theirs = split.hand(full, turn), split.hand(spare, turn)
    give, give_size = subset_sums(split.costs[mine])
    take, take_size = subset_sums(split.costs[theirs])
    load, speed = split.loads[[full, spare]], split.speeds[[full, spare]]
    wanted = (load[0] * speed[1] - load[1] * speed[0]) / (speed[0] + speed[1])

    # The subsets to take, sorted by sum within bands of one size; bands are too far apart to mix up.
    band = 2 * (give[-1] + take[-1] + abs(wanted))
    keys = take_size * band + take
    by_key = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[by_key], give_size * band + give - wanted)
    # The longer time of the two falls, then rises with what is moved: the best is next to `wanted`.
    given = np.tile(np.arange(len(give)), 2)
    taken = by_key[np.clip(np.concatenate((place - 1, place)), 0, len(keys) - 1)]
    moved = give[given] - take[taken]
    after = np.maximum((load[0] - moved) / speed[0], (load[1] + moved) / speed[1])
    after[give_size[given] != take_size[taken]] = np.inf
    best = int(np.argmin(after))
    if after[best] >= load[0] / speed[0] * (1 - 1e-9):
        return False
    split.swap(full, members(mine, given[best]), spare, members(theirs, taken[best]))
    return True


def subset_sums(values: Float64) -> tuple[Float64, Int64]:
    """Sum and size of every subset, [2**k] each; bit j of its index says whether it holds `values[j]`."""
    sums, sizes = np.zeros(2 ** len(values)), np.zeros(2 ** len(values), np.int64)
    for bit, value in enumerate(values):
        without, with_it = slice(0, 1 << bit), slice(1 << bit, 2 << bit)
        sums[with_it] = sums[without] + value
        sizes[with_it] = sizes[without] + 1
    return sums, sizes


def members(hand: Int64, subset: int) -> Int64:
    """The samples of a hand that a subset's index names."""
    return hand[(subset >> np.arange(len(hand))) & 1 == 1]
