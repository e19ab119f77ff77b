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
from fsbench.samples import Samples

if TYPE_CHECKING:
    import torch

    from fsbench.metrics.sheet import Sheet


@dataclass
class Batch:
    """What a rank trains in one step.

    `ids`: int64[m] by table, every row the model will read, in the order in which it reads them. `samples`: the host
    arrays they were made from. `features`: whatever else the model wants, by name.
    """

    samples: Samples
    ids: dict[str, torch.Tensor]
    features: dict[str, torch.Tensor]


class Evaluation(ABC):
    """How good a model is on samples that were held out of training.

    Each is looked at once, by one rank: what is found about it is a row of numbers, and rows add up over ranks, so that
    a checkpoint has the same figures, to the bit, on any number of ranks. Built-in: `fsbench.train.ranking` (next
    items) and `fsbench.train.clicks` (click-through).
    """

    metrics: ClassVar[tuple[str, ...]]
    """What `enter` enters."""
    finds: ClassVar[tuple[str, int]]
    """The numpy dtype of a row and how many numbers it has."""
    protocol: str
    """One line that says how the figures were made, printed with them."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples were held out."""

    @abstractmethod
    def samples(self, places: NDArray[np.int64]) -> Samples:
        """Those at some places, 0 to `len(self) - 1`, in that order."""

    @abstractmethod
    def look(
        self, model: torch.nn.Module, batch: Batch, tables: Mapping[str, torch.Tensor], places: NDArray[np.int64]
    ) -> torch.Tensor:
        """A row for each sample: [n, numbers]. Without gradients.

        Args:
            batch: of `samples(places)`, on the device.
            tables: whole, [rows, dim] by name, on the device.

        Raises:
            FsbenchError: what the model says is not finite; of which sample.
        """

    @abstractmethod
    def enter(self, sheet: Sheet, rows: NDArray) -> None:
        """Enters `metrics`, from the rows of all samples, [len(self), numbers]."""

    def enter_baseline(self, sheet: Sheet) -> None:
        """Enters what does not depend on the model."""

    def counts(self) -> Mapping[str, int]:
        """How many samples the figures are about, and of which kinds; for the record."""
        return {"samples": len(self)}


class Loader(Protocol):
    """The part of a workload that the input pipeline needs."""

    @property
    def samples_per_rank(self) -> int: ...

    def load(self, step: int, rank: int, ranks: int) -> Samples: ...

    def costs(self, samples: Samples) -> NDArray[np.float64]: ...

    def cost_features(self, samples: Samples) -> Mapping[str, NDArray[np.float64]]: ...

    def build_batch(self, samples: Samples, dtype: torch.dtype) -> Batch: ...


class Workload(ABC):
    """A model with its data. The first line of the class's docstring is its summary in `list`.

    Several threads may load and build batches at once.
    """

    @dataclass(frozen=True)
    class Options:
        """A frozen dataclass: the options a user may set, with their defaults. Override it."""

    default_steps: ClassVar[int]
    """How many steps `fsbench run` trains when it is not told."""
    has_tables: ClassVar[bool] = True
    """Whether `tables` tells of any; known before the data are."""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    @property
    def dtype_name(self) -> str:
        """Of the model and of the tables: the option `dtype`, if there is one."""
        return str(getattr(self.options, "dtype", "float32"))

    def fetch(self, data_dir: Path | None) -> str:
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

    def steps_available(self, ranks: int) -> int | None:
        """The most steps that can be trained, or None for a stream that has no end or begins again."""
        return None

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

        `rows`: by table, [m, dim], for `batch.ids`. What else it must have, its `evaluation` says.
        """

    @abstractmethod
    def dense_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of the dense parameters."""

    def evaluation(self) -> Evaluation | None:
        """How quality is measured, or None. Called where torch is."""
        return None

    @abstractmethod
    def fingerprint(self) -> Mapping[str, Any]:
        """For the manifest: data hash, split hash, sizes, tie share and every choice that shaped the split."""
