"""What a strategy's plan is made of, by axis: hooks of the same names as its own, which write what those would do.

A hook is called where the driver calls the strategy's own, once for all ranks, and writes to `Stage.script`. On a real
run the operations that are recorded must equal those written: order, lane, name, kind and bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fsbench.axes import LaneSpec, TableSpec
from fsbench.sim.plan import Operation, Script
from fsbench.sim.topology import Int64


@dataclass(frozen=True)
class WorkCosts:
    """What strategies' own work takes, in nanoseconds: see `fsbench.sim.profile.CONSTANTS`."""

    call_ns: float
    id_ns: float
    row_byte_ns: float
    sample_ns: float
    host_byte_ns: float

    def of(self, *, ids: ArrayLike = 0, row_bytes: ArrayLike = 0) -> NDArray[np.float64]:
        """A piece of work on so many IDs and bytes of rows, of each rank or of all."""
        return self.call_ns + np.multiply(ids, self.id_ns) + np.multiply(row_bytes, self.row_byte_ns)


@dataclass(frozen=True)
class TableRows:
    """One table's part in a global batch.

    `ids`: int64[ranks], lookups of each rank. The others are int64[ranks, ranks], distinct rows that a rank asks of an
    owner: `wanted` all of them, `shared` those that any rank's batch of the step before has too (all where there is
    none), `needed` those that any rank's batch of the step after has too (none where there is none).

    `touched`: distinct rows of the global batch, and `again` those of them that the next one touches too.
    """

    ids: Int64
    wanted: Int64
    shared: Int64
    needed: Int64
    touched: int
    again: int

    @property
    def largest(self) -> int:
        """The most rows that any rank asks of any other."""
        return int(self.wanted.max(initial=0))


@dataclass(frozen=True)
class Batch:
    """A global batch as embedding and sync see it. `tables`: in the order of the workload's."""

    step: int
    tables: Mapping[str, TableRows]


class CollectivesPlan(ABC):
    """How bytes move. Each method writes one or more operations and returns the last of them."""

    @abstractmethod
    def all_to_all(
        self, lane: LaneSpec, rows: Int64, row_bytes: int, *, largest: int, kind: str, after: Sequence[Operation] = ()
    ) -> Operation:
        """`rows`: int64[ranks, ranks], from rank to rank, of `row_bytes` each. `largest`: as `largest_split` there."""

    @abstractmethod
    def all_gather(self, lane: LaneSpec, block: int, *, kind: str, after: Sequence[Operation] = ()) -> Operation:
        """`block`: bytes of each rank."""

    @abstractmethod
    def all_reduce(self, lane: LaneSpec, size: int, *, kind: str, after: Sequence[Operation] = ()) -> Operation:
        """`size`: bytes of the tensor."""


@dataclass(frozen=True)
class Stage:
    """What a plan has to work with. `tables`: by name, in order. `parameters`: numbers of values of the dense
    parameters, in the model's order. `itemsize`: bytes of a value, of rows and of parameters."""

    script: Script
    collectives: CollectivesPlan
    costs: WorkCosts
    tables: Mapping[str, TableSpec]
    parameters: Sequence[int]
    itemsize: int

    @property
    def dense_bytes(self) -> int:
        return sum(self.parameters) * self.itemsize


class EmbeddingPlan(ABC):
    """See `fsbench.axes.EmbeddingExchange`: when each is called and what it does there."""

    def prefetch(self, batch: Batch) -> None: ...

    @abstractmethod
    def lookup(self, batch: Batch) -> None: ...

    @abstractmethod
    def update(self, batch: Batch) -> None: ...

    def flush(self) -> None: ...


class SyncPlan:
    """See `fsbench.axes.DenseSync`. `ready`: the shares of backward, in order, after which `on_gradient_ready` is
    called with their places: 0.25 is after a quarter of it. `synced`: operations so far with whose end a replica has
    taken in what the others learned."""

    ready: Sequence[float] = ()

    def __init__(self) -> None:
        self.synced: list[Operation] = []

    def on_gradient_ready(self, place: int) -> None: ...

    def after_backward(self, step: int) -> None: ...

    def before_step(self) -> None: ...

    def after_step(self) -> None: ...

    def flush(self) -> None: ...
