"""A scripted training by torchrec alone: `DistributedModelParallel` and its `TrainPipelineSparseDist`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel, collective_utils
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.streamable import Pipelineable

from tests.scripted import DIM, ROWS, Scripted

TABLES = ("t0", "t1")


@dataclass
class PipelineBatch(Pipelineable):
    ids: KeyedJaggedTensor
    labels: torch.Tensor
    scale: float

    def to(self, device: Any, non_blocking: bool = False) -> PipelineBatch:
        return self

    def record_stream(self, stream: Any) -> None:
        pass

    def pin_memory(self) -> PipelineBatch:
        return self


class Model(torch.nn.Module):
    """The model of `Scripted`, with the tables inside."""

    def __init__(self) -> None:
        super().__init__()
        configs = [
            EmbeddingConfig(name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[name]) for name in TABLES
        ]
        self.tables = EmbeddingCollection(tables=configs)
        self.image = torch.nn.Linear(DIM, 1)

    def forward(self, batch: PipelineBatch) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.tables(batch.ids)
        loss = torch.stack(
            [(self.image(rows[name].values())[:, 0] - batch.labels).square().sum() for name in TABLES]
        ).sum()
        return loss * batch.scale, loss.detach()


def train(rank: int, ranks: int, workload: Scripted, tables: dict, dense: dict, steps: int) -> list[float]:
    """Sums of the losses of each step over all ranks, from the given state."""
    group = dist.new_group(backend="gloo")
    # Told once a process, which in a pool of ranks is not at the same time on each.
    collective_utils._INITIALIZED = False
    model = Model()
    model.tables.load_state_dict({f"embeddings.{name}.weight": tables[name]["weight"] for name in TABLES})
    model.load_state_dict(dense, strict=False)
    optimizer, settings = (torch.optim.SGD, {}) if "sum" not in tables["t0"] else (RowWiseAdagrad, {"eps": 1e-8})
    apply_optimizer_in_backward(optimizer, model.tables.parameters(), {"lr": workload.tables()[0].lr, **settings})
    sharder = EmbeddingCollectionSharder()
    plan = construct_module_sharding_plan(
        model.tables, dict.fromkeys(TABLES, row_wise(compute_kernel="fused")), sharder, ranks, ranks, "cpu"
    )
    environment = ShardingEnv(ranks, rank)
    environment.process_group = group
    cpu = torch.device("cpu")
    sharded = DistributedModelParallel(model, environment, cpu, ShardingPlan({"tables": plan}), [sharder])
    dense_optimizer = workload.dense_optimizer(
        [p for name, p in sharded.named_parameters() if name.startswith("image")]
    )
    pipeline = TrainPipelineSparseDist(sharded, dense_optimizer, cpu)
    batches = iter([_batch(rank, ranks, workload, step) for step in range(steps)])
    losses = torch.stack([pipeline.progress(batches) for _ in range(steps)]).double()
    dist.all_reduce(losses, group=group)
    dist.destroy_process_group(group)
    return losses.tolist()


def _batch(rank: int, ranks: int, workload: Scripted, step: int) -> PipelineBatch:
    """DDP divides the dense gradients by the number of ranks, and torchrec those of rows: `scale` makes up for both."""
    samples = [workload.load(step, other, ranks) for other in range(ranks)]
    total = sum(int(one.targets.sum()) for one in samples)
    batch = workload.build_batch(samples[rank], torch.float32)
    lengths = torch.tensor([len(batch.ids[name]) for name in TABLES])
    ids = KeyedJaggedTensor(keys=list(TABLES), values=torch.cat([batch.ids[name] for name in TABLES]), lengths=lengths)
    return PipelineBatch(ids, batch.features["y"], ranks / max(1, total))
