"""Levelling two ranks at a time, by swapping several samples against several.

Up to `HAND` samples of each of two ranks are laid open, and out of all exchanges of a subset of one hand for a subset
of the other, the one that levels the two best is made; among those that level them well enough, the one that sends the
fewest bytes. Between two ranks of at most `HAND` samples each the result is the best there is.

With equal counts both subsets are equally large: `C(2 * HAND, HAND)` exchanges, 12,870. With free counts they are any:
65,536. All are weighed, as one vector.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fsbench_strategies.sharding.split import Split

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

HAND = 8
"""Samples of a rank that one swap considers."""
PARTNERS = 8
"""How many of the emptiest ranks the fullest one tries before it is left as it is."""
SWAPS_PER_RANK = 4
"""Bounds the time that levelling may take; rarely reached."""
NEAR, FEW_RANKS = 1e-3, 16
"""So near the bound, or with so few ranks, levelling is a matter of milliseconds, and worth a try from any start."""


def is_nearly_level(split: Split) -> bool:
    return split.slowest <= split.bound * (1 + NEAR) or len(split.speeds) <= FEW_RANKS


def level(split: Split) -> None:
    """Swaps until no rank is above the token limit and none is slower than `split.enough`, or no swap helps."""
    enough = split.enough
    for turn in range(SWAPS_PER_RANK * len(split.speeds)):
        over = split.excess_tokens
        emptiest_first = np.argsort(split.held if over.any() else split.seconds, kind="stable")
        fullest = int(over.argmax()) if over.any() else int(emptiest_first[-1])
        if not over.any() and split.seconds[fullest] <= enough:
            return
        partners = emptiest_first[emptiest_first != fullest][:PARTNERS]
        if not any(relieve(split, fullest, int(partner), turn + i) for i, partner in enumerate(partners)):
            return


def relieve(split: Split, full: int, spare: int, turn: int = 0) -> bool:
    """Makes the best exchange between the hands of a full rank and one with room; False if none helps.

    While one of them is above the token limit, to help is to lessen that, and time is second.
    """
    pair = [full, spare]
    hands = _hand(split, full, turn), _hand(split, spare, turn)
    give, take = exchanges(len(hands[0]), len(hands[1]), split.free)
    cost, tokens, sent = _worth(split, pair, hands[0])[:, give] - _worth(split, pair, hands[1])[:, take]

    load, speed = split.loads[pair], split.speeds[pair]
    seconds = np.maximum((load[0] - cost) / speed[0], (load[1] + cost) / speed[1])
    over = _excess_tokens(split, pair, tokens)
    least, now = over.min(), seconds[0]  # exchange 0 leaves all as it is
    seconds[over > least] = np.inf
    best, faster = seconds.min(), now * (1 - 1e-9)
    if least == over[0] and (least > 0 or best >= faster):
        return False
    good = np.flatnonzero(seconds <= max(best, min(split.enough, faster)))
    chosen = good[sent[good].argmin()]
    split.rank_of[_members(hands[0], give[chosen])] = spare
    split.rank_of[_members(hands[1], take[chosen])] = full
    split.loads[pair] += np.array([-1, 1]) * cost[chosen]
    split.held[pair] += np.array([-1, 1]) * int(tokens[chosen])
    return True


def _hand(split: Split, rank: int, turn: int) -> Int64:
    """Up to `HAND` samples of a rank, spread evenly over its list; others at another turn."""
    mine = np.flatnonzero(split.rank_of == rank)
    if len(mine) <= HAND:
        return mine
    spread = np.arange(HAND) * (len(mine) - 1) // (HAND - 1)
    return mine[(spread + turn) % len(mine)]


@lru_cache(maxsize=256)
def exchanges(mine: int, theirs: int, free: bool) -> tuple[Int64, Int64]:
    """All exchanges between hands of so many samples: which subset is given, and which is taken, [exchanges] each.

    Bit j of a subset's number says whether it holds sample j. The first exchange is that of nothing for nothing.
    """
    sizes = subset_sums(np.ones((1, max(mine, theirs))))[0]
    give, take = np.nonzero(free | (sizes[: 2**mine, None] == sizes[None, : 2**theirs]))
    return give, take


def _worth(split: Split, pair: list[int], hand: Int64) -> Float64:
    """Of every subset of a hand, float64[3, 2**len(hand)]: its cost, its tokens, and the bytes that go when it changes
    from the first rank of the pair to the second (with the other sign: the other way)."""
    home = split.home[hand]
    leaves = (home == pair[0]).astype(np.int64) - (home == pair[1])
    return subset_sums(np.stack((split.costs[hand], split.tokens[hand], split.bytes[hand] * leaves)))


def _excess_tokens(split: Split, pair: list[int], moved: Float64) -> Float64:
    """Tokens that the two ranks have above the limit after so many moved."""
    if split.token_limit is None:
        return np.zeros(len(moved))
    first, second = split.held[pair] - split.token_limit
    return np.maximum(first - moved, 0) + np.maximum(second + moved, 0)


def subset_sums(values: Float64) -> Float64:
    """Sums over every subset of the columns: [rows, k] to [rows, 2**k]."""
    sums = np.zeros((len(values), 2 ** values.shape[1]))
    for bit, column in enumerate(values.T):
        sums[:, 1 << bit : 2 << bit] = sums[:, : 1 << bit] + column[:, None]
    return sums


def _members(hand: Int64, subset: int) -> Int64:
    """The samples of a hand that a subset's number names."""
    return hand[(subset >> np.arange(len(hand))) & 1 == 1]
