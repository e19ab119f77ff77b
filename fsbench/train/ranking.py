"""Next-item quality: the full catalogue ranked for every user, counted in integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fsbench.errors import FsbenchError
from fsbench.metrics.ranking import RankingQuality, ranking_quality
from fsbench.metrics.sheet import Sheet
from fsbench.samples import Jagged, Samples
from fsbench.train.evaluation import CHUNK
from fsbench.workload import Batch, Evaluation

_NO_USER = "no user has a held-out event"


@dataclass(frozen=True)
class Ranking(Evaluation):
    """Next-item evaluation over the full catalogue, every user once.

    A row is int64[4]: items scored above the user's target and tied with it, seen items removed, and the same of all
    items, as some published figures are computed. `model.encode(batch, rows)` must return [n, dim]: what is multiplied
    with the catalogue to score the next item of each sample.

    `users`: the histories to encode, one a user, in a fixed order (`users.index` identifies the user in messages).
    `targets`: int64[users], the item that came next. `seen`: items of each user left out of the ranking when seen
    items are removed (the target itself never is). `table`: the name of the table whose rows are the catalogue.
    `baseline_scores`: float64[catalogue], one score an item for everyone: the popularity baseline.
    """

    users: Samples
    targets: NDArray[np.int64]
    seen: Jagged
    table: str
    baseline_scores: NDArray[np.float64]
    protocol: str

    metrics = ("ndcg_at_10", "hr_at_10", "ndcg_at_10_unfiltered", "hr_at_10_unfiltered", "ndcg_at_10_se", "hr_at_10_se")
    finds = ("int64", 4)

    def __len__(self) -> int:
        return len(self.users)

    def samples(self, places: NDArray[np.int64]) -> Samples:
        return self.users.take(places)

    def look(
        self, model: torch.nn.Module, batch: Batch, tables: Mapping[str, torch.Tensor], places: NDArray[np.int64]
    ) -> torch.Tensor:
        table = tables[self.table]
        encoder: Any = model
        rows = {self.table: table.index_select(0, batch.ids[self.table])}
        scores = encoder.encode(batch, rows) @ table.t()
        return count_ranks(scores, self.targets[places], self.seen.take(places), self.users.index[places])

    def enter(self, sheet: Sheet, rows: NDArray) -> None:
        filtered, unfiltered = ranking_quality(rows[:, :2]), ranking_quality(rows[:, 2:])
        _enter(sheet, filtered, "")
        _enter(sheet, unfiltered, "_unfiltered")
        for name, estimate in (("ndcg", filtered and filtered.ndcg), ("hr", filtered and filtered.hr)):
            error = estimate.standard_error if estimate else None
            sheet.enter(f"{name}_at_10_se", error, "one user has no spread" if estimate else _NO_USER)

    def enter_baseline(self, sheet: Sheet) -> None:
        popularity = ranking_quality(self.popularity_counts())
        sheet.enter("popularity_ndcg_at_10", popularity.ndcg.mean if popularity else None, _NO_USER)

    def counts(self) -> Mapping[str, int]:
        return {"users": len(self)}

    def popularity_counts(self) -> NDArray[np.int64]:
        """int64[users, 2]: items above and tied when all users are ranked by `baseline_scores`, seen items removed."""
        users = np.arange(len(self.users))
        scores = torch.from_numpy(self.baseline_scores)
        counts = np.zeros((len(users), 2), np.int64)
        for chunk in np.split(users, range(CHUNK, len(users), CHUNK)):
            everyone = scores.expand(len(chunk), -1)
            found = count_ranks(everyone, self.targets[chunk], self.seen.take(chunk), chunk)
            counts[chunk] = found[:, :2].numpy()
        return counts


def _enter(sheet: Sheet, quality: RankingQuality | None, suffix: str) -> None:
    sheet.enter(f"ndcg_at_10{suffix}", quality.ndcg.mean if quality else None, _NO_USER)
    sheet.enter(f"hr_at_10{suffix}", quality.hr.mean if quality else None, _NO_USER)


def count_ranks(
    scores: torch.Tensor, targets: NDArray[np.int64], seen: Jagged, user_index: NDArray[np.int64]
) -> torch.Tensor:
    """int64[n, 4]: above and tied with seen items removed (never the target itself), above and tied of all items.

    Args:
        scores: [n, catalogue].
        targets: int64[n].
        seen: n rows of item IDs; repeats allowed.
        user_index: int64[n], for the message.
    """
    bad = (~scores.isfinite()).any(1).nonzero().flatten().tolist()
    if bad:
        raise FsbenchError(
            f"user {user_index[bad[0]]}: a score is NaN or infinite; the model diverged, try a smaller lr"
        )
    places = torch.arange(len(targets), device=scores.device)
    target = torch.from_numpy(targets).to(scores.device)
    own = scores[places, target][:, None]
    unfiltered = torch.stack([(scores > own).sum(1), (scores == own).sum(1) - 1], 1)
    user_of_seen = np.repeat(np.arange(len(targets)), seen.lengths)
    kept = seen.values != targets[user_of_seen]
    removed = scores.clone()
    removed[
        torch.from_numpy(user_of_seen[kept]).to(scores.device),
        torch.from_numpy(seen.values[kept]).to(scores.device),
    ] = float("-inf")
    filtered = torch.stack([(removed > own).sum(1), (removed == own).sum(1) - 1], 1)
    return torch.cat([filtered, unfiltered], 1)
