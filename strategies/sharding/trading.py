"""Levelling many ranks at once: in each round the fullest ranks are paired with the emptiest, and every pair trades.

Of every pair, all at once, the trade of **one sample against one** is found that moves what the giver has too much, or
what the taker has room for: for each sample that the giver may offer there is a sample of the taker's, found by binary
search, such that the difference comes nearest. Among those that are near enough, the one that sends the fewest bytes is
taken; a sample that returns home saves some. Where one sample is too little, as on a rank that holds a giant, **several
against several** are traded: the giver's largest that fit against the taker's smallest.

Only what is too much moves, and where ranks are level nothing does. What is left, `levelling` swaps in every way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsbench_strategies.sharding.market import BLANK, Market, Pairs, Trades
from fsbench_strategies.sharding.split import Split

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

OFFERS = 16
"""How many samples a giver offers: the smallest of those that are large enough."""
LARGE = 1 / 8
"""Samples of this share of the slowest rank's work are large."""
ROUNDS = 400
"""Bounds the time; rarely reached. A round takes some 0.2 ms."""


def trade(split: Split) -> None:
    """Trades until no rank is above `split.enough`, or no trade helps.

    At first only large samples count: later on, no rank will have room for them.
    """
    if not len(split.costs):
        return
    large = split.costs > LARGE * split.bound * split.speeds.min()
    for costs in (np.where(large, split.costs, 0.0), split.costs):
        _trade(split, Market(split, costs))


def _trade(split: Split, market: Market) -> None:
    for _ in range(ROUNDS):
        pairs = market.pair_up()
        if not len(pairs):
            break
        market.carry_out(pairs, best_trades(market, pairs))
    split.give(market.rank_of)


def best_trades(market: Market, pairs: Pairs) -> Trades:
    """The best trade of one sample for every pair; where it leaves more than half, several if they leave less."""
    single, missed = one_for_one(market, pairs)
    poor = np.flatnonzero(missed > pairs.wanted / 2)
    if not len(poor):
        return single
    several, left = many_for_many(market, pairs.of(poor))
    better = left < missed[poor]
    keep_single = ~np.isin(single.pair, poor[better])
    keep_several = better[several.pair]
    return Trades(
        np.concatenate((single.pair[keep_single], poor[several.pair[keep_several]])),
        np.concatenate((single.give[keep_single], several.give[keep_several])),
        np.concatenate((single.take[keep_single], several.take[keep_several])),
    )


def one_for_one(market: Market, pairs: Pairs) -> tuple[Trades, Float64]:
    """At most one trade a pair, and how far each pair is from `wanted`, float64[pairs]: infinitely where none helps."""
    give, take = _candidates(market, pairs)
    givers, takers = pairs.givers[:, None], pairs.takers[:, None]
    given, taken = market.rows[givers, give], market.rows[takers, take]
    moved = market.costs[given] - market.costs[taken]
    forbidden = (moved < pairs.near[:, None]) | (moved >= pairs.most[:, None])
    forbidden |= market.breaks_limit(givers, takers, market.tokens[given] - market.tokens[taken])
    if not market.free:
        forbidden |= (given == BLANK) | (taken == BLANK)
    missed = np.where(forbidden, np.inf, np.abs(moved - pairs.wanted[:, None]))
    least = missed.min(axis=1)
    sent = _sent(market, givers, takers, given, taken)
    sent[missed > np.maximum(least, pairs.near)[:, None]] = np.iinfo(np.int64).max
    best = sent.argmin(axis=1)
    pair = np.flatnonzero(least < np.inf)
    every = np.arange(len(pairs))
    return Trades(pair, give[pair, best[pair]], take[pair, best[pair]]), missed[every, best]


def _candidates(market: Market, pairs: Pairs) -> tuple[Int64, Int64]:
    """Columns to give and to take, [pairs, 2 * OFFERS]: for each offer the two that come nearest in return."""
    mine, theirs = market.costs[market.rows[pairs.givers]], market.costs[market.rows[pairs.takers]]
    width = mine.shape[1]
    offers = min(OFFERS, width)
    too_small = np.count_nonzero(mine < pairs.wanted[:, None], axis=1)
    give = np.minimum(too_small, width - offers)[:, None] + np.arange(offers)
    after = _search_rows(theirs, np.take_along_axis(mine, give, axis=1) - pairs.wanted[:, None])
    take = np.concatenate((np.maximum(after - 1, 0), np.minimum(after, width - 1)), axis=1)
    return np.concatenate((give, give), axis=1), take


def _search_rows(rows: Float64, values: Float64) -> Int64:
    """In each sorted row, before which entry each of its values belongs: `searchsorted` of [k, m] and [k, v]."""
    k, m = rows.shape
    highest = rows[:, -1].max()
    # Rows are put end to end, too far apart to mix.
    apart = (2 * highest + 1) * np.arange(k)[:, None]
    places = np.searchsorted((rows + apart).ravel(), (np.clip(values, 0, highest) + apart).ravel())
    return places.reshape(values.shape) - m * np.arange(k)[:, None]


def _sent(market: Market, givers: Int64, takers: Int64, given: Int64, taken: Int64) -> Int64:
    """Bytes that each trade adds to what is sent; less than none where samples return home."""
    here, there = market.home[given], market.home[taken]
    leaves = (here == givers).astype(np.int64) - (here == takers)
    comes = (there == takers).astype(np.int64) - (there == givers)
    return market.bytes[given] * leaves + market.bytes[taken] * comes


def many_for_many(market: Market, pairs: Pairs) -> tuple[Trades, Float64]:
    """The giver's largest samples that fit against the taker's smallest, in this order, up to `wanted` together.

    Returns the trades, several a pair, and how far each pair is from `wanted`, as `one_for_one` does.
    """
    mine, theirs = market.rows[pairs.givers], market.rows[pairs.takers]
    width = mine.shape[1]
    first = np.zeros(len(pairs), np.int64) if market.free else np.count_nonzero(theirs == BLANK, axis=1)
    # Of a rank that has no sample, a blank; it has nothing to give in return.
    smallest = market.costs[np.take_along_axis(theirs, np.minimum(first, width - 1)[:, None], axis=1)]
    fits = np.count_nonzero(market.costs[mine] - smallest <= pairs.wanted[:, None], axis=1)
    nth = np.arange(width)
    give, take = fits[:, None] - 1 - nth, first[:, None] + nth
    inside = (give >= 0) & (take < width)
    given = np.take_along_axis(mine, np.maximum(give, 0), axis=1)
    taken = np.take_along_axis(theirs, np.minimum(take, width - 1), axis=1)
    gain = market.costs[given] - market.costs[taken]
    moved = np.where(inside & (given != BLANK) & (gain > 0), gain, np.inf).cumsum(axis=1)
    traded = moved <= pairs.wanted[:, None]
    total = np.where(traded, moved, 0.0).max(axis=1)
    tokens = np.where(traded, market.tokens[given] - market.tokens[taken], 0).sum(axis=1)
    helps = (total >= pairs.near) & ~market.breaks_limit(pairs.givers, pairs.takers, tokens)
    pair, nth = np.nonzero(traded & helps[:, None])
    return Trades(pair, give[pair, nth], take[pair, nth]), np.where(helps, pairs.wanted - total, np.inf)
