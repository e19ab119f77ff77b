"""The step driver. It knows no strategy by name: it asks each one at fixed points."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import torch

from fsbench.axes import Sharding
from fsbench.costs.machine import this_machine
from fsbench.costs.weigher import Weigher
from fsbench.train.collisions import KEPT_STEPS
from fsbench.train.pipeline import BatchPipeline, ShardedBatch
from fsbench.train.shard_stats import ShardStats
from fsbench.train.trainer import Trainer
from fsbench.workload import Batch, Loader


class Driver:
    """Trains steps [first, end) of a trainer.

    `losses`: this rank's loss sum of each step, a scalar tensor on the device; `targets`: its target count of each
    step; `stats`: what the sharding did to each global batch (this rank's where ranks load apart); `ids`: this rank's
    by table, of the last steps; `weigher`: what gave samples their costs. `workload` and `sharding` stand in for the
    trainer's own (the noise floor does that).
    """

    def __init__(
        self,
        trainer: Trainer,
        first: int,
        end: int,
        *,
        workload: Loader | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        self.trainer = trainer
        self.step = first
        self._first = first
        self.end = end
        self.losses: list[torch.Tensor] = []
        self.targets: list[int] = []
        self.stats: list[ShardStats] = []
        self.ids: deque[Mapping[str, torch.Tensor]] = deque(maxlen=KEPT_STEPS)
        loader, balancer = workload or trainer.workload, sharding or trainer.strategies.sharding
        here = this_machine(trainer.context.device, torch.get_num_threads())
        self.weigher = Weigher(balancer, loader, trainer.context.ranks, here)
        self._pipeline = BatchPipeline(
            loader,
            balancer,
            self.weigher,
            trainer.workload.tables(),
            trainer.context,
            trainer.strategies.lookahead,
            first,
            end,
            apart=trainer.apart,
        )

    def run(self, before_step: Callable[[int], None] = lambda step: None) -> None:
        """Trains all steps, then ends what is pending or runs in the background. `before_step`: outside the windows."""
        while self.step < self.end:
            before_step(self.step)
            self.train_step()
        self.trainer.strategies.embedding.flush()
        self.trainer.strategies.sync.flush()

    def train_step(self) -> None:
        """One window. Whatever a strategy does in its own methods is labelled `strategy`, but for its waits."""
        trainer, step = self.trainer, self.step
        timeline, embedding, sync = trainer.context.timeline, trainer.strategies.embedding, trainer.strategies.sync
        timeline.begin_step()
        sharded = self._pipeline.take()
        if embedding.lookahead > 1:
            # Ahead of the refill: IDs of the next batch are needed sooner than the samples of the one after it.
            with timeline.strategy:
                self._announce(step, sharded)
        self._pipeline.refill()
        with timeline.strategy:
            batch = to_device(sharded.batch, trainer.context.device)
            rows = embedding.lookup(step, batch.ids)
        with timeline.compute:
            loss = trainer.model(batch, rows)
            loss.backward()
        with timeline.strategy:
            sync.after_backward(step, sharded.counts)
            embedding.update(step, sharded.counts)
            sync.before_step()
        with timeline.compute:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad(set_to_none=False)
        with timeline.strategy:
            sync.after_step()
        if self.step == self.end - 1 and trainer.context.device.type == "cuda":
            torch.cuda.synchronize()  # once, so that the last window holds all that was issued
        self.losses.append(loss.detach())
        self.targets.append(sharded.counts.local)
        self.stats.append(sharded.stats)
        self.ids.append(sharded.batch.ids)
        timeline.end_step()
        self.step += 1

    def _announce(self, step: int, current: ShardedBatch) -> None:
        """Tells the embedding strategy the IDs of the next batch; at first those of this one too."""
        embedding = self.trainer.strategies.embedding
        if step == self._first:
            embedding.prefetch(step, current.batch.ids)
        if coming := self._pipeline.peek():
            embedding.prefetch(step + 1, coming.batch.ids)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on the device; its samples stay on the host."""
    if device.type == "cpu":
        return batch
    return Batch(
        batch.samples,
        {name: ids.to(device, non_blocking=True) for name, ids in batch.ids.items()},
        {name: feature.to(device, non_blocking=True) for name, feature in batch.features.items()},
    )
