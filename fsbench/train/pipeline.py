"""From what a rank loads to what it trains: metadata, assignment, shuffle, some batches ahead of the step.

    load (main thread) -> all-gather of metadata -> `Sharding.assign` -> all-to-all of raw samples -> tensors

All but the load runs on lane `shuffle`, beside the steps before. Membership of a global batch never changes.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fsbench.axes import SHUFFLE, BatchMeta, RankContext, Sharding, TargetCounts
from fsbench.errors import FsbenchError
from fsbench.samples import Jagged, Samples
from fsbench.train.lanes import LaneHandle
from fsbench.workload import Batch, Loader


@dataclass(frozen=True)
class ShardStats:
    """What the assignment of one global batch means for each rank: predicted cost f64[ranks], samples, tokens and
    longest history i64[ranks]; `moved`: samples that changed rank; `own_bytes`: of this rank's samples. Where ranks
    load apart, of this rank alone: [1]."""

    cost: NDArray[np.float64]
    samples: NDArray[np.int64]
    tokens: NDArray[np.int64]
    longest: NDArray[np.int64]
    moved: int
    own_bytes: int


@dataclass(frozen=True)
class ShardedBatch:
    """A batch on the rank that trains it."""

    batch: Batch
    counts: TargetCounts
    stats: ShardStats


@dataclass(frozen=True)
class GlobalBatch:
    """Metadata of a global batch, in global order; the same on every rank.

    `lengths`: i64[n, columns]; `index`, `targets`: i64[n]; `seconds`: f64[ranks], each rank's last measured compute.
    """

    meta: BatchMeta
    index: NDArray[np.int64]
    targets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    seconds: NDArray[np.float64]


class BatchPipeline:
    """Keeps `lookahead` batches beyond the current one on their way to their ranks.

    Args:
        first, end: steps [first, end) are loaded; nothing beyond `end`.
        apart: ranks do not tell each other what they load; `ShardStats` and `TargetCounts` are this rank's.
    """

    def __init__(
        self,
        workload: Loader,
        sharding: Sharding,
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
        self._context = context
        self._lane = context.lanes[SHUFFLE.name]
        self._lookahead = lookahead
        self._next_load = first
        self._end = end
        self._coming: deque[LaneHandle] = deque()

    def take(self) -> ShardedBatch:
        """The batch of this step."""
        self._fill(1)
        sharded: ShardedBatch = self._coming.popleft().wait()
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
                local = self._workload.load(step, self._context.rank, self._context.ranks)
            seconds = self._context.timeline.last_compute_ns * 1e-9
            job = partial(self._shard, step, local, seconds)
            self._coming.append(self._lane.submit(job, kind="samples"))

    def _shard(self, step: int, local: Samples, seconds: float) -> ShardedBatch:
        """Runs on the lane's thread."""
        if self._apart:
            return self._own(local)
        everything = self._gather_metadata(step, local, seconds)
        self._sharding.observe(everything.seconds)
        assignment = self._assign(everything.meta)
        if self._sharding.moves:
            self._refuse_disagreement(step, assignment)
        rank = self._context.rank
        mine = np.flatnonzero(assignment == rank)
        samples = self._exchange(local, everything, assignment, mine) if self._sharding.moves else local
        counts = TargetCounts(int(everything.targets.sum()), int(everything.targets[mine].sum()))
        batch = self._workload.build_batch(samples, self._context.dtype)
        return ShardedBatch(batch, counts, _stats(everything.meta, assignment, rank))

    def _own(self, local: Samples) -> ShardedBatch:
        targets = int(local.targets.sum())
        batch = self._workload.build_batch(local, self._context.dtype)
        return ShardedBatch(batch, TargetCounts(targets, targets), _own_stats(local, self._workload.costs(local)))

    def _gather_metadata(self, step: int, local: Samples, seconds: float) -> GlobalBatch:
        """One all-gather of int64[capacity + 1, 3 + columns]: a header row, then a row a sample, then zeros."""
        capacity = self._workload.samples_per_rank
        columns = list(local.columns.values())
        table = np.zeros((capacity + 1, 3 + len(columns)), np.int64)
        table[0, 0] = len(local)
        table[0, 1] = np.float64(seconds).view(np.int64)
        table[1 : len(local) + 1, 0] = local.index
        table[1 : len(local) + 1, 1] = local.targets
        table[1 : len(local) + 1, 2] = self._workload.costs(local).astype(np.float64).view(np.int64)
        for place, column in enumerate(columns, start=3):
            table[1 : len(local) + 1, place] = column.lengths
        gathered = (
            self._context.collectives.all_gather(self._lane, torch.from_numpy(table), kind="metadata").wait().numpy()
        )
        held = gathered[:, 0, 0]
        rows = gathered[:, 1:][np.arange(capacity) < held[:, None]]
        item_bytes = np.array([column.values.itemsize for column in columns], np.int64)
        return GlobalBatch(
            BatchMeta(
                costs=np.ascontiguousarray(rows[:, 2]).view(np.float64),
                tokens=rows[:, 3],
                bytes=rows[:, 3:] @ item_bytes,
                source=np.repeat(np.arange(len(held), dtype=np.int32), held),
                ranks=self._context.ranks,
                speeds=np.ones(self._context.ranks),
                token_limit=None,
                step=step,
            ),
            index=rows[:, 0],
            targets=rows[:, 1],
            lengths=rows[:, 3:],
            seconds=np.ascontiguousarray(gathered[:, 0, 1]).view(np.float64),
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

    def _assign(self, meta: BatchMeta) -> NDArray[np.int64]:
        """The strategy's answer, checked: a wrong one would otherwise hang the exchange or lose samples."""
        assignment = np.asarray(self._sharding.assign(meta))
        name = type(self._sharding).__name__
        if not np.issubdtype(assignment.dtype, np.integer):
            raise FsbenchError(
                f"sharding {name}, step {meta.step}: assign returned {assignment.dtype}; expected int64 ranks"
            )
        if assignment.shape != meta.source.shape:
            raise FsbenchError(
                f"sharding {name}, step {meta.step}: assign returned shape {assignment.shape} "
                f"for {len(meta.source)} samples"
            )
        if len(assignment) and not (assignment.min() >= 0 and assignment.max() < meta.ranks):
            raise FsbenchError(
                f"sharding {name}, step {meta.step}: assign returned ranks {assignment.min()} to "
                f"{assignment.max()}; valid: 0 to {meta.ranks - 1}"
            )
        if not self._sharding.moves and (assignment != meta.source).any():
            raise FsbenchError(f"sharding {name}, step {meta.step}: moves is False, yet samples change rank")
        return assignment.astype(np.int64, copy=False)

    def _exchange(
        self, local: Samples, everything: GlobalBatch, assignment: NDArray[np.int64], mine: NDArray[np.int64]
    ) -> Samples:
        """Moves the columns' values; everything else about a sample is known from its metadata."""
        rank, ranks, source = self._context.rank, self._context.ranks, everything.meta.source
        order = np.argsort(assignment[source == rank], kind="stable")
        pair = source.astype(np.int64) * ranks + assignment
        columns = {}
        for place, (name, column) in enumerate(local.columns.items()):
            lengths = everything.lengths[:, place]
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
        return Samples(everything.index[mine], everything.targets[mine], columns)


def _stats(meta: BatchMeta, assignment: NDArray[np.int64], rank: int) -> ShardStats:
    longest = np.zeros(meta.ranks, np.int64)
    np.maximum.at(longest, assignment, meta.tokens)
    return ShardStats(
        cost=np.bincount(assignment, weights=meta.costs, minlength=meta.ranks).astype(np.float64),
        samples=np.bincount(assignment, minlength=meta.ranks),
        tokens=np.bincount(assignment, weights=meta.tokens, minlength=meta.ranks).astype(np.int64),
        longest=longest,
        moved=int((assignment != meta.source).sum()),
        own_bytes=int(meta.bytes[assignment == rank].sum()),
    )


def _own_stats(samples: Samples, costs: NDArray[np.float64]) -> ShardStats:
    tokens = samples.tokens
    return ShardStats(
        cost=costs.sum(keepdims=True),
        samples=np.array([len(samples)]),
        tokens=tokens.sum(keepdims=True),
        longest=np.array([tokens.max(initial=0)]),
        moved=0,
        own_bytes=int(samples.bytes.sum()),
    )
