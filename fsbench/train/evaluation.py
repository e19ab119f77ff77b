"""Looks at every held-out sample once: the same checkpoint gives the same bits on any number of ranks.

Samples are taken in fixed global chunks (what is computed in a chunk of another size can differ in its last bits),
chunks go to ranks in turn, and what they find meets in one table that is summed over ranks: each row is some rank's,
and 0 on all others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from fsbench.train.driver import to_device
from fsbench.train.trainer import Trainer
from fsbench.workload import Evaluation

CHUNK = 64


def evaluate(
    trainer: Trainer, evaluation: Evaluation, before_chunk: Callable[[int, int], None] = lambda done, total: None
) -> NDArray:
    """What is found with the trainer's model and tables, a row for each held-out sample. Collective.

    `before_chunk`: told samples done, of all.
    """
    trainer.strategies.embedding.flush()
    tables = {name: state["weight"] for name, state in trainer.strategies.embedding.state_dict().items()}
    dtype, numbers = evaluation.finds
    total = len(evaluation)
    rows = torch.zeros(total, numbers, dtype=getattr(torch, dtype))
    with torch.no_grad():
        for first in range(trainer.context.rank * CHUNK, total, trainer.context.ranks * CHUNK):
            before_chunk(first, total)
            places = np.arange(first, min(first + CHUNK, total))
            batch = trainer.workload.build_batch(evaluation.samples(places), trainer.context.dtype)
            batch = to_device(batch, trainer.context.device)
            rows[first : first + len(places)] = evaluation.look(trainer.model, batch, tables, places).cpu()
    dist.all_reduce(rows)
    return rows.numpy()
