"""Trainers whose ranks step on their own, for tests on real ranks. Everything here runs on the ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fsbench.axes import TargetCounts
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.train.trainer import Trainer
from tests import support

DENSE = "dense:batch=4,inputs=6,hidden=5,layers=1,dtype=float64"
AVERAGING = ("shadow-ma", "shadow-bmuf")
SHADOWS = (*AVERAGING, "shadow-easgd:servers=2")


@contextmanager
def opened(rank: int, ranks: int, sync: str, workload: str = DENSE, **chosen: Any) -> Iterator[Trainer]:
    """A trainer, with the servers that it asks for."""
    prepared = create("workloads", Spec.parse(workload))
    prepared.prepare(None, 3)
    with support.opened_cell(rank, ranks, prepared, sync=sync, **chosen) as trainer:
        yield trainer


def parameters(trainer: Trainer) -> torch.Tensor:
    """A copy, flat."""
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def take_a_step(trainer: Trainer, step: int) -> None:
    """Of a random walk: without the loader, in which ranks might meet."""
    strategy: Any = trainer.strategies.sync
    strategy.flat.gradients.normal_()
    strategy.after_backward(step, TargetCounts(1, 1))
    strategy.before_step()
    trainer.optimizer.step()
    strategy.after_step()


def unthrottled(sync: str) -> str:
    return f"{sync},duty=1" if ":" in sync else f"{sync}:duty=1"


def wait_for_syncs(strategy: Any, count: int) -> None:
    """Until it lists so many."""
    while len(strategy.syncs()) < count:
        time.sleep(0.0005)  # how often to look; nothing depends on its length
