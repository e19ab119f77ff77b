"""A table's rows dealt to a stream like cards, so that consecutive blocks of it share a chosen part of their rows.

Every block is dealt new cards and takes up some that earlier blocks were dealt: the survivors, and a few that were
away meanwhile. A card that one block holds is held by the next with probability `collision`, whatever its age: of m
cards on average, (1 - collision) m are new and collision ** age of these are still held `age` blocks later. Which ones
is fixed by position, so the share holds by construction, not by chance.

After as many blocks as the table has cards for, dealing begins anew. Nothing is drawn and nothing is kept: where a row
is touched is arithmetic.
"""

from __future__ import annotations

import numpy as np

from fsbench.samples import Int64, Jagged, ranges

MEMORY = 32
"""Blocks: longer than any card survives; a table must have new cards for as many."""
AWAY = (2, 5)
"""After how many blocks the returning cards come back; they are held by no block between."""
_GOLDEN = 0.6180339887498949
_CANDIDATES = 64  # among so many consecutive integers one is coprime to any size below 10**12


class Deck:
    """The rows of a table, dealt to blocks numbered 0, 1, ...

    Args:
        rows: of the table, at least `MEMORY * capacity`.
        capacity: the most cards that a block can hold.
        held: how many it holds on average.
        collision: share of a block's cards that the next block holds too, 0 to 0.5.
        returning: share of a block's cards that come back after being away.
        start: where dealing begins, in [0, rows).
    """

    def __init__(
        self, rows: int, capacity: int, held: float, *, collision: float, returning: float, start: int
    ) -> None:
        self._rows, self._capacity, self._start = rows, capacity, start
        age, card = _taken_up(held, collision, returning)
        self._age = np.append(age, np.zeros(capacity, np.int64))
        self._card = np.append(card, np.arange(capacity))

    def rows(self, block: Int64, held: Int64, first: Int64, count: Int64) -> Jagged:
        """The table's rows on the cards at `count[i]` places from `first[i]` on in block `block[i]`, int64.

        `held`: cards of that block, 1 to capacity; its places are 0 to `held - 1`, and no two have the same row. Every
        run of places has its share of the new and of the old cards.
        """
        of = np.repeat(np.arange(len(block)), count)
        turn = ranges(first, count) * coprime(held)[of] % held[of]
        dealt = (block[of] - self._age[turn]) * self._capacity + self._card[turn]
        table = np.array([self._rows])
        return Jagged((dealt + self._start) % table * coprime(table) % table, count)


def coprime(sizes: Int64) -> Int64:
    """For each size an integer coprime to it, near its golden section: int64 of the same shape [n].

    `place * coprime(size) % size` permutes 0..size-1 and puts any run of neighbours evenly over the whole (Knuth, The
    Art of Computer Programming, 6.4).
    """
    candidates = (sizes * _GOLDEN).astype(np.int64)[:, None] + np.arange(_CANDIDATES)
    first = np.argmax(np.gcd(candidates, sizes[:, None]) == 1, axis=1)
    return candidates[np.arange(len(sizes)), first]


def _taken_up(held: float, collision: float, returning: float) -> tuple[Int64, Int64]:
    """What a block takes up: how many blocks ago each card was dealt, and which card of that block it was.

    The survivors of every age are the first cards of their block, so that whoever is held later was held before;
    those that go away and come back follow them.
    """
    ages = np.arange(1, MEMORY)
    survivors = np.round((1 - collision) * held * collision**ages).astype(np.int64)
    away = np.full(len(AWAY), round(held * returning / len(AWAY)))
    back = survivors[0] + np.arange(len(AWAY)) * away
    count = np.append(survivors, away)
    return np.repeat(np.append(ages, AWAY), count), ranges(np.append(np.zeros_like(survivors), back), count)
