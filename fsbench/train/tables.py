"""Row-sharded embedding tables: who owns a row, the owner's shard, and its optimizer. For any embedding strategy.

Updates are in place, touch only the rows they are given, and take the step number as an argument, so that a strategy
may apply them late and in parts without changing the result.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fsbench.axes import TableSpec
from fsbench.spreading import multiplier
from fsbench.train.distinct import Distinct

_INIT_BLOCK = 65_536


@dataclass(frozen=True)
class RowPartition:
    """Deals the rows of a table to ranks by a multiplicative hash.

    `place = row * multiplier mod rows` is a permutation; owner = place mod ranks and slot = place div ranks. Popular
    rows, which often have neighbouring IDs, spread evenly, and no array of owners is kept.
    """

    rows: int
    ranks: int

    @property
    def multiplier(self) -> int:
        return multiplier(self.rows)

    @property
    def slots(self) -> int:
        """Slots of the fullest rank."""
        return -(-self.rows // self.ranks)

    def size(self, rank: int) -> int:
        """How many rows a rank owns."""
        return (self.rows - rank + self.ranks - 1) // self.ranks

    def key(self, ids: torch.Tensor) -> torch.Tensor:
        """int64[m] IDs to int64[m] keys, `owner * slots + slot`: sorting by key groups IDs by owner."""
        owner, slot = self.find(ids)
        return owner * self.slots + slot

    def find(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """int64[m] IDs to their owners and slots, int64[m] each."""
        place = ids * self.multiplier % self.rows
        slot = place // self.ranks
        return place - slot * self.ranks, slot

    def ids(self, rank: int) -> torch.Tensor:
        """int64[size(rank)]: the IDs that a rank owns, by slot."""
        places = torch.arange(self.size(rank), dtype=torch.int64) * self.ranks + rank
        if self.rows == 1:
            return places
        return places * pow(self.multiplier, -1, self.rows) % self.rows


class TableShard:
    """One rank's rows of a table, with their optimizer state.

    Optimizers: `sgd`; `rowwise-adagrad` (one accumulator a row: the mean of squares over the row, as fbgemm's
    EXACT_ROWWISE_ADAGRAD); `lazy-adam` (moments of touched rows only, bias correction by the global step, as
    torch.optim.SparseAdam).

    `weight`: [size, dim]; `state`: by name, [size] or [size, dim].
    """

    def __init__(
        self, spec: TableSpec, partition: RowPartition, rank: int, seed: int, dtype: torch.dtype, device: Any
    ) -> None:
        self.spec = spec
        self.ids = partition.ids(rank)
        self.weight = initial_rows(spec, self.ids, seed).to(dtype).to(device)
        self._distinct = Distinct(len(self.ids))
        self.state: dict[str, torch.Tensor] = {
            name: self.weight.new_zeros(len(self.ids), *shape)
            for name, shape in row_shapes(spec).items()
            if name != "weight"
        }

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Rows [m, dim] of the given slots."""
        return self.weight.index_select(0, slots)

    def apply(self, slots: torch.Tensor, gradients: torch.Tensor, step: int, *, scale: float) -> None:
        """Updates rows in place. Two threads may do so at once, each its own rows.

        Args:
            slots: int64[m], repeats allowed: their gradients are added in the order given.
            gradients: [m, dim].
            step: number of this update, from 1 (bias correction).
            scale: what the summed gradients are multiplied with.
        """
        if not len(slots):
            return
        rows, place = self._distinct(slots)
        summed = gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, place, gradients)
        getattr(self, "_" + self.spec.optimizer.replace("-", "_"))(rows, summed.mul_(scale), step)

    def _sgd(self, rows: torch.Tensor, gradient: torch.Tensor, step: int) -> None:
        self._move(rows, gradient, self.spec.lr)

    def _move(self, rows: torch.Tensor, direction: torch.Tensor, rate: float) -> None:
        """Against `direction`, which it spoils. Each row is there once; `index_add_` takes 3 x as long on a CPU."""
        places = rows[:, None].expand_as(direction)
        self.weight.scatter_add_(0, places, direction.mul_(-rate))

    def _rowwise_adagrad(self, rows: torch.Tensor, gradient: torch.Tensor, step: int) -> None:
        total = self.state["sum"].index_select(0, rows) + gradient.square().mean(1)
        self.state["sum"].index_copy_(0, rows, total)
        self._move(rows, gradient.div_((total.sqrt() + 1e-8)[:, None]), self.spec.lr)

    def _lazy_adam(self, rows: torch.Tensor, gradient: torch.Tensor, step: int) -> None:
        beta1, beta2, epsilon = 0.9, 0.999, 1e-8
        mean = self.state["mean"].index_select(0, rows).lerp_(gradient, 1 - beta1)
        variance = self.state["variance"].index_select(0, rows).mul_(beta2)
        variance.addcmul_(gradient, gradient, value=1 - beta2)
        self.state["mean"].index_copy_(0, rows, mean)
        self.state["variance"].index_copy_(0, rows, variance)
        rate = self.spec.lr * math.sqrt(1 - beta2**step) / (1 - beta1**step)
        self._move(rows, mean.div_(variance.sqrt_().add_(epsilon)), rate)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weight and optimizer state, by name, by slot."""
        return {"weight": self.weight, **self.state}

    def load(self, full: Mapping[str, torch.Tensor]) -> None:
        """Takes this shard's rows out of full logical tensors [rows, ...].

        Raises:
            ValueError: the state is of another optimizer.
        """
        require_state(self.spec, full)
        for name, tensor in self.tensors().items():
            tensor.copy_(full[name].index_select(0, self.ids.to(full[name].device)))


def row_shapes(spec: TableSpec) -> dict[str, tuple[int, ...]]:
    """What is kept of a row: its weight and optimizer state, by name, with the shape of each."""
    states: dict[str, dict[str, tuple[int, ...]]] = {
        "sgd": {},
        "rowwise-adagrad": {"sum": ()},
        "lazy-adam": {"mean": (spec.dim,), "variance": (spec.dim,)},
    }
    return {"weight": (spec.dim,), **states[spec.optimizer]}


def require_state(spec: TableSpec, full: Mapping[str, torch.Tensor]) -> None:
    """Raises:
    ValueError: `full` is not the state of the table's optimizer.
    """
    if full.keys() != row_shapes(spec).keys():
        raise ValueError(
            f"table {spec.name}: the checkpoint holds {sorted(full)}, "
            f"optimizer {spec.optimizer} needs {sorted(row_shapes(spec))}"
        )


def initial_rows(spec: TableSpec, ids: torch.Tensor, seed: int) -> torch.Tensor:
    """float32[len(ids), dim]: the rows' initial values, the same for an ID whoever owns it."""
    rows = torch.empty(len(ids), spec.dim)
    order = torch.argsort(ids)
    blocks = torch.arange(0, spec.rows + _INIT_BLOCK, _INIT_BLOCK)
    bounds = torch.searchsorted(ids[order], blocks)
    for block, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        key = hashlib.sha256(f"{seed}/{spec.name}/{block}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:7], "little"))
        start = block * _INIT_BLOCK
        values = torch.randn(min(_INIT_BLOCK, spec.rows - start), spec.dim, generator=generator)
        mine = order[low:high]
        rows[mine] = values[ids[mine] - start] * spec.init_std
    return rows
