"""A cell on one rank: its workload and its four strategies, set up together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch

from fsbench import hogwild
from fsbench.axes import (
    AXES,
    SHUFFLE,
    Collectives,
    DenseSync,
    EmbeddingExchange,
    LaneSpec,
    RankContext,
    Sharding,
    Strategy,
    TableSpec,
)
from fsbench.collect.timeline import Timeline, Timelines
from fsbench.costs.weigher import needs_times
from fsbench.errors import FsbenchError, Unsupported
from fsbench.launch.activity import Activity
from fsbench.roles import ServerProcess, server_processes
from fsbench.train.channels import Pairs, meeting_point
from fsbench.train.crew import Crew, Turns, WorkerSync, share_parameters
from fsbench.train.lanes import Lane, OwnLane, open_lanes, ordered
from fsbench.workload import Workload


@dataclass(frozen=True)
class Strategies:
    """One strategy an axis."""

    sharding: Sharding
    embedding: EmbeddingExchange
    collectives: Collectives
    sync: DenseSync

    def all(self) -> tuple[Strategy, ...]:
        return tuple(getattr(self, axis) for axis in AXES)

    @property
    def lookahead(self) -> int:
        """Batches that must lie on their ranks beyond the current one."""
        return max(strategy.lookahead for strategy in self.all())

    @property
    def lane_specs(self) -> list[LaneSpec]:
        """Of the lanes that all ranks share."""
        return ordered(lane for strategy in self.all() for lane in strategy.lanes)

    @property
    def servers(self) -> list[ServerProcess]:
        return server_processes({axis: getattr(self, axis).roles() for axis in AXES})


@dataclass
class Trainer:
    """What the step driver drives. `model` is replicated, with equal parameters on every rank. `crew`: the workers that
    train for it by a thread each, where there are several; drivers are then theirs."""

    context: RankContext
    workload: Workload
    strategies: Strategies
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    hooks: list[Any] = field(default_factory=list)
    """On the parameters; until they are removed, nothing of the trainer is ever freed."""
    crew: Crew | None = None

    @property
    def apart(self) -> bool:
        """Whether ranks load without telling each other what (see `DenseSync.needs_totals`), nor how long it took."""
        strategies = self.strategies
        told = strategies.sharding.moves or needs_times(strategies.sharding) or strategies.sync.needs_totals
        return not (told or (self.workload.tables() and strategies.embedding.needs_totals))

    @property
    def members(self) -> Sequence[Trainer]:
        """By worker, what its driver drives: where there is one, the trainer itself."""
        return self.crew.members if self.crew else [self]

    @property
    def lanes(self) -> list[Lane]:
        """All of this rank, those of its workers too, each once."""
        return list(dict.fromkeys(lane for member in self.members for lane in member.context.lanes.values()))


def open_trainer(
    workload: Workload,
    strategies: Strategies,
    *,
    rank: int,
    ranks: int,
    device: torch.device,
    seed: int,
    timeout: timedelta,
    store: Any = None,
    activity: Activity | None = None,
    others: Sequence[Strategies] = (),
) -> Trainer:
    """Creates lanes, tables and model. Collective, on the servers too (`fsbench.train.serving`); needs
    torch.distributed to be initialised.

    `workload` must be prepared. `store`: where ranks and servers meet; by default that of the default group.
    `activity`: where lanes tell what they do, if somebody watches. `others`: the same strategies once more for every
    worker but the first; it has their sharding and embedding to itself.

    Raises:
        Unsupported: a strategy's `requirements` are not met, or it cannot hold the workload's tables, or not be trained
            by several workers; why.
    """
    workers = 1 + len(others)
    _require_strategies(workload, strategies, workers, device)
    specs, processes = strategies.lane_specs, strategies.servers
    if clash := {spec.name for spec in specs} & {process.lane for process in processes}:
        raise FsbenchError(f"lane {clash.pop()!r} is declared, and the name of one to a server")
    names = [spec.name for spec in specs] + [process.lane for process in processes]
    timelines = [Timeline(names) for _ in range(workers)]
    timeline = Timelines(timelines) if others else timelines[0]
    lanes = open_lanes(specs, timeline, device, timeout, strategies.collectives.on_host, activity)
    pairs = Pairs(store or meeting_point(), ranks, timeout, activity, workers)
    servers = pairs.lanes(processes, rank, timeline)
    context = RankContext(
        rank=rank,
        ranks=ranks,
        device=device,
        dtype=getattr(torch, workload.dtype_name),
        seed=seed,
        lanes=lanes | {lane.name: lane for of_role in servers.values() for lane in of_role},
        timeline=timelines[0],
        collectives=strategies.collectives,
        servers=servers,
        workers=workers,
    )
    # A server answers nobody before all have come.
    contexts = [_context_of(number, context, timelines[number], pairs, processes) for number in range(1, workers)]
    trainer = _open_first(workload, strategies, context)
    if others:
        trainer.crew = _crew(trainer, contexts, others)
    return trainer


def _open_first(workload: Workload, strategies: Strategies, context: RankContext) -> Trainer:
    """The rank's trainer, with all its strategies."""
    for strategy in strategies.all():
        strategy.setup(context)
    model = _model(workload, context)
    strategies.embedding.build(workload.tables())
    strategies.sync.attach(model)
    hooks = []
    if context.workers == 1 and type(strategies.sync).on_gradient_ready is not DenseSync.on_gradient_ready:
        ready = strategies.sync.on_gradient_ready
        hooks = [p.register_post_accumulate_grad_hook(ready) for p in model.parameters()]
    return Trainer(context, workload, strategies, model, workload.dense_optimizer(model.parameters()), hooks)


def _model(workload: Workload, context: RankContext) -> torch.nn.Module:
    torch.manual_seed(context.seed)
    return workload.build_model(context.dtype).to(context.device)


def _context_of(
    worker: int, first: RankContext, timeline: Timeline, pairs: Pairs, processes: Sequence[ServerProcess]
) -> RankContext:
    """Of a worker but the first: it loads and asks servers on lanes of its own."""
    servers = pairs.lanes(processes, first.rank, timeline, worker)
    own = [OwnLane(SHUFFLE, timeline), *(lane for of_role in servers.values() for lane in of_role)]
    return replace(
        first,
        worker=worker,
        timeline=timeline,
        lanes={**first.lanes, **{lane.name: lane for lane in own}},
        servers={**first.servers, **servers},
    )


def _crew(first: Trainer, contexts: Sequence[RankContext], others: Sequence[Strategies]) -> Crew:
    """`first`: the rank's trainer, whose model is the first worker's. `contexts`, `others`: of all other workers."""
    turns = Turns()
    first.context.standstill = turns.standstill

    def member(context: RankContext, own: Strategies, model: torch.nn.Module, optimizer: Any) -> Trainer:
        sync = WorkerSync(first.strategies.sync, turns)
        sync.attach(model)
        strategies = replace(first.strategies, sharding=own.sharding, embedding=own.embedding, sync=sync)
        return Trainer(context, first.workload, strategies, model, optimizer)

    members = [member(first.context, first.strategies, first.model, first.optimizer)]
    for context, own in zip(contexts, others, strict=True):
        model = _model(first.workload, context)
        share_parameters(model, first.model)
        for strategy in (own.sharding, own.embedding):
            strategy.setup(context)
        own.embedding.build(first.workload.tables())
        members.append(member(context, own, model, first.workload.dense_optimizer(model.parameters())))
    return Crew(members, first.strategies.sync, turns)


def _require_strategies(workload: Workload, strategies: Strategies, workers: int, device: torch.device) -> None:
    """Raises:
    Unsupported: the first that cannot run here, on this workload or with so many workers; why.
    """
    for axis, strategy in zip(AXES, strategies.all(), strict=True):
        if reason := strategy.requirements():
            raise Unsupported(f"{axis} {type(strategy).__name__}: {reason}")
    _require_tables(strategies.embedding, workload.tables(), workload.dtype_name)
    driven = {axis: getattr(strategies, axis) for axis in ("sharding", "embedding", "sync")}
    if found := hogwild.obstacle(workers, **driven, tables=bool(workload.tables())):
        raise Unsupported(f"{found.axis} {type(driven[found.axis]).__name__}: {found.reason}")
    if workers > 1 and device.type != "cpu":
        raise Unsupported(f"workers={workers}: threads of a rank train on a CPU only, and this rank has a GPU")


def _require_tables(embedding: EmbeddingExchange, tables: Sequence[TableSpec], dtype: str) -> None:
    """Raises:
    Unsupported: the first table that the strategy cannot hold or train.
    """
    for table in tables:
        for what, has, can in (
            ("dtype", dtype, embedding.dtypes),
            ("optimizer", table.optimizer, embedding.optimizers),
        ):
            if has not in can:
                raise Unsupported(
                    f"embedding {type(embedding).__name__}: {what} {has} of table {table.name}; "
                    f"it can do {', '.join(can)}"
                )


def close_trainer(trainer: Trainer) -> None:
    """Joins every thread of the trainer and lets go of its parameters."""
    if trainer.crew:
        trainer.crew.close()
    for hook in trainer.hooks:
        hook.remove()
    for strategy in trainer.strategies.all():
        strategy.close()
    for worker in trainer.members[1:]:
        worker.strategies.sharding.close()
        worker.strategies.embedding.close()
    for lane in trainer.lanes:
        lane.close()
