"""A short training of one cell on real ranks: what the checks look at. Everything here runs on the ranks."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fsbench.axes import DEFAULTS, Strategy
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.testing.exercise import STEPS, Deal, Exercise, Scenario, TableKinds
from fsbench.testing.servers import served
from fsbench.testing.watch import Watch
from fsbench.testing.whereabouts import note
from fsbench.train import checkpoint
from fsbench.train.driver import Driver
from fsbench.train.trainer import Strategies, Trainer, close_trainer, open_trainer

SEED = 3
_TIMEOUT = timedelta(seconds=60)
"""Of gloo. The pool's limit comes before it."""


@dataclass(frozen=True)
class Trial:
    """What to train: the reference cell with one axis replaced.

    `interrupted_at`: before that step every rank raises, and the trainer is closed. `resumed_at`: before that step it
    is saved and closed, and a fresh one loads it and goes on. `again`: the same once more. `kinds`: of its tables.
    `sync`: beside which it trains, if that is not the axis. `workers`: of each rank.
    """

    axis: str
    spec: str
    scenario: Scenario = "ordinary"
    interrupted_at: int | None = None
    resumed_at: int | None = None
    again: bool = False
    kinds: TableKinds = field(default_factory=TableKinds)
    sync: str = DEFAULTS["sync"]
    workers: int = 1


@dataclass
class Trained:
    """What training left on one rank.

    `gradients`: as the optimizer took them, float64[steps, parameters]. `dense`, `tables`: parameters, and rows with
    their optimizer state, by name. `operations`: (name, kind, bytes) of each, by lane. The rest is about the strategy
    under test: `undeclared` lanes it looked up; whether it used the collectives, looked at the global target count, or
    moved the parameters after it was attached; groups it made besides its lanes'; why its evidence cannot be recorded,
    or None.
    """

    gradients: np.ndarray
    dense: dict[str, np.ndarray] = field(default_factory=dict)
    tables: dict[str, np.ndarray] = field(default_factory=dict)
    operations: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    undeclared: list[str] = field(default_factory=list)
    used_collectives: bool = False
    used_totals: bool = False
    own_groups: int = 0
    moved: bool = False
    evidence_fault: str | None = None


class _Interruption(Exception):
    pass


@contextlib.contextmanager
def opened(rank: int, ranks: int, trial: Trial) -> Iterator[tuple[Trainer, Watch]]:
    """A trainer for the trial, on this rank, with the servers that it asks for. Closed at the end."""
    strategies, *others = (_strategies(trial) for _ in range(trial.workers))
    workload = Exercise(trial.scenario, trial.kinds)
    watch = Watch(getattr(strategies, trial.axis))
    where: dict[str, Any] = {"rank": rank, "ranks": ranks, "seed": SEED, "timeout": _TIMEOUT}
    with served(strategies, workload, workers=trial.workers, **where) as store:
        where |= {"device": torch.device("cpu"), "store": store, "others": others}
        trainer = open_trainer(workload, strategies, **where)
        yield trainer, watch
        close_trainer(trainer)


def _strategies(trial: Trial) -> Strategies:
    specs = {**DEFAULTS, "sync": trial.sync, trial.axis: trial.spec}
    cell: dict[str, Any] = {axis: create(axis, Spec.parse(spec)) for axis, spec in specs.items()}
    if trial.axis == "collectives":
        cell["sharding"] = Deal()  # so that they shuffle samples too
    return Strategies(**cell)


def train(rank: int, ranks: int, trial: Trial) -> Trained:
    """Trains `STEPS` steps and says what came of it. Collective."""
    if trial.resumed_at is not None:
        return _resume(rank, ranks, trial, trial.resumed_at)
    with opened(rank, ranks, trial) as (trainer, watch):
        trained = _steps(trainer, 0, STEPS)
        _look(trained, trainer, watch, trial)
    return trained


def _look(trained: Trained, trainer: Trainer, watch: Watch, trial: Trial) -> None:
    """Adds what there is to see of a trainer that is still open."""
    lanes = {name: lane for name, lane in trainer.context.lanes.items() if lane.collective}
    trained.operations = {name: lane.log.sequence() for name, lane in lanes.items()}
    trained.dense = {name: tensor.numpy().copy() for name, tensor in trainer.model.state_dict().items()}
    trained.tables = _tables(trainer)
    strategy = getattr(trainer.strategies, trial.axis)
    trained.undeclared = watch.undeclared_lanes(strategy)
    trained.used_collectives, trained.used_totals = watch.collectives, watch.totals
    trained.evidence_fault = _evidence_fault(strategy)
    trained.own_groups = _groups() - 1 - len(lanes)


def interrupt(rank: int, ranks: int, trial: Trial) -> None:
    """Trains until every rank raises before step `interrupted_at`, and closes the trainer."""

    def stop(step: int) -> None:
        if step == trial.interrupted_at:
            raise _Interruption

    with opened(rank, ranks, trial) as (trainer, _), contextlib.suppress(_Interruption):
        Driver(trainer, 0, STEPS).run(stop)


def _steps(trainer: Trainer, first: int, end: int) -> Trained:
    gradients: list[np.ndarray] = []

    def keep_gradients(*_: object) -> None:
        each = [torch.zeros_like(p) if p.grad is None else p.grad for p in trainer.model.parameters()]
        gradients.append(torch.cat([gradient.flatten() for gradient in each]).numpy().copy())

    addresses = _addresses(trainer)
    hook = trainer.optimizer.register_step_pre_hook(keep_gradients)
    Driver(trainer, first, end).run(lambda step: note(f"step {step}"))
    hook.remove()
    note("after the last step")
    return Trained(np.stack(gradients), moved=addresses != _addresses(trainer))


def _resume(rank: int, ranks: int, trial: Trial, step: int) -> Trained:
    with _shared_folder(rank) as folder:
        with opened(rank, ranks, trial) as (trainer, _):
            head = _steps(trainer, 0, step)
            checkpoint.save(trainer, folder / "state", step)
        with opened(rank, ranks, trial) as (trainer, watch):
            # Whatever it starts with, the checkpoint must bring all of it.
            for parameter in trainer.model.parameters():
                parameter.data.zero_()
            tail = _steps(trainer, checkpoint.load(trainer, folder / "state"), STEPS)
            _look(tail, trainer, watch, trial)
    tail.gradients = np.concatenate([head.gradients, tail.gradients])
    return tail


@contextlib.contextmanager
def _shared_folder(rank: int) -> Iterator[Path]:
    """A folder of rank 0 that all ranks know. Collective at both ends."""
    told = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(told, src=0)
    yield Path(str(told[0]))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(str(told[0]))


def _tables(trainer: Trainer) -> dict[str, np.ndarray]:
    state = trainer.strategies.embedding.state_dict()
    return {
        f"{table}.{name}": tensor.numpy().copy() for table, parts in state.items() for name, tensor in parts.items()
    }


def _evidence_fault(strategy: Strategy) -> str | None:
    try:
        json.dumps(dict(strategy.evidence()), allow_nan=False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _addresses(trainer: Trainer) -> list[int]:
    return [parameter.data_ptr() for parameter in trainer.model.parameters()]


def _groups() -> int:
    """Process groups of this process."""
    return len(dist.distributed_c10d._world.pg_map)
