"""Leave-one-out: each user's last event is the test, the one before it the validation, the rest trains.

Many events of one user share a timestamp, so the order among ties decides which event is last. It is a
choice, made here and recorded: never the order of the item IDs, which would tell the model what comes next.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fsbench.samples import Int64, Jagged, ranges
from fsbench_workloads import keyed

TieBreak = Literal["hash", "file"]
FEWEST_EVENTS = 3
"""A user with fewer would have nothing left to train on: all of their events are for training."""


@dataclass(frozen=True)
class LeaveOneOut:
    """Users' histories, oldest event first. Users and items are numbered in the order of their raw IDs.

    `events`: jagged int64, all item numbers of each user. `held_out`: int64[users], how many last events of
    each are held out, 2 or 0. `train_until`: int64[users], the time of each user's last training event.
    `items`: size of the catalogue. `tied_rows`: share of events that share (user, timestamp) with another
    one. `tied_last`: share of users whose last event is such.
    """

    events: Jagged
    held_out: Int64
    train_until: Int64
    items: int
    tied_rows: float
    tied_last: float

    @cached_property
    def train(self) -> Jagged:
        """Training events of every user."""
        return heads(self.events, self.events.lengths - self.held_out)

    @property
    def evaluated(self) -> Int64:
        """Users with a test event, in order."""
        return np.flatnonzero(self.held_out)

    @property
    def validation(self) -> Int64:
        """Validation item of each evaluated user."""
        return self.events.values[self.events.offsets[1:][self.evaluated] - 2]

    @property
    def test(self) -> Int64:
        """Test item of each evaluated user."""
        return self.events.values[self.events.offsets[1:][self.evaluated] - 1]

    def before_test(self) -> Jagged:
        """All events before the test event of each evaluated user."""
        known = self.events.take(self.evaluated)
        return heads(known, known.lengths - 1)

    @property
    def sha256(self) -> str:
        """Digest of the split: equal digests mean equal training, validation and test events."""
        return sha256_of(self.train.values, self.train.lengths, self.validation, self.test)


def leave_one_out(user: Int64, item: Int64, timestamp: Int64, *, tie_break: TieBreak, seed: int) -> LeaveOneOut:
    """Splits events given in file order, int64[n] each, n >= 1, IDs of any value.

    Args:
        tie_break: the order among a user's events of one timestamp: `hash`, a seeded hash of user, item and
            timestamp, whatever the order of the file; or `file`, the order of the file.
        seed: of the hash.
    """
    order = event_order(user, item, timestamp, tie_break, seed)
    timestamp = timestamp[order]
    _, lengths = np.unique(user, return_counts=True)
    catalogue, numbers = np.unique(item, return_inverse=True)
    events = Jagged(numbers[order].astype(np.int64), lengths.astype(np.int64))
    held_out = np.where(lengths >= FEWEST_EVENTS, 2, 0).astype(np.int64)
    last = events.offsets[1:] - 1
    tied = _tied(user[order], timestamp)
    return LeaveOneOut(
        events=events,
        held_out=held_out,
        train_until=timestamp[last - held_out],
        items=len(catalogue),
        tied_rows=float(tied.mean()),
        tied_last=float(tied[last].mean()),
    )


def event_order(user: Int64, item: Int64, timestamp: Int64, tie_break: TieBreak, seed: int) -> Int64:
    """The rows by user, time and tie-break, int64[n]."""
    if tie_break == "file":
        return np.lexsort((timestamp, user))  # stable
    return np.lexsort((keyed.bits(seed, "tie-break", user, item, timestamp), timestamp, user))


def heads(rows: Jagged, lengths: Int64) -> Jagged:
    """The first `lengths[i]` values of each row i."""
    return Jagged(rows.values[ranges(rows.offsets[:-1], lengths)], lengths)


def tails(rows: Jagged, lengths: Int64) -> Jagged:
    """The last `lengths[i]` values of each row i."""
    return Jagged(rows.values[ranges(rows.offsets[1:] - lengths, lengths)], lengths)


def sha256_of(*arrays: NDArray) -> str:
    """One digest over integer arrays, the same on machines of either byte order."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return digest.hexdigest()


def _tied(user: Int64, timestamp: Int64) -> NDArray[np.bool_]:
    """Which rows, in order of user and time, share both with a neighbour."""
    with_next = (user[1:] == user[:-1]) & (timestamp[1:] == timestamp[:-1])
    return np.append(with_next, False) | np.append(False, with_next)
