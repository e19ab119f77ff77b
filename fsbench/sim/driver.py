"""The step of `fsbench.train.driver` and its input pipeline, written instead of done, for all ranks at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fsbench.axes import SHUFFLE
from fsbench.sim.batches import Batches, Dealt
from fsbench.sim.contract import Batch, EmbeddingPlan, Stage, SyncPlan
from fsbench.sim.plan import Loop, Operation
from fsbench.sim.topology import Int64

_DIGEST_BYTES = 8
BACKWARD = 2 / 3
"""Of the time of forward and backward: see `fsbench_workloads.flops`."""


@dataclass(frozen=True)
class ComputeCosts:
    """Of a rank-batch on the machine: `flops_per_s` of forward and backward, `step_ns` whatever is in it, and
    `dense_byte_ns` of the dense optimizer."""

    flops_per_s: float
    step_ns: float
    dense_byte_ns: float


@dataclass(frozen=True)
class Pipeline:
    """What the input pipeline does with a batch. `apart`: ranks do not tell each other what they load. `moves`: samples
    may change rank. `metadata`: bytes that each rank tells. `lookahead`: batches on their way beyond the current one.
    """

    apart: bool
    moves: bool
    metadata: int
    lookahead: int


@dataclass(frozen=True)
class _Coming:
    """A batch on its way to its ranks, and what is over when it is there."""

    dealt: Dealt
    batch: Batch
    arrived: Operation


@dataclass(frozen=True)
class Written:
    """A step's batch, without what is between any two ranks. Of all tables: `asked`, rows of each owner int64[ranks];
    `touched` and `again`, see `TableRows`."""

    dealt: Dealt
    asked: Int64
    touched: int
    again: int

    @classmethod
    def of(cls, dealt: Dealt, batch: Batch) -> Written:
        tables = batch.tables.values()
        asked = np.sum([rows.wanted.sum(axis=0) for rows in tables], axis=0)
        return cls(dealt, asked, sum(rows.touched for rows in tables), sum(rows.again for rows in tables))


class PlannedDriver:
    """Writes all steps of a cell."""

    def __init__(
        self,
        stage: Stage,
        embedding: EmbeddingPlan,
        sync: SyncPlan,
        pipeline: Pipeline,
        compute: ComputeCosts,
        batches: Batches,
    ) -> None:
        self._stage, self._script = stage, stage.script
        self._embedding, self._sync = embedding, sync
        self._pipeline, self._compute = pipeline, compute
        self._batches = iter(batches)
        self.synced = sync.synced
        """See `SyncPlan`."""
        self._coming: deque[_Coming] = deque()
        self.written: list[Written] = []
        """By step."""

    def steps(self) -> Iterator[Sequence[Operation | Loop]]:
        """What is written in each step, then in what follows the last one."""
        while self._fill(1):
            self._step()
            yield self._script.end_step()
        self._embedding.flush()
        self._sync.flush()
        yield self._script.take()

    def _step(self) -> None:
        current = self._coming.popleft()
        self._script.wait(current.arrived)
        if self._pipeline.lookahead > 1:
            self._announce(current.batch)
        self._fill(self._pipeline.lookahead)
        self._embedding.lookup(current.batch)
        self._train(current.dealt)
        self._sync.after_backward(current.batch.step)
        self._embedding.update(current.batch)
        self._sync.before_step()
        self._script.compute(self._stage.dense_bytes * self._compute.dense_byte_ns)
        self._sync.after_step()
        self.written.append(Written.of(current.dealt, current.batch))

    def _announce(self, batch: Batch) -> None:
        """IDs of the next batch; at first those of this one too."""
        if not self.written:
            self._embedding.prefetch(batch)
        if self._fill(1):
            self._script.wait(self._coming[0].arrived)
            self._embedding.prefetch(self._coming[0].batch)

    def _train(self, dealt: Dealt) -> None:
        """Forward, and backward with what is sent meanwhile."""
        ns = self._compute.step_ns + dealt.flops / self._compute.flops_per_s * 1e9
        self._script.compute(ns * (1 - BACKWARD))
        done = 0.0
        for place, share in enumerate(self._sync.ready):
            self._script.compute(ns * BACKWARD * (share - done))
            self._sync.on_gradient_ready(place)
            done = share
        if done < 1:
            self._script.compute(ns * BACKWARD * (1 - done))

    def _fill(self, depth: int) -> bool:
        """Loads what is missing of the coming batches; whether there is any."""
        while len(self._coming) < depth and (loaded := next(self._batches, None)) is not None:
            dealt, batch = loaded
            self._script.input(dealt.loaded * self._stage.costs.sample_ns)
            self._coming.append(_Coming(dealt, batch, self._shard(dealt, batch)))
        return bool(self._coming)

    def _shard(self, dealt: Dealt, batch: Batch) -> Operation:
        costs, collectives = self._stage.costs, self._stage.collectives
        lookups = np.sum([rows.ids for rows in batch.tables.values()], axis=0)
        built = self._script.work(SHUFFLE, costs.of(ids=lookups))
        if self._pipeline.apart:
            return built
        collectives.all_gather(SHUFFLE, self._pipeline.metadata, kind="metadata")
        assigned = self._script.work(SHUFFLE, dealt.loaded.sum() * costs.sample_ns)
        if not self._pipeline.moves:
            return assigned
        collectives.all_gather(SHUFFLE, _DIGEST_BYTES, kind="metadata")
        for values, itemsize in dealt.columns:
            largest = int(values.max(initial=0))
            collectives.all_to_all(SHUFFLE, values, itemsize, largest=largest, kind="samples")
        return self._script.work(SHUFFLE, costs.of(ids=lookups))
