"""From what a rank loads to what it trains: metadata, assignment, shuffle, some batches ahead of the step.

    load (main thread) -> all-gather of metadata -> `Sharding.assign` -> all-to-all of raw samples -> tensors

All but the load runs on lane `shuffle`, beside the steps before. Membership of a global batch never changes. What ranks
trained and how long it took comes with the metadata, and is told to the sharding and to what weighs samples and ranks.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fsbench.assignment import checked_assign
from fsbench.axes import SHUFFLE, BatchMeta, RankContext, Sharding, TableSpec, TargetCounts
from fsbench.costs.weigher import Weigher
from fsbench.errors import FsbenchError
from fsbench.samples import Jagged, Samples
from fsbench.train.lanes import LaneHandle
from fsbench.train.metadata import GlobalMetadata, Trained, pack, unpack
from fsbench.train.shard_stats import Own, ShardStats
from fsbench.train.stray_ids import find_stray, refuse_strays
from fsbench.workload import Batch, Loader


@dataclass(frozen=True)
class ShardedBatch:
    """A batch on the rank that trains it."""

    batch: Batch
    counts: TargetCounts
    stats: ShardStats


class BatchPipeline:
    """Keeps `lookahead` batches beyond the current one on their way to their ranks.

    Args:
        weigher: gives the costs and speeds that the sharding asks for.
        tables: whose rows the batches' IDs must be.
        first, end: steps [first, end) are loaded; nothing beyond `end`.
        apart: ranks do not tell each other what they load; `ShardStats` and `TargetCounts` are this rank's.
    """

    def __init__(
        self,
        workload: Loader,
        sharding: Sharding,
        weigher: Weigher,
        tables: Sequence[TableSpec],
        context: RankContext,
        lookahead: int,
        first: int,
        end: int,
        *,
        apart: bool = False,
    ) -> None:
        self._apart = apart
        self._workload = sharding.reads(workload)
        self._sharding = sharding
        self._weigher = weigher
        self._tables = tables
        self._context = context
        self._lane = context.lanes[SHUFFLE.name]
        self._lookahead = lookahead
        self._next_load = first
        self._end = end
        self._coming: deque[LaneHandle] = deque()
        self._taken: ShardedBatch | None = None
        self._trained: ShardedBatch | None = None

    def take(self) -> ShardedBatch:
        """The batch of this step. The one taken before has been trained by now."""
        self._trained = self._taken
        self._fill(1)
        self._taken = sharded = self._coming.popleft().wait()
        return sharded

    def peek(self) -> ShardedBatch | None:
        """The batch of the next step, or None after the last."""
        self._fill(1)
        return self._coming[0].wait() if self._coming else None

    def refill(self) -> None:
        """Starts loading what is missing, up to the batch that is `lookahead` steps away."""
        self._fill(self._lookahead)

    def _fill(self, depth: int) -> None:
        while len(self._coming) < depth and self._next_load < self._end:
            step = self._next_load
            self._next_load += 1
            with self._context.timeline.input:
                local = self._workload.load(step, self._context.reader, self._context.readers)
            seconds = self._context.timeline.last_compute_ns * 1e-9
            job = partial(self._shard, step, local, self._trained, seconds)
            self._coming.append(self._lane.submit(job, kind="samples"))

    def _shard(self, step: int, local: Samples, trained: ShardedBatch | None, seconds: float) -> ShardedBatch:
        """Runs on the lane's thread. `trained`: the batch that took `seconds` of compute, if there was one."""
        loaded = self._build(local)
        if self._apart:
            stray = find_stray(local, loaded, self._tables, self._build)
            refuse_strays(step, [(self._context.rank, stray.tolist())], self._tables)
            return self._own(local, loaded)
        told = self._gather_metadata(local, loaded, trained, seconds)
        refuse_strays(step, enumerate(told.strays.tolist()), self._tables)
        if trained and self._weigher.timed:
            self._sharding.observe(told.seconds)
            self._weigher.learn(trained.stats.cost, told.features, told.seconds)
        meta = self._meta(step, local, told)
        assignment = checked_assign(self._sharding, meta)
        if self._sharding.moves:
            self._refuse_disagreement(step, assignment)
        mine = np.flatnonzero(assignment == self._context.rank)
        samples = self._exchange(local, told, assignment, mine) if self._sharding.moves else local
        counts = TargetCounts(int(told.targets.sum()), int(told.targets[mine].sum()))
        batch = loaded if samples is local else self._build(samples)
        own = Own(samples, self._workload.costs(samples), self._weigher.costs.fixed)
        return ShardedBatch(batch, counts, ShardStats.of_all(meta, assignment, own))

    def _own(self, local: Samples, batch: Batch) -> ShardedBatch:
        targets = int(local.targets.sum())
        costs = self._weigher.costs
        own = Own(local, self._workload.costs(local), costs.fixed)
        return ShardedBatch(batch, TargetCounts(targets, targets), ShardStats.of_one(costs.of(local), own))

    def _build(self, samples: Samples) -> Batch:
        """With IDs of every table, in the order of the tables: exchanges are collective, and whether a batch says of a
        table that it needs no row of it, or nothing, must not decide which of them a rank takes part in.

        Raises:
            FsbenchError: the batch has IDs of a table that the workload has not.
        """
        batch = self._workload.build_batch(samples, self._context.dtype)
        if unknown := batch.ids.keys() - {table.name for table in self._tables}:
            known = ", ".join(table.name for table in self._tables) or "none"
            raise FsbenchError(f"a batch has IDs of table {min(unknown)}, which is not among the workload's: {known}")
        none = torch.empty(0, dtype=torch.int64)
        return replace(batch, ids={table.name: batch.ids.get(table.name, none) for table in self._tables})

    def _gather_metadata(
        self, local: Samples, loaded: Batch, trained: ShardedBatch | None, seconds: float
    ) -> GlobalMetadata:
        costs = self._weigher.costs
        nothing = Trained(0.0, np.zeros_like(costs.features(local)))
        last = Trained(seconds, costs.features(trained.batch.samples)) if trained else nothing
        stray = find_stray(local, loaded, self._tables, self._build)
        table = torch.from_numpy(pack(local, costs.of(local), stray, last, self._workload.samples_per_rank))
        gathered = self._context.collectives.all_gather(self._lane, table, kind="metadata").wait().numpy()
        return unpack(gathered, len(local.columns), len(last.features))

    def _meta(self, step: int, local: Samples, told: GlobalMetadata) -> BatchMeta:
        item_bytes = np.array([column.values.itemsize for column in local.columns.values()], np.int64)
        return BatchMeta(
            costs=told.costs,
            tokens=told.lengths[:, 0],
            bytes=told.lengths @ item_bytes,
            source=told.source,
            ranks=self._context.ranks,
            speeds=self._weigher.speeds,
            token_limit=self._weigher.token_limit,
            step=step,
        )

    def _refuse_disagreement(self, step: int, assignment: NDArray[np.int64]) -> None:
        """Before a sample moves: ranks that each follow a plan of their own would train on rubbish, or hang."""
        digest = hashlib.blake2b(assignment.tobytes(), digest_size=8).digest()
        own = torch.from_numpy(np.frombuffer(digest, np.int64).copy())
        everyone = self._context.collectives.all_gather(self._lane, own, kind="metadata").wait().flatten().tolist()
        strangers = [rank for rank, other in enumerate(everyone) if other != everyone[0]]
        if strangers:
            raise FsbenchError(
                f"sharding {type(self._sharding).__name__}, step {step}: assign gave ranks {strangers} another answer "
                "than rank 0; it must depend on the batch alone"
            )

    def _exchange(
        self, local: Samples, told: GlobalMetadata, assignment: NDArray[np.int64], mine: NDArray[np.int64]
    ) -> Samples:
        """Moves the columns' values; everything else about a sample is known from its metadata."""
        rank, ranks, source = self._context.rank, self._context.ranks, told.source
        order = np.argsort(assignment[source == rank], kind="stable")
        pair = source.astype(np.int64) * ranks + assignment
        columns = {}
        for place, (name, column) in enumerate(local.columns.items()):
            lengths = told.lengths[:, place]
            splits = np.bincount(pair, weights=lengths, minlength=ranks * ranks).astype(np.int64)
            splits = splits.reshape(ranks, ranks)
            received = self._context.collectives.all_to_all(
                self._lane,
                torch.from_numpy(column.take(order).values),
                splits[rank].tolist(),
                splits[:, rank].tolist(),
                largest_split=int(splits.max(initial=0)),
                kind="samples",
            ).wait()
            columns[name] = Jagged(received.numpy(), lengths[mine])
        return Samples(told.index[mine], told.targets[mine], columns)
