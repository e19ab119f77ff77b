"""The MovieLens-100K workload: real histories, small enough for a laptop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fsbench.samples import Int64, Jagged
from fsbench_workloads import keyed, movielens
from fsbench_workloads.next_item import ITEMS, NextItem
from fsbench_workloads.splits import LeaveOneOut, TieBreak, leave_one_out

if TYPE_CHECKING:
    from fsbench.train.ranking import Ranking

_TIE_BREAKS = {"hash": "a seeded hash", "file": "the order of the file"}


class MovieLens100K(NextItem):
    """Next movie on MovieLens-100K: 943 users, 1,682 movies, 100,000 ratings; one training sample a user.

    An epoch holds every user once: sample i of the stream is in epoch i // users.
    """

    default_steps = 300

    @dataclass(frozen=True)
    class Options(NextItem.Options):
        """`order`: of an epoch's users, a permutation of its own or the time of their last training event.
        `tie_break` and `split_seed`: which event of a user's is last where several share its timestamp; the
        split does not follow the run's seed, so that repeats are evaluated on the same events."""

        order: Literal["shuffle", "time"] = "shuffle"
        tie_break: TieBreak = "hash"
        split_seed: int = 0

    options: Options

    def fetch(self, data_dir: Path | None) -> str:
        return str(movielens.fetch(data_dir))

    def prepare(self, data_dir: Path | None, seed: int) -> None:
        ratings = movielens.read(movielens.locate(data_dir))
        self.seed = seed
        self._data_sha256 = ratings.sha256
        self._split = leave_one_out(
            ratings.user,
            ratings.item,
            ratings.timestamp,
            tie_break=self.options.tie_break,
            seed=self.options.split_seed,
        )

    @property
    def split(self) -> LeaveOneOut:
        """Which events are for training, validation and test."""
        return self._split

    @property
    def items(self) -> int:
        return self._split.items

    @property
    def samples_available(self) -> int:
        return len(self._split.events.lengths)

    def histories(self, index: Int64) -> Jagged:
        epochs, nth = np.unique(index // self.samples_available, return_inverse=True)
        orders = np.stack([self._epoch_order(int(epoch)) for epoch in epochs])
        return self._split.train.take(orders[nth, index % self.samples_available])

    def evaluation(self) -> Ranking:
        from fsbench.train.ranking import Ranking

        split = self._split
        seen = split.before_test()
        return Ranking(
            users=self.samples(split.evaluated, seen),
            targets=split.test,
            seen=seen,
            table=ITEMS,
            baseline_scores=np.bincount(split.train.values, minlength=split.items).astype(np.float64),
            protocol=(
                f"test = last event of {len(split.evaluated):,} users, full catalogue of {split.items:,} "
                f"items, seen items removed, ties in time by {_TIE_BREAKS[self.options.tie_break]}, "
                f"leave-one-out; popularity = counts of training events"
            ),
        )

    def fingerprint(self) -> Mapping[str, Any]:
        split = self._split
        return {
            "data": "MovieLens-100K",
            "data_sha256": self._data_sha256,
            "split": "leave-one-out",
            "split_sha256": split.sha256,
            "tie_break": self.options.tie_break,
            "split_seed": self.options.split_seed,
            "tied_rows": split.tied_rows,
            "tied_last": split.tied_last,
            "users": self.samples_available,
            "users_evaluated": len(split.evaluated),
            "users_train_only": self.samples_available - len(split.evaluated),
            "items": split.items,
            "events": len(split.events.values),
            "max_len": self.options.max_len,
            "order": self.options.order,
        }

    def _epoch_order(self, epoch: int) -> Int64:
        """The users in the order in which the epoch reads them."""
        if self.options.order == "time":
            return np.argsort(self._split.train_until, kind="stable")
        return keyed.permutation(self.samples_available, self.seed, "epoch", epoch)
