"""A checkpoint: full logical tables, dense state, optimizer, strategies' state and the consumed position.

It does not depend on the number of ranks: what was saved on two can go on on three.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fsbench.errors import DataError
from fsbench.train.trainer import Trainer

FORMAT = 1


def save(trainer: Trainer, path: Path, step: int) -> None:
    """Writes atomically on rank 0. Collective. `step`: the next step to train, not one looked ahead to."""
    trainer.strategies.embedding.flush()
    trainer.strategies.sync.flush()
    state = {
        "format": FORMAT,
        "step": step,
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "tables": trainer.strategies.embedding.state_dict(),
        "sharding": trainer.strategies.sharding.state_dict(),
        "collectives": trainer.strategies.collectives.state_dict(),
        "sync": trainer.strategies.sync.state_dict(),
    }
    if trainer.context.rank == 0:
        partial = path.with_name(path.name + ".partial")
        torch.save(state, partial)
        os.replace(partial, path)
    dist.barrier()


def load(trainer: Trainer, path: Path) -> int:
    """Restores a trainer and returns the next step to train. Collective.

    Raises:
        DataError: no checkpoint, or one of another format.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location=trainer.context.device, weights_only=True)
    except FileNotFoundError:
        raise DataError(f"{path}: no such checkpoint") from None
    if state.get("format") != FORMAT:
        raise DataError(f"{path}: checkpoint format {state.get('format')}, this version reads {FORMAT}")
    trainer.model.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.strategies.embedding.load_state_dict(state["tables"])
    trainer.strategies.sharding.load_state_dict(state["sharding"])
    trainer.strategies.collectives.load_state_dict(state["collectives"])
    trainer.strategies.sync.load_state_dict(state["sync"])
    return int(state["step"])
