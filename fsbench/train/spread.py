"""How far the ranks' dense replicas are apart."""

from __future__ import annotations

import torch
import torch.distributed as dist

from fsbench.train.trainer import Trainer


def replica_spread(trainer: Trainer) -> float | None:
    """The largest distance of a rank's dense parameters from their mean over ranks, over the norm of the mean.

    None if the mean is 0. Collective.
    """
    parts = [p.detach().flatten().double().cpu() for p in trainer.model.parameters()]
    own = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
    mean = own.clone()
    dist.all_reduce(mean)
    mean /= trainer.context.ranks
    distance = torch.linalg.vector_norm(own - mean)
    dist.all_reduce(distance, op=dist.ReduceOp.MAX)
    norm = float(torch.linalg.vector_norm(mean))
    return float(distance) / norm if norm else None
