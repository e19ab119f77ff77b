"""MovieLens-100K as click-through data: a rating of 4 or 5 is a click, in the order of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fsbench.samples import Int64, Jagged, ranges
from fsbench_workloads import keyed
from fsbench_workloads.clicks import Examples, Source, split_in_time
from fsbench_workloads.movielens import Ratings
from fsbench_workloads.splits import sha256_of

CLICK = 4.0
"""Ratings from here on are clicks."""
HISTORY = 10
"""The most movies in the bag of those that a user liked before."""
_HOURS, _DAYS = 24, 7
_EPOCH_WEEKDAY = 4  # 1970-01-01 was a Thursday; 0 is Sunday
_DAY_S = 86_400


class MovieLensClicks(Source):
    """Every rating is an impression. Events of one time are ordered by a hash of user, movie and time.

    Categorical features: the user, the movie, the hour and the weekday (UTC), and the bag of the last `HISTORY` movies
    that the user liked. Dense ones: how many ratings of the user came before and which share of them were clicks, the
    same of the movie, and how many days the user has been here. `Before` is at an earlier second: a page of ratings is
    sent at once.
    """

    dense = 5

    def __init__(self, ratings: Ratings) -> None:
        time = ratings.timestamp
        order = np.lexsort((keyed.bits(0, "tie-break", ratings.user, ratings.item, time), time))
        users, user = np.unique(ratings.user[order], return_inverse=True)
        items, item = np.unique(ratings.item[order], return_inverse=True)
        time, self._clicked = time[order], ratings.rating[order] >= CLICK
        self.rows = (len(users), len(items), _HOURS, _DAYS, len(items))
        self.train, self.held_out = split_in_time(len(order))
        self.protocol = f"the last {len(self.held_out):,} of {len(order):,} ratings in time, a click is a 4 or a 5"
        self._sha256 = ratings.sha256
        self._dense = _history_features(user, item, time, self._clicked)
        self._single = np.stack([user, item, time // 3600 % _HOURS, (time // _DAY_S + _EPOCH_WEEKDAY) % _DAYS], axis=1)
        self._liked = liked_before(user, time, item, self._clicked)

    def read(self, places: Int64) -> Examples:
        single, liked = self._single[places], self._liked.take(places)
        singles = Jagged(single.ravel(), np.full(len(places), single.shape[1]))
        together = Jagged.concatenate([singles, liked]).take(_alternating(len(places)))
        lengths = np.concatenate([np.ones_like(single), liked.lengths[:, None]], axis=1)
        return Examples(self._dense[places], Jagged(together.values, lengths.ravel()), self._clicked[places])

    def fingerprint(self) -> Mapping[str, Any]:
        order = sha256_of(self._single, self._clicked)
        return {
            "data": "MovieLens-100K",
            "data_sha256": self._sha256,
            "split": "last tenth in time, ties by a hash",
            "split_sha256": order,
            "users": self.rows[0],
            "items": self.rows[1],
            "events": len(self._clicked),
            "clicks": int(self._clicked.sum()),
            "held_out": len(self.held_out),
        }


def earlier(key: Int64, time: Int64, value: ArrayLike) -> NDArray[np.float64]:
    """For each event the sum of `value` over those of the same key at earlier times: float64[n]."""
    order = np.lexsort((time, key))
    sums = np.concatenate([[0.0], np.cumsum(np.broadcast_to(value, key.shape)[order])])
    of_key, of_moment = (_first_of_run(*columns) for columns in ((key[order],), (key[order], time[order])))
    found = np.empty(len(key))
    found[order] = sums[of_moment] - sums[of_key]
    return found


def liked_before(user: Int64, time: Int64, item: Int64, liked: NDArray[np.bool_]) -> Jagged:
    """For each event the last `HISTORY` items that its user liked at earlier times; events in the order of time."""
    count = earlier(user, time, liked).astype(np.int64)
    kept = np.minimum(count, HISTORY)
    by_user = np.argsort(user, kind="stable")
    items = item[by_user][liked[by_user]]
    of_user = np.bincount(user, weights=liked).astype(np.int64)
    first = (np.cumsum(of_user) - of_user)[user]
    return Jagged(items[ranges(first + count - kept, kept)], kept)


def _history_features(user: Int64, item: Int64, time: Int64, clicked: NDArray[np.bool_]) -> NDArray[np.float32]:
    """float32[n, 5]"""
    columns: list[NDArray] = []
    for key in (user, item):
        seen, clicks = earlier(key, time, 1), earlier(key, time, clicked)
        columns += [np.log1p(seen), (clicks + 1) / (seen + 2)]
    arrived = np.full(int(user.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(arrived, user, time)
    columns.append(np.log1p((time - arrived[user]) / _DAY_S))
    return np.stack(columns, axis=1).astype(np.float32)


def _first_of_run(*columns: Int64) -> Int64:
    """Where the run of equal entries begins that each entry is in, int64[n]."""
    new = np.ones(len(columns[0]), bool)
    new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))


def _alternating(n: int) -> Int64:
    """0, n, 1, n + 1, ...: int64[2 n]"""
    return np.arange(2 * n).reshape(2, n).T.ravel()
