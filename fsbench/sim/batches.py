"""Global batches of a cell, as all ranks load, assign and train them: the workload's own lengths, really assigned.

Which rows they touch is counted for the first of them, on all ranks, as long as that does not take too long; of the
others it is estimated from those (`fsbench.sim.row_model`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fsbench.assignment import checked_assign
from fsbench.axes import BatchMeta, Sharding
from fsbench.costs.machine import CPU
from fsbench.costs.weigher import Weigher, needs_times
from fsbench.errors import Unsupported
from fsbench.samples import Samples
from fsbench.sim.contract import Batch, TableRows
from fsbench.sim.row_model import RowModel
from fsbench.sim.rows import RowCounter
from fsbench.sim.topology import Int64
from fsbench.workload import Workload

RowIds = Callable[[Samples], Mapping[str, Int64]]
"""By table, the IDs of the rows that a rank looks up for the samples that it trains, int64[m]."""
MOST_IDS = 4_000_000
"""So many are counted, and those of `FEWEST_STEPS` in any case."""
FEWEST_STEPS = 2


@dataclass(frozen=True)
class Dealt:
    """A global batch. Arrays [ranks]: `loaded` samples; of what each trains `samples`, `tokens`, `longest` and `flops`;
    `costs`, what the balancer believed. `moved`: samples that change rank.

    `columns`: of what moves, values from rank to rank int64[ranks, ranks] and bytes of each.
    """

    step: int
    loaded: Int64
    samples: Int64
    tokens: Int64
    longest: Int64
    flops: np.ndarray
    costs: np.ndarray
    moved: int
    columns: Sequence[tuple[Int64, int]]


class Batches:
    """Of steps 0 to `steps - 1`. Dealt and counted once, however often they are gone through.

    Raises:
        Unsupported: the sharding follows measured times, which nobody has measured.
    """

    def __init__(self, workload: Workload, sharding: Sharding, ranks: int, steps: int, row_ids: RowIds) -> None:
        if needs_times(sharding) or not sharding.repeatable:
            raise Unsupported(f"sharding {type(sharding).__name__} follows measured times; nothing is measured here")
        self._workload = workload
        self._loader = sharding.reads(workload)
        self._sharding = sharding
        self._weigher = Weigher(sharding, self._loader, ranks, {"device": CPU})
        self._tables = {table.name: table for table in workload.tables()}
        self._ranks, self._steps = ranks, steps
        self._row_ids = row_ids
        self._dealt: list[Dealt] = []

    @property
    def weighing(self) -> dict[str, Any]:
        """Where costs come from, as evidence."""
        return self._weigher.evidence()

    def columns(self) -> tuple[int, int]:
        """How many columns samples have, and features a rank-batch: what metadata are wide by."""
        first = self._loader.load(0, 0, self._ranks)
        return len(first.columns), len(self._weigher.costs.features(first))

    def __iter__(self) -> Iterator[tuple[Dealt, Batch]]:
        for step in range(self._steps):
            dealt = self._deal(step)
            yield dealt, Batch(step, {name: self._rows(name, dealt) for name in self._tables})

    def _rows(self, table: str, dealt: Dealt) -> TableRows:
        counted = self._counted[table]
        if dealt.step < len(counted):
            return counted[dealt.step]
        return self._models[table].rows(dealt.samples, dealt.tokens, is_last=dealt.step == self._steps - 1)

    def _deal(self, step: int) -> Dealt:
        if step == len(self._dealt):
            samples, loaded = self._outline(step)
            self._dealt.append(self._dealt_as(step, samples, *self._assign(step, samples, loaded)))
        return self._dealt[step]

    def _outline(self, step: int) -> tuple[Samples, Int64]:
        """A global batch, whose values need not be real, and how many samples of it each rank loads."""
        if self._loader is self._workload:
            outline = self._workload.outline(step, self._ranks)
            return outline, np.full(self._ranks, len(outline) // self._ranks)
        return self._load(step)

    def _load(self, step: int) -> tuple[Samples, Int64]:
        loaded = [self._loader.load(step, rank, self._ranks) for rank in range(self._ranks)]
        return Samples.concatenate(loaded), np.array([len(samples) for samples in loaded])

    def _assign(self, step: int, samples: Samples, loaded: Int64) -> tuple[BatchMeta, Int64]:
        meta = BatchMeta(
            costs=self._weigher.costs.of(samples),
            tokens=samples.tokens,
            bytes=samples.bytes,
            source=np.repeat(np.arange(self._ranks, dtype=np.int32), loaded),
            ranks=self._ranks,
            speeds=self._weigher.speeds,
            token_limit=self._weigher.token_limit,
            step=step,
        )
        return meta, checked_assign(self._sharding, meta)

    def _dealt_as(self, step: int, samples: Samples, meta: BatchMeta, assignment: Int64) -> Dealt:
        longest = np.zeros(self._ranks, np.int64)
        np.maximum.at(longest, assignment, meta.tokens)
        return Dealt(
            step=step,
            loaded=np.bincount(meta.source, minlength=self._ranks),
            samples=np.bincount(assignment, minlength=self._ranks),
            tokens=self._sum(assignment, meta.tokens).astype(np.int64),
            longest=longest,
            flops=self._sum(assignment, self._loader.costs(samples)),
            costs=self._sum(assignment, meta.costs) + self._weigher.costs.fixed,
            moved=int((assignment != meta.source).sum()),
            columns=self._columns(samples, meta, assignment) if self._sharding.moves else (),
        )

    def _columns(self, samples: Samples, meta: BatchMeta, assignment: Int64) -> list[tuple[Int64, int]]:
        pair = meta.source.astype(np.int64) * self._ranks + assignment
        square = self._ranks, self._ranks
        return [
            (
                np.bincount(pair, column.lengths, self._ranks**2).astype(np.int64).reshape(square),
                column.values.itemsize,
            )
            for column in samples.columns.values()
        ]

    def _sum(self, assignment: Int64, values: np.ndarray) -> np.ndarray:
        return np.bincount(assignment, weights=values, minlength=self._ranks).astype(np.float64)

    @cached_property
    def _counted(self) -> dict[str, list[TableRows]]:
        """By table, of the first batches: all, or as many as `MOST_IDS` allows."""
        counters = {name: RowCounter(table.rows, self._ranks) for name, table in self._tables.items()}
        counted: dict[str, list[TableRows]] = {name: [] for name in counters}
        met = 0
        for step in range(self._steps + 1):
            if met > MOST_IDS and step > FEWEST_STEPS:
                break
            ids = self._ids(step) if counters and step < self._steps else {}
            met += sum(len(of_rank) for of_table in ids.values() for of_rank in of_table)
            for name, counter in counters.items():
                if (rows := counter.add(ids.get(name))) is not None:
                    counted[name].append(rows)
        return counted

    def _ids(self, step: int) -> dict[str, list[Int64]]:
        """Of a global batch, by table and rank."""
        samples, loaded = self._load(step)
        _, assignment = self._assign(step, samples, loaded)
        by_rank = [self._row_ids(samples.take(np.flatnonzero(assignment == rank))) for rank in range(self._ranks)]
        return {name: [ids[name] for ids in by_rank] for name in self._tables}

    @cached_property
    def _models(self) -> dict[str, RowModel]:
        """By table, where not all batches were counted."""
        models = {}
        for name, counted in self._counted.items():
            dealt = [self._deal(step) for step in range(len(counted))]
            models[name] = RowModel.fit(counted, [each.samples for each in dealt], [each.tokens for each in dealt])
        return models

    def evidence(self) -> dict[str, Any]:
        """How the rows are known, by table: steps that were counted, and where others were estimated, from what."""
        return {
            name: {"counted_steps": len(counted)}
            | (self._models[name].evidence() if len(counted) < self._steps else {})
            for name, counted in self._counted.items()
        }
