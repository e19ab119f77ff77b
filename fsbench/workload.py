"""The contract of a workload: data, model, loss and quality metric.

Like strategies, workloads are plugins (entry-point group `fsbench.workloads`) whose modules import no torch at the
top: `prepare` and the loader run on numpy alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import TableSpec
from fsbench.samples import Jagged, Samples

if TYPE_CHECKING:
    import torch


@dataclass
class Batch:
    """What a rank trains in one step.

    `ids`: int64[m] by table, every row the model will read, in the order in which it reads them. `samples`: the host
    arrays they were made from. `features`: whatever else the model wants, by name.
    """

    samples: Samples
    ids: dict[str, torch.Tensor]
    features: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Ranking:
    """Next-item evaluation over the full catalogue, every user once.

    `users`: the histories to encode, one a user, in a fixed order (`users.index` identifies the user in messages).
    `targets`: int64[users], the item that came next. `seen`: items of each user left out of the ranking when seen
    items are removed (the target itself never is). `table`: the name of the table whose rows are the catalogue.
    `baseline_scores`: float64[catalogue], one score an item for everyone: the popularity baseline.
    `protocol`: one line that says all this, printed with the figures.
    """

    users: Samples
    targets: NDArray[np.int64]
    seen: Jagged
    table: str
    baseline_scores: NDArray[np.float64]
    protocol: str


class Loader(Protocol):
    """The part of a workload that the input pipeline needs."""

    @property
    def samples_per_rank(self) -> int: ...

    def load(self, step: int, rank: int, ranks: int) -> Samples: ...

    def costs(self, samples: Samples) -> NDArray[np.float64]: ...

    def cost_features(self, samples: Samples) -> Mapping[str, NDArray[np.float64]]: ...

    def build_batch(self, samples: Samples, dtype: torch.dtype) -> Batch: ...


class Workload(ABC):
    """A model with its data. The first line of the class's docstring is its summary in `list`."""

    @dataclass(frozen=True)
    class Options:
        """A frozen dataclass: the options a user may set, with their defaults. Override it."""

    default_steps: ClassVar[int]
    """How many steps `fsbench run` trains when it is not told."""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    @property
    def dtype_name(self) -> str:
        """Of the model and of the tables: the option `dtype`, if there is one."""
        return str(getattr(self.options, "dtype", "float32"))

    @classmethod
    def fetch(cls, data_dir: Path | None) -> str:
        """Gets the data, unless it is there. Returns what to tell the user: where it lies, and its terms at first.

        Raises:
            UserError: it cannot be had or written; nothing half-written is left.
        """
        return "generated, nothing to fetch"

    @abstractmethod
    def prepare(self, data_dir: Path | None, seed: int) -> None:
        """Reads or makes the data; the same on every rank. Called once, before anything else.

        Raises:
            DataError: missing or malformed data, or an ID out of range: the file, the line and the text.
        """

    @property
    @abstractmethod
    def samples_per_rank(self) -> int:
        """Samples a rank loads in one step."""

    @property
    @abstractmethod
    def samples_available(self) -> int | None:
        """Distinct training samples, or None for a stream without end. A global batch may not be larger."""

    @abstractmethod
    def load(self, step: int, rank: int, ranks: int) -> Samples:
        """What rank `rank` of `ranks` reads for step `step`, in arrival order: the samples at its `places`."""

    def places(self, step: int, rank: int, ranks: int) -> NDArray[np.int64]:
        """Where in the stream a rank reads, int64[samples_per_rank].

        The stream does not depend on `ranks`: global batch t is its samples [t * B, (t + 1) * B), B =
        `samples_per_rank * ranks`, in rank order.
        """
        first = (step * ranks + rank) * self.samples_per_rank
        return np.arange(first, first + self.samples_per_rank)

    def outline(self, step: int, ranks: int) -> Samples:
        """The global batch of a step, in rank order, for those who look at lengths alone: values may be anything.

        Override it where lengths cost much less than what has them: simulated machines have thousands of ranks.
        """
        return Samples.concatenate([self.load(step, rank, ranks) for rank in range(ranks)])

    @abstractmethod
    def costs(self, samples: Samples) -> NDArray[np.float64]:
        """float64[n]: floating-point operations of forward and backward of each sample, from its real lengths."""

    def cost_features(self, samples: Samples) -> Mapping[str, NDArray[np.float64]]:
        """What compute time may follow beside the number of samples, their history lengths and those squared:
        float64[n] by name, added up over a batch. A fitted cost model has a coefficient for each.

        By default the length of every column after the history, such as candidates. A workload whose compute follows
        something else (unique IDs, say) returns that too.
        """
        return {name: column.lengths.astype(np.float64) for name, column in [*samples.columns.items()][1:]}

    @abstractmethod
    def tables(self) -> Sequence[TableSpec]:
        """The embedding tables."""

    @abstractmethod
    def build_batch(self, samples: Samples, dtype: torch.dtype) -> Batch:
        """Host tensors for the samples that this rank trains, also when there are none (same dtypes, zero rows)."""

    @abstractmethod
    def build_model(self, dtype: torch.dtype) -> torch.nn.Module:
        """The dense model: `model(batch, rows)` returns the *sum* of its losses over the batch's targets.

        `rows`: by table, [m, dim], for `batch.ids`. For a ranking workload, `model.encode(batch, rows)` returns
        [n, dim]: what is multiplied with the catalogue to score the next item of each sample.
        """

    @abstractmethod
    def dense_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of the dense parameters."""

    def ranking(self) -> Ranking | None:
        """How quality is measured, or None."""
        return None

    @abstractmethod
    def fingerprint(self) -> Mapping[str, Any]:
        """For the manifest: data hash, split hash, sizes, tie share and every choice that shaped the split."""
