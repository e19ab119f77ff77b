"""Ranks that loaded apart tell each other, after training, what they trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist

from fsbench.train.shard_stats import ShardStats

_COLUMNS = ("cost", "samples", "tokens", "longest")


def all_stats(own: Sequence[ShardStats]) -> list[ShardStats]:
    """What each rank trained in each step, columns [ranks], from columns [1] of its own. Collective."""
    mine = {name: np.concatenate([getattr(step, name) for step in own] or [np.zeros(0)]) for name in _COLUMNS}
    everyone: list[dict[str, np.ndarray]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    columns = {name: np.stack([rank[name] for rank in everyone]) for name in _COLUMNS}
    return [
        _of_all(step, {name: column[:, place] for name, column in columns.items()}) for place, step in enumerate(own)
    ]


def _of_all(own: ShardStats, columns: Mapping[str, Any]) -> ShardStats:
    return dataclasses.replace(own, **columns)
