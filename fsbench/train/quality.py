"""Ranking quality of a finished run, and of the popularity baseline under the same protocol."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fsbench.metrics.ranking import RankingQuality, ranking_quality
from fsbench.metrics.sheet import Sheet
from fsbench.train.evaluation import CHUNK_USERS, count_ranks
from fsbench.train.session import Finished
from fsbench.workload import Ranking


def enter_quality(sheet: Sheet, finished: Finished) -> None:
    """Enters NDCG@10 and HR@10 of the headline replica, and of popularity."""
    filtered = unfiltered = popularity = None
    otherwise = "the workload measures no ranking"
    if finished.ranking is not None and finished.evaluated is not None:
        otherwise = "no user has a held-out event"
        headline = next(iter(finished.evaluated.values()))
        filtered, unfiltered = ranking_quality(headline.filtered), ranking_quality(headline.unfiltered)
        popularity = ranking_quality(popularity_counts(finished.ranking))
    _enter(sheet, filtered, "", otherwise)
    _enter(sheet, unfiltered, "_unfiltered", otherwise)
    sheet.enter("popularity_ndcg_at_10", popularity.ndcg.mean if popularity else None, otherwise)
    for name, estimate in (("ndcg", filtered and filtered.ndcg), ("hr", filtered and filtered.hr)):
        error = estimate.standard_error if estimate else None
        sheet.enter(f"{name}_at_10_se", error, "one user has no spread" if estimate else otherwise)


def _enter(sheet: Sheet, quality: RankingQuality | None, suffix: str, otherwise: str) -> None:
    sheet.enter(f"ndcg_at_10{suffix}", quality.ndcg.mean if quality else None, otherwise)
    sheet.enter(f"hr_at_10{suffix}", quality.hr.mean if quality else None, otherwise)


def popularity_counts(ranking: Ranking) -> NDArray[np.int64]:
    """int64[users, 2]: items above and tied when all users are ranked by `baseline_scores`, seen items removed."""
    users = np.arange(len(ranking.users))
    scores = torch.from_numpy(ranking.baseline_scores)
    counts = np.zeros((len(users), 2), np.int64)
    for chunk in np.split(users, range(CHUNK_USERS, len(users), CHUNK_USERS)):
        everyone = scores.expand(len(chunk), -1)
        found = count_ranks(everyone, ranking.targets[chunk], ranking.seen.take(chunk), chunk)
        counts[chunk] = found[:, :2].numpy()
    return counts
