"""Synthetic histories whose order carries signal: a Markov chain over item categories.

The categories lie on a circle. A history begins with a restart: an item drawn from the catalogue's
popularity. After each item, with probability `FOLLOW`, the chain steps from that item's category a few places
onward, by a draw from `STEPS`, and an item of the category reached follows; otherwise it restarts.

Why this is a Markov chain: a restart depends on nothing before it, and a step depends on the current category
only, which the current item tells. So the next item's distribution is a function of the current item.

Why it needs no loop: steps are independent of where they are taken and add up on a circle, so the category at
a position is that of the last restart plus the sum of the steps since, modulo the number of categories.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fsbench.samples import Int64, Jagged, ranges
from fsbench_workloads import keyed

FOLLOW = 0.7
"""Probability that an item follows from the one before it."""
STEPS = (0.8, 0.15, 0.05)
"""Probabilities of stepping 0, 1 or 2 categories onward."""
EXPONENT, OFFSET = 1.05, 10.0
"""Popularity of the item of rank r = 1, 2, ... (Zipf and Mandelbrot): (r + OFFSET) ** -EXPONENT."""


class ItemChain:
    """A catalogue of `items` in `categories`, and how one item leads to another.

    Which item has which popularity rank is drawn by `seed`; the item of rank r (from 0) is in category r
    modulo `categories`, where its rank is r divided by `categories`. Within a category popularity follows the
    same law as in the catalogue, so one cumulative table, cut at the right place, serves them all.

    `category`: int64[items], the category of each item.
    """

    def __init__(self, items: int, categories: int, seed: int) -> None:
        ranks = np.arange(items)
        self._items, self._categories, self._seed = items, categories, seed
        self._item_of_rank = keyed.permutation(items, seed, "catalogue")
        self._weights = (ranks + 1 + OFFSET) ** -EXPONENT
        self._cumulative = np.cumsum(self._weights)
        self._sizes = np.bincount(ranks % categories, minlength=categories)
        self.category = np.empty(items, np.int64)
        self.category[self._item_of_rank] = ranks % categories

    def histories(self, stream: str, index: Int64, lengths: Int64) -> Jagged:
        """Items of the histories numbered `index` in `stream`, jagged int64: row i has `lengths[i]` of them.

        A history depends on (seed, stream, its index) only; a longer one begins with the shorter one.
        """
        sample = np.repeat(index, lengths)
        position = ranges(np.zeros_like(lengths), lengths)

        def uniform(purpose: str) -> NDArray[np.float64]:
            return keyed.uniform(self._seed, f"{stream}/{purpose}", sample, position)

        restart = (position == 0) | (uniform("restart") >= FOLLOW)
        step = np.searchsorted(np.cumsum(STEPS[:-1]), uniform("step"), side="right")
        item = uniform("item")
        fresh = self._rank(item, self._items)

        walked = np.cumsum(np.where(restart, 0, step))
        origin = np.maximum.accumulate(np.where(restart, np.arange(len(sample)), 0))
        category = (fresh[origin] + walked - walked[origin]) % self._categories
        following = self._rank(item, self._sizes[category]) * self._categories + category
        return Jagged(self._item_of_rank[np.where(restart, fresh, following)], lengths)

    def popularity(self) -> NDArray[np.float64]:
        """The long-run share of each item, float64[items], exact.

        The shares p of the categories solve p = (1 - FOLLOW) r + FOLLOW (steps * p), where r are their shares
        of the restarts and * is convolution on the circle: a division of Fourier transforms.
        """
        ranks = np.arange(self._items)
        category = ranks % self._categories
        fresh = (1 - FOLLOW) * self._weights / self._cumulative[-1]
        within = self._weights[ranks // self._categories] / self._cumulative[self._sizes[category] - 1]

        restarts = np.bincount(category, fresh)
        steps = np.bincount(np.arange(len(STEPS)) % self._categories, STEPS, self._categories)
        shares = np.fft.irfft(np.fft.rfft(restarts) / (1 - FOLLOW * np.fft.rfft(steps)), self._categories)
        scores = np.empty(self._items)
        scores[self._item_of_rank] = fresh + (shares - restarts)[category] * within
        return scores

    def _rank(self, uniform: NDArray[np.float64], among: ArrayLike) -> Int64:
        """Popularity ranks drawn from the `among` most popular, by inverting the cumulative table."""
        total = self._cumulative[np.asarray(among) - 1]
        return np.searchsorted(self._cumulative, uniform * total, side="right")
