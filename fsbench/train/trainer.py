"""A cell on one rank: its workload and its four strategies, set up together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from fsbench.axes import (
    AXES,
    Collectives,
    DenseSync,
    EmbeddingExchange,
    LaneSpec,
    RankContext,
    Sharding,
    Strategy,
    TableSpec,
)
from fsbench.collect.timeline import Timeline
from fsbench.costs.weigher import needs_times
from fsbench.errors import FsbenchError, Unsupported
from fsbench.lane_order import ordered
from fsbench.launch.activity import Activity
from fsbench.roles import ServerProcess, server_processes
from fsbench.train.channels import Pairs, meeting_point
from fsbench.train.lanes import open_lanes
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
    """What the step driver drives. `model` is replicated, with equal parameters on every rank."""

    context: RankContext
    workload: Workload
    strategies: Strategies
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    hooks: list[Any] = field(default_factory=list)
    """On the parameters; until they are removed, nothing of the trainer is ever freed."""

    @property
    def apart(self) -> bool:
        """Whether ranks load without telling each other what (see `DenseSync.needs_totals`), nor how long it took."""
        strategies = self.strategies
        told = strategies.sharding.moves or needs_times(strategies.sharding) or strategies.sync.needs_totals
        return not (told or (self.workload.tables() and strategies.embedding.needs_totals))


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
) -> Trainer:
    """Creates lanes, tables and model. Collective, on the servers too (`fsbench.train.serving`); needs
    torch.distributed to be initialised.

    `workload` must be prepared. `store`: where ranks and servers meet; by default that of the default group.
    `activity`: where lanes tell what they do, if somebody watches.

    Raises:
        Unsupported: a strategy's `requirements` are not met, or it cannot hold the workload's tables; why.
    """
    for axis, strategy in zip(AXES, strategies.all(), strict=True):
        if reason := strategy.requirements():
            raise Unsupported(f"{axis} {type(strategy).__name__}: {reason}")
    dtype = getattr(torch, workload.dtype_name)
    _require_tables(strategies.embedding, workload.tables(), workload.dtype_name)
    specs, processes = strategies.lane_specs, strategies.servers
    if clash := {spec.name for spec in specs} & {process.lane for process in processes}:
        raise FsbenchError(f"lane {clash.pop()!r} is declared, and the name of one to a server")
    timeline = Timeline([spec.name for spec in specs] + [process.lane for process in processes])
    lanes = open_lanes(specs, timeline, device, timeout, strategies.collectives.on_host, activity)
    servers = Pairs(store or meeting_point(), ranks, timeout, activity).lanes(processes, rank, timeline)
    context = RankContext(
        rank=rank,
        ranks=ranks,
        device=device,
        dtype=dtype,
        seed=seed,
        lanes=lanes | {lane.name: lane for of_role in servers.values() for lane in of_role},
        timeline=timeline,
        collectives=strategies.collectives,
        servers=servers,
    )
    for strategy in strategies.all():
        strategy.setup(context)
    torch.manual_seed(seed)
    model = workload.build_model(dtype).to(device)
    strategies.embedding.build(workload.tables())
    strategies.sync.attach(model)
    hooks = []
    if type(strategies.sync).on_gradient_ready is not DenseSync.on_gradient_ready:
        ready = strategies.sync.on_gradient_ready
        hooks = [p.register_post_accumulate_grad_hook(ready) for p in model.parameters()]
    return Trainer(context, workload, strategies, model, workload.dense_optimizer(model.parameters()), hooks)


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
    for hook in trainer.hooks:
        hook.remove()
    for strategy in trainer.strategies.all():
        strategy.close()
    for lane in trainer.context.lanes.values():
        lane.close()
