"""The compute of a rank-batch, alone on this machine: forward, backward and the dense optimizer, as a step has them."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import torch

from fsbench.samples import Samples
from fsbench.train.driver import to_device
from fsbench.workload import Batch, Workload


@dataclass(frozen=True)
class Times:
    """Seconds of a rank-batch by phase (forward, backward, optimizer): `cpu` of the thread, `wall` by the clock."""

    cpu: tuple[float, ...]
    wall: tuple[float, ...]


class RankBench:
    """A model that trains any samples, one rank-batch after another; rows come from nowhere, gradients go nowhere.

    What `lookup` and `update` do is the strategies' and not compute; spreading the distinct rows over the batch, and
    adding up their gradients, is part of the backward pass and is done here as there.
    """

    def __init__(self, workload: Workload, device: torch.device, seed: int) -> None:
        self._workload = workload
        self._device = device
        self._dtype = getattr(torch, getattr(workload.options, "dtype", "float32"))
        torch.manual_seed(seed)
        self._model = workload.build_model(self._dtype).to(device)
        self._optimizer = workload.dense_optimizer(self._model.parameters())

    def train(self, samples: Samples) -> Times:
        """Trains a rank-batch."""
        batch = to_device(self._workload.build_batch(samples, self._dtype), self._device)
        rows = self._rows(batch)
        marks = [self._mark()]
        loss = self._model(batch, rows)
        marks.append(self._mark())
        loss.backward()
        marks.append(self._mark())
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        marks.append(self._mark())
        phases = list(itertools.pairwise(marks))
        wall, cpu = (tuple((end[clock] - begin[clock]) * 1e-9 for begin, end in phases) for clock in (0, 1))
        return Times(cpu, wall)

    def _rows(self, batch: Batch) -> dict[str, torch.Tensor]:
        rows = {}
        for table in self._workload.tables():
            distinct, spread = torch.unique(batch.ids[table.name], return_inverse=True)
            values = torch.randn(len(distinct), table.dim, dtype=self._dtype, device=self._device) * table.init_std
            rows[table.name] = values.requires_grad_().index_select(0, spread)
        return rows

    def _mark(self) -> tuple[int, int]:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter_ns(), time.thread_time_ns()
