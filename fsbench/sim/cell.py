"""A cell put together for a simulated machine: its strategies' plans, its workload's batches, and what they write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fsbench.axes import (
    Collectives,
    DenseSync,
    EmbeddingExchange,
    LaneSpec,
    Sharding,
    Strategy,
)
from fsbench.costs.weigher import needs_times
from fsbench.errors import Unsupported
from fsbench.lane_order import ordered
from fsbench.sim.batches import Batches, RowIds
from fsbench.sim.contract import Stage
from fsbench.sim.driver import ComputeCosts, Pipeline, PlannedDriver
from fsbench.sim.plan import Script
from fsbench.sim.profile import Profile
from fsbench.sim.topology import Topology
from fsbench.train.metadata import metadata_bytes
from fsbench.workload import Workload

T = TypeVar("T")

_DOES = {
    "embedding": ("build", "prefetch", "lookup", "update", "flush"),
    "collectives": ("all_to_all", "all_gather", "all_reduce"),
    "sync": ("attach", "on_gradient_ready", "after_backward", "before_step", "after_step", "flush"),
}
"""By axis, the methods that a plan is about."""


@dataclass(frozen=True)
class PlannedStrategies:
    """One strategy an axis: what `fsbench.train.trainer.Strategies` is to real ranks."""

    sharding: Sharding
    embedding: EmbeddingExchange
    collectives: Collectives
    sync: DenseSync

    def all(self) -> tuple[Strategy, ...]:
        return (self.sharding, self.embedding, self.collectives, self.sync)

    @property
    def lanes(self) -> list[LaneSpec]:
        """In the order in which ranks create them."""
        return ordered(lane for strategy in self.all() for lane in strategy.lanes)


@dataclass(frozen=True)
class Described:
    """What only the model tells of a workload: `parameters`, numbers of values of the dense parameters, in order;
    `itemsize`, bytes of a value; `row_ids`, see `fsbench.sim.batches`."""

    parameters: Sequence[int]
    itemsize: int
    row_ids: RowIds


def write_cell(
    strategies: PlannedStrategies,
    workload: Workload,
    described: Described,
    batches: Batches,
    profile: Profile,
    topology: Topology,
) -> PlannedDriver:
    """What all ranks do with these batches. `workload`: prepared.

    Raises:
        Unsupported: a strategy without a plan, or one whose plan needs what is not simulated.
    """
    script = Script(topology, profile.device, frozenset(strategies.collectives.on_host))
    tables = workload.tables()
    stage = Stage(
        script,
        plan_of("collectives", strategies.collectives, lambda: strategies.collectives.plan(script)),
        profile.work,
        {table.name: table for table in tables},
        described.parameters,
        described.itemsize,
    )
    embedding = plan_of("embedding", strategies.embedding, lambda: strategies.embedding.plan(stage))
    sync = plan_of("sync", strategies.sync, lambda: strategies.sync.plan(stage))
    pipeline = Pipeline(
        apart=_apart(strategies, bool(tables)),
        moves=strategies.sharding.moves,
        metadata=metadata_bytes(workload.samples_per_rank, *batches.columns()),
        lookahead=max(strategy.lookahead for strategy in strategies.all()),
    )
    compute = ComputeCosts(*(profile[f"compute.{name}"] for name in ("flops_per_s", "step_ns", "dense_byte_ns")))
    return PlannedDriver(stage, embedding, sync, pipeline, compute, batches)


def plan_of(axis: str, strategy: Strategy, make: Callable[[], T | None]) -> T:
    """The plan that `make` makes of the strategy on an axis.

    Raises:
        Unsupported: it has none, or one of a class that it is derived from, and does something else itself.
    """
    if strategy.roles():
        raise Unsupported(f"{type(strategy).__name__} needs server processes, which are not simulated")
    said_by = _definer(strategy, "plan")
    done_by = [_definer(strategy, name) for name in _DOES[axis]]
    does_more = any(kind is not said_by and issubclass(kind, said_by) for kind in done_by)
    plan = None if does_more else make()
    if plan is None:
        raise Unsupported(f"{type(strategy).__name__} has no plan of what it issues, so that it cannot be simulated")
    return plan


def _definer(strategy: Strategy, name: str) -> type[Any]:
    """The class that a method comes from."""
    return next(kind for kind in type(strategy).__mro__ if name in vars(kind))


def _apart(strategies: PlannedStrategies, has_tables: bool) -> bool:
    """See `fsbench.train.trainer.Trainer.apart`."""
    told = strategies.sharding.moves or needs_times(strategies.sharding) or strategies.sync.needs_totals
    return not (told or (has_tables and strategies.embedding.needs_totals))
