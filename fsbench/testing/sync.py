"""What a dense synchronisation promises besides exact training: see `fsbench.axes.DenseSync`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from fsbench.axes import Sync
from fsbench.testing.case import Case
from fsbench.testing.compare import TOLERANCES
from fsbench.testing.exercise import STEPS
from fsbench.testing.totals import check_totals
from fsbench.testing.trial import Trial, opened
from fsbench.testing.verdicts import Fault, Skip, on_each_count
from fsbench.train.driver import Driver
from fsbench.train.trainer import Trainer

IDLE_S = 5.0
_BARRIERS = 50
_WORKERS = 2
State = dict[str, NDArray]


@dataclass(frozen=True)
class Settled:
    """One rank after training and `flush`. `parameters`: at once, and after all ranks have met many times. `busy`:
    lanes of the strategy on which nothing else gets its turn. `replicas`: asked for once, and once more; `model`: the
    module's state dict between the two. `syncs`: all of them."""

    parameters: tuple[NDArray, NDArray]
    busy: list[str]
    replicas: tuple[dict[str, State], dict[str, State]]
    model: State
    syncs: tuple[Sync, ...]


def settle(rank: int, ranks: int, trial: Trial) -> Settled:
    """On a rank: trains, flushes, and looks at what stands still."""
    with opened(rank, ranks, trial) as (trainer, _):
        sync = trainer.strategies.sync
        Driver(trainer, 0, STEPS).run()
        first = _parameters(trainer)
        busy = _busy_lanes(trainer)
        for _ in range(_BARRIERS):
            dist.barrier()
        second = _parameters(trainer)
        replicas = _copied(sync.replicas())
        model = {name: tensor.numpy().copy() for name, tensor in trainer.model.state_dict().items()}
        settled = Settled((first, second), busy, (replicas, _copied(sync.replicas())), model, tuple(sync.syncs()))
    return settled


def _busy_lanes(trainer: Trainer) -> list[str]:
    """Lanes of the strategy, those to its servers too, on which a job of ours does not run at once."""
    context, sync = trainer.context, trainer.strategies.sync
    lanes = [context.lanes[spec.name] for spec in sync.lanes]
    lanes += [lane for role in sync.roles() for lane in context.servers[role]]
    asked = {lane.name: threading.Event() for lane in lanes}
    for lane in lanes:
        lane.submit(asked[lane.name].set, kind="control")
    end = time.monotonic() + IDLE_S
    return [name for name, turn in asked.items() if not turn.wait(max(0.0, end - time.monotonic()))]


def _parameters(trainer: Trainer) -> NDArray:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()]).numpy().copy()


def _copied(replicas: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, State]:
    return {
        name: {key: tensor.detach().numpy().copy() for key, tensor in state.items()} for name, state in replicas.items()
    }


def _settled(case: Case, ranks: int) -> list[Settled]:
    case.trained(ranks)
    return [ended.result for ended in case.run(settle, ranks, case.trial())]


@on_each_count
def check_no_table(case: Case, ranks: int) -> None:
    """It trains where there is no table; there ranks load apart if `needs_totals` is False."""
    case.trained(ranks)
    case.train(ranks, case.trial("no table"))


@on_each_count
def check_flush(case: Case, ranks: int) -> None:
    """After `flush` the parameters stand still, and its lanes are free."""
    for rank, one in enumerate(_settled(case, ranks)):
        if one.busy:
            raise Fault(f"rank {rank}: lane {', '.join(one.busy)} is still busy after {IDLE_S:g} s")
        if not np.array_equal(*one.parameters):
            raise Fault(f"rank {rank}: the parameters still move")


@on_each_count
def check_replicas(case: Case, ranks: int) -> None:
    """`replicas` gives state dicts of the module, the same on every rank and each time, and leaves the module alone."""
    everyone = _settled(case, ranks)
    for rank, one in enumerate(everyone):
        first, again = one.replicas
        if not first:
            raise Fault(f"rank {rank}: there is none, and nothing to evaluate")
        for name, state in first.items():
            _check_state(state, one.model, f"rank {rank}: {name}")
            _check_close(state, everyone[0].replicas[0].get(name, {}), f"rank {rank}: {name}", "rank 0's")
            _check_close(state, again[name], f"rank {rank}: {name}", "itself when asked again")
        if not np.array_equal(one.parameters[1], _after(one)):
            raise Fault(f"rank {rank}: the parameters changed")


def _after(one: Settled) -> NDArray:
    return np.concatenate([values.ravel() for values in one.model.values()])


def _check_state(state: State, model: State, whose: str) -> None:
    shapes, expected = ({name: values.shape for name, values in of.items()} for of in (state, model))
    if shapes != expected:
        raise Fault(f"{whose} is no state dict of the module: {shapes}; expected {expected}")
    if bad := next((name for name, values in state.items() if not np.isfinite(values).all()), None):
        raise Fault(f"{whose}: {bad} has values that are not finite")


def _check_close(state: State, other: State, whose: str, whom: str) -> None:
    for name, values in state.items():
        tolerance = TOLERANCES[str(values.dtype)]
        if name not in other or not np.allclose(values, other[name], rtol=tolerance, atol=tolerance):
            raise Fault(f"{whose}: {name} differs from {whom}")


@on_each_count
def check_syncs(case: Case, ranks: int) -> None:
    """`syncs` lists as many on every rank if they sync `together`, in order, none after the last step."""
    everyone = _settled(case, ranks)
    for rank, one in enumerate(everyone):
        if case.strategy.together and len(one.syncs) != len(everyone[0].syncs):
            raise Fault(f"rank {rank} lists {len(one.syncs)}, rank 0 {len(everyone[0].syncs)}")
        if list(one.syncs) != sorted(one.syncs, key=lambda sync: (sync.step, sync.at_ns)):
            raise Fault(f"rank {rank}: they are not in order")
        if any(not 0 <= sync.step <= STEPS for sync in one.syncs):
            raise Fault(f"rank {rank}: a sync of step {max(sync.step for sync in one.syncs)}, after {STEPS} steps")


@on_each_count
def check_storage(case: Case, ranks: int) -> None:
    """Parameters stay where `attach` put them: background threads and optimizers hold on to that memory."""
    for rank, one in enumerate(case.trained(ranks)):
        if one.moved:
            raise Fault(f"rank {rank}: parameters moved while it trained")


def share(rank: int, ranks: int, trial: Trial) -> tuple[bool, int]:
    """On a rank: whether a parameter of any worker left the place of the rank's, and after how many steps of them all
    the last sync was."""
    with opened(rank, ranks, trial) as (trainer, _):
        assert trainer.crew, "a trial of several workers"
        places = [[p.data_ptr() for p in trainer.model.parameters()]] * trial.workers
        trainer.crew.run([Driver(member, 0, STEPS) for member in trainer.members], lambda done: None)
        moved = places != [[p.data_ptr() for p in member.model.parameters()] for member in trainer.members]
        return moved, max((sync.step for sync in trainer.strategies.sync.syncs()), default=0)


@on_each_count
def check_workers(case: Case, ranks: int) -> None:
    """Worker threads train over one copy of the parameters if `hogwild` says so."""
    if not case.strategy.hogwild:
        raise Skip("`hogwild` is False")
    case.trained(ranks)
    for rank, ended in enumerate(case.run(share, ranks, case.trial("no table", workers=_WORKERS))):
        moved, last = ended.result
        if moved:
            raise Fault(f"rank {rank}: parameters of its workers are no longer in one place")
        if last > _WORKERS * STEPS:
            raise Fault(f"rank {rank}: a sync of step {last}, after {_WORKERS * STEPS} steps of all workers")


CHECKS = (check_no_table, check_flush, check_replicas, check_syncs, check_totals, check_storage, check_workers)
