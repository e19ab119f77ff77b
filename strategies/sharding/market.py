"""Who has what while ranks trade: a row of samples for each rank, and which ranks are to trade with which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsbench_strategies.sharding.split import TOLERANCE, Split

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

BLANK = -1
"""An entry of a row where there is no sample."""


@dataclass(frozen=True)
class Pairs:
    """Ranks that may trade with each other, and how much cost should go from giver to taker, [pairs] each.

    `wanted`: what the giver has too much, or the taker has room for. `near`: how far from `wanted` is near enough, and
    the least that is worth a trade. `most`: with more, the taker would be as slow as the giver is now.
    """

    givers: Int64
    takers: Int64
    wanted: Float64
    near: Float64
    most: Float64

    def __len__(self) -> int:
        return len(self.givers)

    def of(self, which: Int64) -> Pairs:
        fields = (self.givers, self.takers, self.wanted, self.near, self.most)
        return Pairs(*(values[which] for values in fields))


@dataclass(frozen=True)
class Trades:
    """One sample against one, [trades] each: of which pair, and in which columns of the giver's and the taker's row."""

    pair: Int64
    give: Int64
    take: Int64


class Market:
    """The samples of every rank.

    `rows`: int32[ranks, width], places in the split in rising order, blanks first. As places are in order of cost, so
    are the costs of a row. Blanks cost nothing; with free counts they are traded like samples. `bytes`, `tokens`,
    `home`: as in the split, and one entry more for blanks; so are `costs`, or other rising ones.
    """

    def __init__(self, split: Split, costs: Float64) -> None:
        self.rows = _rows(split.rank_of, len(split.speeds))
        self.costs = np.append(costs, 0.0)
        self.bytes = np.append(split.bytes, 0)
        self.tokens = np.append(split.tokens, 0)
        self.home = np.append(split.home, BLANK)
        self.loads = np.bincount(split.rank_of, costs, minlength=len(split.speeds))
        self.held = split.held.copy()
        self.speeds, self.token_limit, self.free = split.speeds, split.token_limit, split.free
        self._level = split.bound * split.speeds
        self._slack = TOLERANCE * self._level
        self._stuck = np.zeros(len(split.speeds), bool)

    @property
    def rank_of(self) -> Int64:
        """int64[n]: the rank of each sample."""
        found = np.empty(len(self.costs), np.int64)
        found[self.rows] = np.arange(len(self.rows))[:, None]
        return found[:-1]

    def pair_up(self) -> Pairs:
        """The slowest rank with the one that has most room, the second slowest with the second, and so on.

        Ranks are level to within half the tolerance, so that what comes near does not make a giver of a taker.
        """
        excess = self.loads - self._level
        givers = _largest_first(excess / self.speeds, (excess > self._slack) & ~self._stuck)
        takers = _largest_first(-excess, excess <= 0)
        pairs = min(len(givers), len(takers))
        givers, takers = givers[:pairs], takers[:pairs]
        room = self._slack[takers] / 2
        wanted = np.minimum(excess[givers], room - excess[takers])
        near = np.minimum(np.minimum(self._slack[givers], room), wanted / 2)
        most = self.loads[givers] * (self.speeds[takers] / self.speeds[givers]) - self.loads[takers]
        if self.free and (self.rows[takers, 0] != BLANK).any():
            # Leaves every taker a blank to give away.
            self.rows = np.pad(self.rows, ((0, 0), (1, 0)), constant_values=BLANK)
        return Pairs(givers, takers, wanted, near, most)

    def carry_out(self, pairs: Pairs, trades: Trades) -> None:
        """Givers without a trade are stuck from now on."""
        givers, takers = pairs.givers[trades.pair], pairs.takers[trades.pair]
        give, take = self.rows[givers, trades.give], self.rows[takers, trades.take]
        self.rows[givers, trades.give], self.rows[takers, trades.take] = take, give
        for sums, worth in ((self.loads, self.costs), (self.held, self.tokens)):
            moved = worth[give] - worth[take]
            np.subtract.at(sums, givers, moved)
            np.add.at(sums, takers, moved)
        changed = np.concatenate((pairs.givers, pairs.takers))
        self.rows[changed] = np.sort(self.rows[changed], axis=1)
        self._stuck[np.delete(pairs.givers, trades.pair)] = True

    def breaks_limit(self, givers: Int64, takers: Int64, tokens: Int64) -> NDArray[np.bool_]:
        """Whether so many tokens more on the takers, and less on the givers, bring one of the two above the limit."""
        if self.token_limit is None:
            return np.zeros(tokens.shape, bool)
        spare = self.token_limit - self.held
        return ((tokens > 0) & (tokens > spare[takers])) | ((tokens < 0) & (-tokens > spare[givers]))


def _rows(rank_of: Int64, ranks: int) -> NDArray[np.int32]:
    counts = np.bincount(rank_of, minlength=ranks)
    # numpy sorts 16-bit integers by radix, ten times as fast.
    by_rank = np.argsort(rank_of.astype(np.int16) if ranks < 2**15 else rank_of, kind="stable")
    rows = np.full((ranks, counts.max()), BLANK, np.int32)
    rows[np.arange(rows.shape[1]) >= rows.shape[1] - counts[:, None]] = by_rank
    return rows


def _largest_first(values: Float64, mask: NDArray[np.bool_]) -> Int64:
    """Where `mask` holds, by falling value."""
    where = np.flatnonzero(mask)
    return where[np.argsort(-values[where], kind="stable")]
