"""Ranks, and their workers, that loaded apart tell each other, after training, what they trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist

from fsbench.train.shard_stats import ShardStats

_COLUMNS = ("cost", "samples", "tokens", "longest")


def all_stats(*own: Sequence[ShardStats]) -> list[ShardStats]:
    """What each worker of each rank trained in each step, columns [ranks * workers], from columns [1] of each of one's
    own workers. Collective."""
    mine = {name: np.array([[getattr(step, name)[0] for step in of_worker] for of_worker in own]) for name in _COLUMNS}
    everyone: list[dict[str, np.ndarray]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    columns = {name: np.concatenate([rank[name] for rank in everyone]) for name in _COLUMNS}
    return [
        _of_all(step, {name: column[:, place] for name, column in columns.items()}) for place, step in enumerate(own[0])
    ]


def _of_all(own: ShardStats, columns: Mapping[str, Any]) -> ShardStats:
    return dataclasses.replace(own, **columns)
