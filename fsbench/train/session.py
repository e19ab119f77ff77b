"""The phases of a run on one rank: train, evaluate, measure the noise floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray

from fsbench.collect.interface import LinkMeter, LinkUse
from fsbench.launch.cluster import Link
from fsbench.launch.heartbeat import Heartbeat
from fsbench.samples import Int64
from fsbench.train.apart import all_stats
from fsbench.train.collisions import global_collisions
from fsbench.train.driver import Driver
from fsbench.train.evaluation import evaluate
from fsbench.train.evidence import evidence_of
from fsbench.train.floor import SameForAll, Stay
from fsbench.train.shard_stats import ShardStats
from fsbench.train.spread import replica_spread
from fsbench.train.trainer import Trainer
from fsbench.workload import Evaluation

MAX_WARMUP = 5
FLOOR_WARMUP = 2


@dataclass(frozen=True)
class Part:
    """What one worker of a rank leaves.

    `stats`: of each step, with figures of its own. `rows_asked` by it of each owner, by measured step; `rows_by_class`:
    that it looked up in training. `stalest`: see `EmbeddingExchange.stalest`; 0 where a bound is known.
    """

    stats: Sequence[ShardStats]
    rows_asked: Sequence[Sequence[int]]
    rows_by_class: Mapping[str, int]
    stalest: int


@dataclass(frozen=True)
class Finished:
    """What a run leaves on a rank. `parts`: by worker.

    `measured`, `floor`: ranges of windows in the timeline, warm-up left out. `losses`: mean loss a target of each
    step, over all ranks. `stats`: what the sharding did, of all steps; `weighing`: where its costs and speeds came
    from, as evidence. `collisions`: see `global_collisions`, of the measured steps.
    `replica_spread`: how far dense replicas were apart when training ended.
    `shadow_cpu_s`: CPU seconds of this rank's background syncs in training, None if the strategy tells none (as
    `cpu_s` in its evidence).
    `evaluation`: how quality is measured, None where it is not. `evaluated`: its rows by replica name, the first is the
    headline.
    `sent`: bytes by (wait class of the lane, kind) that this rank sent for training, or servers sent to it.
    `link_use`: what training sent over the cluster's link; None without one.
    """

    measured: range
    floor: range
    losses: list[float]
    stats: list[ShardStats]
    weighing: dict[str, Any]
    collisions: Int64
    parts: Sequence[Part]
    replica_spread: float | None
    shadow_cpu_s: float | None
    evaluation: Evaluation | None
    evaluated: dict[str, NDArray]
    sent: dict[tuple[str, str], int]
    link_use: LinkUse | None


class TrainingRun:
    """Runs the phases; every rank executes the same ones."""

    def __init__(self, trainer: Trainer, steps: int, heartbeat: Heartbeat, link: Link | None = None) -> None:
        self._trainer = trainer
        self._steps = steps
        self._heartbeat = heartbeat
        self._link = link

    def execute(self) -> Finished:
        warmup = min(MAX_WARMUP, self._steps // 4)
        drivers = [Driver(member, 0, self._steps) for member in self._trainer.members]
        link_use = self._train(drivers)
        sent = _sent(self._trainer)
        stats = all_stats(*(driver.stats for driver in drivers)) if self._trainer.apart else drivers[0].stats
        losses = global_losses(*drivers)
        collisions = global_collisions(_ids(drivers)[warmup - self._steps :])
        parts = [_part(driver, warmup) for driver in drivers]
        spread = replica_spread(self._trainer)
        shadow_cpu_s = _told_cpu_s(self._trainer)
        self._heartbeat.beat("evaluate")
        evaluation = self._trainer.workload.evaluation()
        evaluated = self._evaluate(evaluation) if evaluation is not None else {}
        floor_steps = self._floor()
        return Finished(
            measured=range(warmup, self._steps),
            floor=range(self._steps + FLOOR_WARMUP, self._steps + floor_steps),
            losses=losses,
            stats=stats,
            weighing=drivers[0].weigher.evidence(),
            collisions=collisions,
            parts=parts,
            replica_spread=spread,
            shadow_cpu_s=shadow_cpu_s,
            evaluation=evaluation,
            evaluated=evaluated,
            sent=sent,
            link_use=link_use,
        )

    def _train(self, drivers: Sequence[Driver]) -> LinkUse | None:
        """All steps and the flush; what they sent over the link, where there is one."""
        meter = LinkMeter(self._link, self._trainer.lanes) if self._link else None
        self._run(drivers, "train", self._steps)
        return meter.end() if meter else None

    def _run(self, drivers: Sequence[Driver], phase: str, steps: int) -> None:
        """`steps`: of each driver, one for each worker."""
        beat, crew, first = self._heartbeat.beat, self._trainer.crew, drivers[0].step
        if crew is None:
            drivers[0].run(lambda step: beat(phase, step - first, steps))
        else:
            crew.run(drivers, lambda done: beat(phase, done, steps * len(drivers)))

    def _evaluate(self, evaluation: Evaluation) -> dict[str, NDArray]:
        model = self._trainer.model
        trained = {name: value.clone() for name, value in model.state_dict().items()}
        rows = {}
        for name, state in self._trainer.strategies.sync.replicas().items():
            model.load_state_dict(state)
            rows[name] = evaluate(
                self._trainer, evaluation, lambda done, total: self._heartbeat.beat("evaluate", done, total)
            )
        model.load_state_dict(trained)
        return rows

    def _floor(self) -> int:
        """Trains on a little, every rank on the same samples. Comes last: it spoils the model."""
        steps = FLOOR_WARMUP + max(8, self._steps // 4)
        end = self._steps + steps
        same = SameForAll(self._trainer.workload, self._steps)
        members = self._trainer.members
        drivers = [Driver(member, self._steps, end, workload=same, sharding=Stay()) for member in members]
        self._run(drivers, "noise floor", steps)
        return steps


def _ids(drivers: Sequence[Driver]) -> list[dict[str, torch.Tensor]]:
    """Of each step, by table, what all workers of this rank looked up."""
    steps = zip(*(driver.ids for driver in drivers), strict=True)
    return [{table: torch.cat([ids[table] for ids in of_workers]) for table in of_workers[0]} for of_workers in steps]


def _part(driver: Driver, warmup: int) -> Part:
    embedding = driver.trainer.strategies.embedding
    stalest = embedding.stalest() if embedding.staleness is None else 0
    return Part(driver.stats, list(embedding.rows_asked())[warmup:], dict(embedding.rows_by_class()), stalest)


def _told_cpu_s(trainer: Trainer) -> float | None:
    told = evidence_of(trainer.strategies.sync).get("cpu_s")
    return float(told) if isinstance(told, float | int) else None


def _sent(trainer: Trainer) -> dict[tuple[str, str], int]:
    totals: dict[tuple[str, str], int] = {}
    for lane in trainer.lanes:
        for kind, size in lane.log.sent().items():
            totals[lane.spec.waits_as, kind] = totals.get((lane.spec.waits_as, kind), 0) + size
    return totals


def global_losses(*drivers: Driver) -> list[float]:
    """Mean loss a target of each step, over all ranks, and over all workers, whose drivers they are. Collective. Steps
    without a target give 0 targets: NaN-free, their loss is the sum, 0."""
    if not drivers[0].losses:
        return []
    own = [
        torch.stack((torch.stack(driver.losses).double().cpu(), torch.tensor(driver.targets).double()))
        for driver in drivers
    ]
    sums = torch.stack(own).sum(dim=0)
    dist.all_reduce(sums)
    losses, targets = sums
    return (losses / targets.clamp(min=1)).tolist()
