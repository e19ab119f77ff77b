"""What the next-item workloads share: a history in, the item after each of its positions out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import TableSpec
from fsbench.samples import Int64, Jagged, Samples
from fsbench.workload import Batch, Workload
from fsbench_workloads import flops, keyed
from fsbench_workloads.checks import check_at_least_one, check_positive
from fsbench_workloads.splits import tails

if TYPE_CHECKING:
    import torch

ITEMS = "items"
"""The name of the history column and of the embedding table that it indexes."""


class NextItem(Workload):
    """A causal transformer over item histories, trained by sampled softmax.

    A subclass says what the catalogue is and which history lies at each place of the training stream.
    """

    @dataclass(frozen=True)
    class Options:
        """`batch`: samples a rank. `negatives`: drawn for a sample, shared by its positions. `max_len`: how
        many events of a history are kept, the most recent. `lr` is for the dense parameters, `table_lr` for
        the table."""

        batch: int = 8
        dim: int = 64
        layers: int = 2
        heads: int = 2
        negatives: int = 256
        max_len: int = 200
        lr: float = 1e-3
        table_lr: float = 1e-3
        table_optimizer: Literal["sgd", "rowwise-adagrad", "lazy-adam"] = "lazy-adam"
        dtype: Literal["float32", "float64"] = "float32"

        def __post_init__(self) -> None:
            check_at_least_one(self, ("batch", "dim", "layers", "heads", "negatives"))
            check_positive(self, ("lr", "table_lr"))
            if self.dim % self.heads:
                raise ValueError(f"dim {self.dim} is not divisible by heads {self.heads}")
            if self.max_len < 2:
                raise ValueError(f"max_len is {self.max_len}, expected at least 2: an event and the next")

    options: Options
    seed: int
    """Keys the samples and their negatives; set by `prepare`."""

    @property
    @abstractmethod
    def items(self) -> int:
        """Size of the catalogue; items are numbered from 0."""

    @abstractmethod
    def histories(self, index: Int64) -> Jagged:
        """The histories at places `index` of the training stream, oldest event first, of any length."""

    @property
    def samples_per_rank(self) -> int:
        return self.options.batch

    def load(self, step: int, rank: int, ranks: int) -> Samples:
        index = self.places(step, rank, ranks)
        return self.samples(index, self.histories(index))

    def samples(self, index: Int64, histories: Jagged) -> Samples:
        """The most recent `max_len` events of each history; every event but the first is a target."""
        recent = tails(histories, np.minimum(histories.lengths, self.options.max_len))
        return Samples(index, np.maximum(recent.lengths - 1, 0), {ITEMS: recent})

    def costs(self, samples: Samples) -> NDArray[np.float64]:
        options = self.options
        return flops.causal_transformer(
            samples.tokens,
            samples.targets,
            dim=options.dim,
            layers=options.layers,
            ffn=4 * options.dim,
            negatives=options.negatives,
        )

    def tables(self) -> Sequence[TableSpec]:
        options = self.options
        return [TableSpec(ITEMS, self.items, options.dim, options.table_optimizer, options.table_lr)]

    def negatives(self, index: Int64) -> Int64:
        """What the targets of each sample are told apart from: int64[n, negatives], uniform over the catalogue."""
        columns = np.arange(self.options.negatives)
        return keyed.integers(self.items, self.seed, "negatives", index[:, None], columns)

    def build_batch(self, samples: Samples, dtype: torch.dtype) -> Batch:
        """`ids`: all history events in order, then the negatives of each sample in turn.

        `features`: `lengths`, int64[n], of the histories. No tensor here has a floating-point dtype.
        """
        import torch

        negatives = self.negatives(samples.index).ravel()
        ids = np.concatenate([samples.columns[ITEMS].values, negatives], dtype=np.int64)
        features = {"lengths": torch.tensor(samples.tokens, dtype=torch.int64)}
        return Batch(samples, {ITEMS: torch.from_numpy(ids)}, features)

    def build_model(self, dtype: torch.dtype) -> torch.nn.Module:
        from fsbench_workloads.sasrec import SASRec

        options = self.options
        return SASRec(
            dim=options.dim,
            layers=options.layers,
            heads=options.heads,
            max_len=options.max_len,
            dtype=dtype,
        )

    def dense_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adam(parameters, lr=self.options.lr, betas=(0.9, 0.98))
