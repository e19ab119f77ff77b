"""A checkpoint: full logical tables, dense state, optimizer, strategies' state and the consumed position.

It does not depend on the number of ranks: what was saved on two can go on on three. The optimizer's state is that of
rank 0's first worker, for all.
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
_PARTS = ("step", "model", "optimizer", "tables", "sharding", "collectives", "sync")


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
        DataError: no checkpoint, one of another format, or a file that holds more than tensors and plain values.
    """
    state = _read(path, trainer.context.device)
    for member in trainer.members:
        member.model.load_state_dict(state["model"])
        member.optimizer.load_state_dict(state["optimizer"])
    trainer.strategies.embedding.load_state_dict(state["tables"])
    trainer.strategies.sharding.load_state_dict(state["sharding"])
    trainer.strategies.collectives.load_state_dict(state["collectives"])
    trainer.strategies.sync.load_state_dict(state["sync"])
    return int(state["step"])


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    """The state in a file of anyone: `weights_only` runs nothing that the file asks for."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise DataError(f"{path}: no such checkpoint") from None
    except Exception as error:
        # Damage shows as almost any error. Only the beginning: torch goes on to explain how to trust the file.
        raise DataError(f"{path}: no checkpoint that is safe to load: {_beginning(error)}") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else None
        raise DataError(f"{path}: checkpoint format {found}, this version reads {FORMAT}")
    if missing := [part for part in _PARTS if part not in state]:
        raise DataError(f"{path}: the checkpoint lacks {', '.join(missing)}")
    return state


def _beginning(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__
