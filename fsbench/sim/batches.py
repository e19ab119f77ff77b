"""Global batches of a cell, as all ranks load, assign and train them: the workload's own samples, really assigned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fsbench.assignment import checked_assign
from fsbench.axes import BatchMeta, Sharding, TableSpec
from fsbench.costs.machine import CPU
from fsbench.costs.weigher import Weigher, needs_times
from fsbench.errors import Unsupported
from fsbench.samples import Samples
from fsbench.sim.contract import Batch
from fsbench.sim.rows import RowCounter
from fsbench.sim.topology import Int64
from fsbench.workload import Loader

RowIds = Callable[[Samples], Mapping[str, Int64]]
"""By table, the IDs of the rows that a rank looks up for the samples that it trains, int64[m]."""


@dataclass(frozen=True)
class PlannedBatch:
    """A global batch. Arrays [ranks]: `loaded` samples; of what each trains `samples`, `tokens`, `longest` and `flops`;
    `costs`, what the balancer believed.

    `columns`: of what moves, values from rank to rank int64[ranks, ranks] and bytes of each.
    """

    rows: Batch
    loaded: Int64
    samples: Int64
    tokens: Int64
    longest: Int64
    flops: np.ndarray
    costs: np.ndarray
    moved: int
    columns: Sequence[tuple[Int64, int]]


class Batches:
    """Of steps 0 to `steps - 1`.

    Raises:
        Unsupported: the sharding follows measured times, which nobody has measured.
    """

    def __init__(
        self,
        workload: Loader,
        sharding: Sharding,
        tables: Sequence[TableSpec],
        ranks: int,
        steps: int,
        row_ids: RowIds,
    ) -> None:
        if needs_times(sharding) or not sharding.repeatable:
            raise Unsupported(f"sharding {type(sharding).__name__} follows measured times; nothing is measured here")
        self._loader = sharding.reads(workload)
        self._sharding = sharding
        self._weigher = Weigher(sharding, self._loader, ranks, {"device": CPU})
        self._tables = {table.name: table for table in tables}
        self._ranks, self._steps = ranks, steps
        self._row_ids = row_ids

    @property
    def weighing(self) -> dict:
        """Where costs come from, as evidence."""
        return self._weigher.evidence()

    def columns(self) -> tuple[int, int]:
        """How many columns samples have, and features a rank-batch: what metadata are wide by."""
        first = self._loader.load(0, 0, self._ranks)
        return len(first.columns), len(self._weigher.costs.features(first))

    def __iter__(self) -> Iterator[PlannedBatch]:
        counters = {name: RowCounter(table.rows, self._ranks) for name, table in self._tables.items()}
        before: PlannedBatch | None = None
        for step in range(self._steps + 1):
            batch, ids = self._batch(step) if step < self._steps else (None, dict.fromkeys(counters))
            rows = {name: counter.add(ids[name]) for name, counter in counters.items()}
            if before is not None:
                known = {name: counted for name, counted in rows.items() if counted is not None}
                yield _with_rows(before, Batch(step - 1, known))
            before = batch

    def _batch(self, step: int) -> tuple[PlannedBatch, dict[str, list[Int64] | None]]:
        """Its rows are not counted yet: they depend on the batch after it. Beside it, its IDs by table and rank."""
        loaded = [self._loader.load(step, rank, self._ranks) for rank in range(self._ranks)]
        samples = Samples.concatenate(loaded)
        meta = self._meta(step, samples, np.array([len(of_rank) for of_rank in loaded]))
        assignment = checked_assign(self._sharding, meta)
        flops = self._loader.costs(samples)
        longest = np.zeros(self._ranks, np.int64)
        np.maximum.at(longest, assignment, meta.tokens)
        batch = PlannedBatch(
            rows=Batch(step, {}),
            loaded=np.bincount(meta.source, minlength=self._ranks),
            samples=np.bincount(assignment, minlength=self._ranks),
            tokens=self._sum(assignment, meta.tokens).astype(np.int64),
            longest=longest,
            flops=self._sum(assignment, flops),
            costs=self._sum(assignment, meta.costs) + self._weigher.costs.fixed,
            moved=int((assignment != meta.source).sum()),
            columns=self._columns(samples, meta, assignment) if self._sharding.moves else (),
        )
        return batch, self._ids(samples, assignment)

    def _ids(self, samples: Samples, assignment: Int64) -> dict[str, list[Int64] | None]:
        if not self._tables:
            return {}
        by_rank = [self._row_ids(samples.take(np.flatnonzero(assignment == rank))) for rank in range(self._ranks)]
        return {name: [of_rank[name] for of_rank in by_rank] for name in self._tables}

    def _meta(self, step: int, samples: Samples, loaded: Int64) -> BatchMeta:
        return BatchMeta(
            costs=self._weigher.costs.of(samples),
            tokens=samples.tokens,
            bytes=samples.bytes,
            source=np.repeat(np.arange(self._ranks, dtype=np.int32), loaded),
            ranks=self._ranks,
            speeds=self._weigher.speeds,
            token_limit=self._weigher.token_limit,
            step=step,
        )

    def _columns(self, samples: Samples, meta: BatchMeta, assignment: Int64) -> list[tuple[Int64, int]]:
        pair = meta.source.astype(np.int64) * self._ranks + assignment
        return [
            (
                np.bincount(pair, weights=column.lengths, minlength=self._ranks**2)
                .astype(np.int64)
                .reshape(self._ranks, self._ranks),
                column.values.itemsize,
            )
            for column in samples.columns.values()
        ]

    def _sum(self, assignment: Int64, values: np.ndarray) -> np.ndarray:
        return np.bincount(assignment, weights=values, minlength=self._ranks).astype(np.float64)


def _with_rows(batch: PlannedBatch, rows: Batch) -> PlannedBatch:
    return PlannedBatch(**{**vars(batch), "rows": rows})
