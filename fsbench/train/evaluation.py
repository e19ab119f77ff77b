"""Full-catalogue ranking, counted in integers: the same checkpoint gives the same bits on any number of ranks.

Users are scored in fixed global chunks (a row scored in a chunk of another size can differ in its last bits), chunks
go to ranks in turn, and each user's counts meet in one int64 table that is summed over ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from fsbench.errors import FsbenchError
from fsbench.samples import Jagged
from fsbench.train.trainer import Trainer
from fsbench.workload import Ranking

CHUNK_USERS = 64


@dataclass(frozen=True)
class RankCounts:
    """int64[users, 2] each: items scored above the user's target, and tied with it.

    `filtered`: seen items removed. `unfiltered`: all items, as some published figures are computed.
    """

    filtered: NDArray[np.int64]
    unfiltered: NDArray[np.int64]


def rank_users(
    trainer: Trainer, ranking: Ranking, before_chunk: Callable[[int, int], None] = lambda done, total: None
) -> RankCounts:
    """Scores every user once with the trainer's model and tables. Collective. `before_chunk`: told users done, of all.

    Raises:
        FsbenchError: a score is not finite; the message names the user.
    """
    trainer.strategies.embedding.flush()
    table = trainer.strategies.embedding.state_dict()[ranking.table]["weight"]
    users = len(ranking.users)
    counts = torch.zeros(users, 4, dtype=torch.int64)
    with torch.no_grad():
        for first in range(trainer.context.rank * CHUNK_USERS, users, trainer.context.ranks * CHUNK_USERS):
            before_chunk(first, users)
            chunk = np.arange(first, min(first + CHUNK_USERS, users))
            scores = _score(trainer, ranking, table, chunk)
            counts[first : first + len(chunk)] = count_ranks(
                scores, ranking.targets[chunk], ranking.seen.take(chunk), ranking.users.index[chunk]
            ).cpu()
    dist.all_reduce(counts)
    return RankCounts(counts[:, :2].numpy(), counts[:, 2:].numpy())


def _score(trainer: Trainer, ranking: Ranking, table: torch.Tensor, chunk: NDArray[np.int64]) -> torch.Tensor:
    batch = trainer.workload.build_batch(ranking.users.take(chunk), trainer.context.dtype)
    device = trainer.context.device
    ids = {name: value.to(device) for name, value in batch.ids.items()}
    features = {name: value.to(device) for name, value in batch.features.items()}
    batch = type(batch)(batch.samples, ids, features)
    rows = {ranking.table: table.index_select(0, ids[ranking.table])}
    model: Any = trainer.model
    return model.encode(batch, rows) @ table.t()


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
