"""The workload on which strategies are checked: tiny, in float64 where they can, and with what one could get wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta, EmbeddingExchange, Sharding, Strategy, TableOptimizer, TableSpec
from fsbench.samples import Int64, Jagged, Samples, ranges
from fsbench.workload import Batch, Workload

if TYPE_CHECKING:
    import torch

Scenario = Literal["ordinary", "an empty rank", "a giant sample", "no table"]
STEPS = 5
EMPTY_STEP = 3
"""In the scenario of an empty rank, no rank has a sample in this step."""
GIANT_TOKENS = 3_000
_PER_RANK, _ROWS, _DIM, _HIDDEN = 4, 997, 4, 6
_FEW_ROWS = 50
"""Short samples keep to so many rows, so that steps share some, and others come back later."""


@dataclass(frozen=True)
class TableKinds:
    """What tables there are: float64, one optimizer without state and one with, unless a strategy cannot do that."""

    dtype: str = "float64"
    optimizers: tuple[TableOptimizer, TableOptimizer] = ("sgd", "lazy-adam")

    @classmethod
    def for_(cls, strategy: Strategy) -> TableKinds:
        if not isinstance(strategy, EmbeddingExchange):
            return cls()
        return cls(strategy.dtypes[-1], (strategy.optimizers[0], strategy.optimizers[-1]))


class Exercise(Workload):
    """Samples of 0 to 7 IDs over two tables, `kinds`.

    Every sample's first ID is row 0. Half of the dense parameters are touched by samples of odd places only, so that
    some batches leave them without a gradient. Scenarios: `an empty rank`, another in each step, once all of them;
    `a giant sample`, one in each step, of `GIANT_TOKENS` IDs; `no table`, dense parameters alone.
    """

    default_steps = STEPS
    samples_per_rank = _PER_RANK
    samples_available = None

    @dataclass(frozen=True)
    class Options:
        dtype: str = "float64"

    def __init__(self, scenario: Scenario, kinds: TableKinds) -> None:
        super().__init__(self.Options(kinds.dtype))
        self.scenario = scenario
        self._kinds = kinds

    def prepare(self, data_dir: Path | None, seed: int) -> None:
        pass

    def load(self, step: int, rank: int, ranks: int) -> Samples:
        index = self.places(step, rank, ranks)
        lengths = (index * 5 + 3) % 8
        if self.scenario == "a giant sample":
            lengths = np.where(index % (_PER_RANK * ranks) == 1, GIANT_TOKENS, lengths)
        place = ranges(np.zeros_like(lengths), lengths)
        owner = np.repeat(index, lengths)
        rows = np.where(lengths < GIANT_TOKENS, _FEW_ROWS, _ROWS)
        items = Jagged(np.where(place == 0, 0, (owner * 31 + place * 17) % np.repeat(rows, lengths)), lengths)
        labels = Jagged(np.sin(index + 1.0), np.ones_like(index))
        return Samples(index, lengths, {"items": items, "labels": labels})

    def places(self, step: int, rank: int, ranks: int) -> Int64:
        everything = super().places(step, rank, ranks)
        if self.scenario == "an empty rank" and (rank == step % (ranks + 1) or step == EMPTY_STEP):
            return everything[:0]
        return everything

    def costs(self, samples: Samples) -> NDArray[np.float64]:
        return samples.tokens.astype(np.float64)

    def tables(self) -> Sequence[TableSpec]:
        if self.scenario == "no table":
            return ()
        return [
            TableSpec(name, _ROWS, _DIM, optimizer, lr=0.01, init_std=1.0)
            for name, optimizer in zip(("one", "two"), self._kinds.optimizers, strict=True)
        ]

    def build_batch(self, samples: Samples, dtype: torch.dtype) -> Batch:
        import torch

        ids = torch.from_numpy(np.ascontiguousarray(samples.columns["items"].values, np.int64))
        wanted = {"one": ids, "two": _ROWS - 1 - ids}
        labels = np.repeat(samples.columns["labels"].values, samples.tokens)
        odd = np.repeat(samples.index % 2 == 1, samples.tokens)
        features = {"labels": torch.from_numpy(labels).to(dtype), "odd": torch.from_numpy(odd)}
        return Batch(samples, {table.name: wanted[table.name] for table in self.tables()}, features)

    def build_model(self, dtype: torch.dtype) -> torch.nn.Module:
        from fsbench.testing.model import TwoHeads

        return TwoHeads(_DIM, _HIDDEN, dtype)

    def dense_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(parameters, lr=0.001)

    def fingerprint(self) -> Mapping[str, Any]:
        return {}


class Deal(Sharding):
    """Deals samples to ranks in turn, so that most of them move."""

    lookahead = 1

    def assign(self, batch: BatchMeta) -> Int64:
        return np.arange(len(batch.source)) % batch.ranks
