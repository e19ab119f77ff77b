"""Collisions in what was trained: each rank knows its own batches, collisions are between the global ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from fsbench.metrics.collisions import count_collisions
from fsbench.samples import Int64

KEPT_STEPS = 200
"""The last steps whose IDs a rank keeps: enough for rates, and no memory that grows with the run."""


def global_collisions(batches: Sequence[Mapping[str, torch.Tensor]]) -> Int64:
    """int64[steps - 1, 2]: of the global batches' unique rows, of all tables, how many the next global batch touches
    too, and how many there are.

    Collective; every rank passes the IDs by table of its part of the same batches.
    """
    counts = torch.zeros(max(0, len(batches) - 1), 2, dtype=torch.int64)
    for table in sorted(batches[0]) if batches else ():
        step, row = _gather_by_row([ids[table] for ids in batches]).unbind(1)
        counts += torch.from_numpy(count_collisions(step.numpy(), row.numpy(), len(batches)))
    dist.all_reduce(counts)
    return counts.numpy()


def _gather_by_row(ids: Sequence[torch.Tensor]) -> torch.Tensor:
    """int64[m, 2]: the steps and rows that any rank touched, of the rows that fall to this rank (row mod ranks)."""
    unique = [torch.unique(rows) for rows in ids]
    steps = torch.arange(len(ids)).repeat_interleave(torch.tensor([len(rows) for rows in unique]))
    touches = torch.stack((steps, torch.cat(unique)), dim=1)
    to = touches[:, 1] % dist.get_world_size()
    sent = torch.bincount(to, minlength=dist.get_world_size())
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    gathered = touches.new_empty(int(received.sum()), 2)
    dist.all_to_all_single(gathered, touches[torch.argsort(to)], received.tolist(), sent.tolist())
    return gathered
