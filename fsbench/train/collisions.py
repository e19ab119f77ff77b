"""The collision rate of what was trained: each rank knows its own batches, the rate is of the global ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from fsbench.metrics.collisions import count_collisions

KEPT_STEPS = 200
"""The last steps whose IDs a rank keeps: enough for the rate, and no memory that grows with the run."""


def collision_rate(batches: Sequence[Mapping[str, torch.Tensor]]) -> float | None:
    """Share of the global batches' unique rows, of all tables, that the next global batch touches too.

    None where there is no such row. Collective; every rank passes the IDs by table of its part of the same batches.
    """
    counts = torch.zeros(2, dtype=torch.int64)
    for table in sorted(batches[0]) if batches else ():
        step, row = _gather_by_row([ids[table] for ids in batches]).unbind(1)
        counts += torch.tensor(count_collisions(step.numpy(), row.numpy(), len(batches)))
    dist.all_reduce(counts)
    again, followed = counts.tolist()
    return again / followed if followed else None


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
