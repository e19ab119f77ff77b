"""A synthetic workload of dense parameters alone: its step is an MLP, and nothing else has to move."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import TableSpec
from fsbench.samples import Jagged, Samples
from fsbench.workload import Batch, Workload
from fsbench_workloads import keyed
from fsbench_workloads.checks import check_at_least_one, check_positive
from fsbench_workloads.flops import BACKWARD_AND_FORWARD
from fsbench_workloads.splits import sha256_of

if TYPE_CHECKING:
    import torch

_TEACHER_UNITS = 16
_HASHED_SAMPLES = 64


class Dense(Workload):
    """An MLP of 1 M parameters on a synthetic regression stream; no table: for dense synchronisation.

    The stream has no end: sample i depends on the seed and on i only. Its target is what a small fixed network makes of
    its inputs, and noise. Quality is the training loss (mean squared error; `noise` squared is its floor).
    """

    default_steps = 400
    has_tables = False
    samples_available = None

    @dataclass(frozen=True)
    class Options:
        """`batch`: samples a rank. `inputs`, `hidden`, `layers`: the MLP has `layers` hidden layers of width `hidden`.
        `noise`: standard deviation of what cannot be predicted. `lr`: of SGD."""

        batch: int = 16
        inputs: int = 256
        hidden: int = 640
        layers: int = 3
        noise: float = 0.1
        lr: float = 0.01
        dtype: Literal["float32", "float64"] = "float32"

        def __post_init__(self) -> None:
            check_at_least_one(self, ("batch", "inputs", "hidden", "layers"))
            if not 0 <= self.noise < float("inf"):
                raise ValueError(f"noise is {self.noise}, expected 0 or more")
            check_positive(self, ("lr",))

    options: Options

    def prepare(self, data_dir: Path | None, seed: int) -> None:
        """Makes the teacher; `data_dir` is not used."""
        self.seed = seed
        inputs, units = np.arange(self.options.inputs)[:, None], np.arange(_TEACHER_UNITS)
        self._into = _unit_uniform(seed, "teacher in", inputs, units) / np.sqrt(self.options.inputs)
        self._out = _unit_uniform(seed, "teacher out", units) / np.sqrt(_TEACHER_UNITS)

    @property
    def samples_per_rank(self) -> int:
        return self.options.batch

    def load(self, step: int, rank: int, ranks: int) -> Samples:
        """Samples are their places in the stream, one token and one target each; numbers come with the batch."""
        index = self.places(step, rank, ranks)
        ones = np.ones_like(index)
        return Samples(index, ones, {"sample": Jagged(index, ones)})

    def examples(self, index: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Inputs [n, inputs] of mean 0 and variance 1, and targets [n], of samples int64[n]."""
        inputs = _unit_uniform(self.seed, "inputs", index[:, None], np.arange(self.options.inputs))
        noise = self.options.noise * _unit_uniform(self.seed, "noise", index)
        return inputs, np.tanh(2 * inputs @ self._into) @ self._out + noise

    def costs(self, samples: Samples) -> NDArray[np.float64]:
        weights = sum(above * below for above, below in itertools.pairwise(self._widths))
        return np.full(len(samples), BACKWARD_AND_FORWARD * 2.0 * weights)

    def tables(self) -> Sequence[TableSpec]:
        return ()

    def build_batch(self, samples: Samples, dtype: torch.dtype) -> Batch:
        """`features`: `inputs` [n, inputs] and `targets` [n]; there are no IDs."""
        import torch

        inputs, targets = (torch.from_numpy(array).to(dtype) for array in self.examples(samples.index))
        return Batch(samples, {}, {"inputs": inputs, "targets": targets})

    def build_model(self, dtype: torch.dtype) -> torch.nn.Module:
        from fsbench_workloads.mlp import RegressionMLP

        return RegressionMLP(self._widths, dtype)

    def dense_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(parameters, lr=self.options.lr)

    def fingerprint(self) -> Mapping[str, Any]:
        options = asdict(self.options)
        return {
            "data": f"synthetic, seed {self.seed}",
            "data_sha256": sha256_of(*self.examples(np.arange(_HASHED_SAMPLES))),  # of the first samples of the stream
            **{name: options[name] for name in ("inputs", "hidden", "layers", "noise")},
        }

    @property
    def _widths(self) -> list[int]:
        return [self.options.inputs, *[self.options.hidden] * self.options.layers, 1]


def _unit_uniform(seed: int, stream: str, *words: Any) -> NDArray[np.float64]:
    """Uniform numbers of mean 0 and variance 1."""
    return np.sqrt(12) * (keyed.uniform(seed, stream, *words) - 0.5)
