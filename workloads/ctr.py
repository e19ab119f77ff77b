"""The click-through workload: a DLRM-like model, trained in one pass over a stream of impressions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import TableSpec
from fsbench.errors import DataError
from fsbench.samples import Int64, Jagged, Samples
from fsbench.workload import Batch, Workload
from fsbench_workloads import movielens
from fsbench_workloads.checks import check_at_least_one, check_positive
from fsbench_workloads.clicks import Source
from fsbench_workloads.clicks_criteo import CriteoFile
from fsbench_workloads.clicks_movielens import MovieLensClicks
from fsbench_workloads.clicks_synthetic import FEWEST_ROWS, Synthetic
from fsbench_workloads.flops import BACKWARD_AND_FORWARD

if TYPE_CHECKING:
    import torch

    from fsbench.train.clicks import ClickThrough

TABLE = "features"
"""The one table in which those of all categorical features are stacked: a step exchanges rows once, not 26 times."""


class ClickThroughRate(Workload):
    """Clicks on a synthetic stream, MovieLens-100K or a Criteo file, in one pass: a DLRM-like model; NE and AUC.

    Every example is trained at most once, in the order of time, and the model is evaluated on later ones. On two ranks
    the default steps are one pass over MovieLens-100K.
    """

    default_steps = 700

    @dataclass(frozen=True)
    class Options:
        """`source`: `synthetic`, `ml-100k`, or a Criteo TSV file: its name in the data folder (`--data-dir`), or its
        whole path. `batch`: samples a rank. `dim`: of rows. `hidden`: width of the MLPs. `rows`: of the largest
        synthetic table, or of each of a file's; ml-100k has those it needs. `eval_samples`: the most held-out samples
        to evaluate on, the earliest. `lr` is for the dense parameters, `table_lr` for the tables."""

        source: str = "synthetic"
        batch: int = 64
        dim: int = 16
        hidden: int = 64
        rows: int = 10_000
        eval_samples: int = 10_000
        lr: float = 0.02
        table_lr: float = 0.02
        table_optimizer: Literal["sgd", "rowwise-adagrad", "lazy-adam"] = "rowwise-adagrad"
        dtype: Literal["float32", "float64"] = "float32"

        def __post_init__(self) -> None:
            check_at_least_one(self, ("batch", "dim", "hidden", "eval_samples"))
            check_positive(self, ("lr", "table_lr"))
            if self.rows < FEWEST_ROWS:
                raise ValueError(f"rows is {self.rows}, expected at least {FEWEST_ROWS}")

    options: Options

    def fetch(self, data_dir: Path | None) -> str:
        if self.options.source == "synthetic":
            return super().fetch(data_dir)
        if self.options.source == "ml-100k":
            return str(movielens.fetch(data_dir))
        return f"{self._file(data_dir)}, a file of yours, nothing to fetch"

    def prepare(self, data_dir: Path | None, seed: int) -> None:
        self._source = self._open(data_dir, seed)
        rows = np.array(self._source.rows)
        self._first_row = np.cumsum(rows) - rows
        # Read by now: a malformed one must not end a run that has trained.
        held_out = self._source.held_out[: self.options.eval_samples]
        self._held_out = self.samples(np.arange(held_out.start, held_out.stop))

    def _open(self, data_dir: Path | None, seed: int) -> Source:
        source = self.options.source
        if source == "synthetic":
            return Synthetic(self.options.rows, self.options.eval_samples, seed)
        if source == "ml-100k":
            return MovieLensClicks(movielens.read(movielens.locate(data_dir)))
        return CriteoFile(self._file(data_dir), self.options.rows)

    def _file(self, data_dir: Path | None) -> Path:
        path = (data_dir or movielens.default_data_dir()) / Path(self.options.source).expanduser()
        if not os.path.lexists(path):
            raise DataError(f"{path}: no such file; source is synthetic, ml-100k or a Criteo TSV file")
        return path

    @property
    def source(self) -> Source:
        """Where the examples come from."""
        return self._source

    @property
    def samples_per_rank(self) -> int:
        return self.options.batch

    @property
    def samples_available(self) -> int | None:
        return self._source.train

    def steps_available(self, ranks: int) -> int | None:
        train = self._source.train
        return None if train is None else train // (self.options.batch * ranks)

    def load(self, step: int, rank: int, ranks: int) -> Samples:
        """Raises:
        DataError: a step beyond the one pass, or a malformed example.
        """
        available = self.steps_available(ranks)
        if available is not None and step >= available:
            raise DataError(
                f"step {step}: one pass over {self.options.source} has {available} steps of {self.options.batch} "
                f"samples on each of {ranks} ranks; set fewer --steps, as many fewer as the sharding reads ahead"
            )
        return self.samples(self.places(step, rank, ranks))

    def samples(self, places: Int64) -> Samples:
        """The examples at places of the source, a target each.

        Columns: `rows` of the table; `bags`, int32: how many of them each categorical feature has; `numbers`, float32:
        the dense features, then 1 for a click and 0 for none.
        """
        source, n = self._source, len(places)
        found = source.read(places)
        features = len(source.rows)
        bags = found.bags.lengths.reshape(n, features)
        rows = found.bags.values + np.repeat(np.tile(self._first_row, n), found.bags.lengths)
        numbers = np.concatenate([found.dense, found.clicked[:, None].astype(np.float32)], axis=1)
        columns = {
            "rows": Jagged(rows, bags.sum(axis=1)),
            "bags": Jagged(bags.ravel().astype(np.int32), np.full(n, features)),
            "numbers": Jagged(numbers.ravel(), np.full(n, source.dense + 1)),
        }
        return Samples(places, np.ones(n, np.int64), columns)

    def costs(self, samples: Samples) -> NDArray[np.float64]:
        """Matrix products, the same for each sample, and the additions that pool its rows."""
        dim, hidden, vectors = self.options.dim, self.options.hidden, len(self._source.rows) + 1
        bottom = self._source.dense * hidden + hidden * dim
        top = (dim + vectors * (vectors - 1) // 2) * hidden + hidden * hidden + hidden
        products = 2.0 * (bottom + vectors * vectors * dim + top)
        return BACKWARD_AND_FORWARD * (products + dim * samples.tokens)

    def cost_features(self, samples: Samples) -> Mapping[str, NDArray[np.float64]]:
        """Every sample has as many bags and numbers as any other."""
        return {}

    def tables(self) -> Sequence[TableSpec]:
        options = self.options
        rows = int(sum(self._source.rows))
        return [TableSpec(TABLE, rows, options.dim, options.table_optimizer, options.table_lr)]

    def build_batch(self, samples: Samples, dtype: torch.dtype) -> Batch:
        """`features`: `bags` int64[n * categorical], `dense` [n, dense] and `clicked` [n]."""
        import torch

        rows, bags = (samples.columns[name].values for name in ("rows", "bags"))
        values = torch.from_numpy(self._numbers(samples)).to(dtype)
        features = {
            "bags": torch.from_numpy(bags.astype(np.int64)),
            "dense": values[:, :-1],
            "clicked": values[:, -1],
        }
        return Batch(samples, {TABLE: torch.from_numpy(np.ascontiguousarray(rows))}, features)

    def build_model(self, dtype: torch.dtype) -> torch.nn.Module:
        from fsbench_workloads.dlrm import DLRM

        return DLRM(
            table=TABLE,
            dense=self._source.dense,
            categorical=len(self._source.rows),
            dim=self.options.dim,
            hidden=self.options.hidden,
            dtype=dtype,
        )

    def dense_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adagrad(parameters, lr=self.options.lr)

    def evaluation(self) -> ClickThrough:
        from fsbench.train.clicks import ClickThrough

        held_out = self._held_out
        part = f", the first {len(held_out):,} of them" if len(held_out) < len(self._source.held_out) else ""
        return ClickThrough(
            held_out=held_out,
            clicked=self._numbers(held_out)[:, -1] == 1,
            protocol=(
                f"test = {self._source.protocol}, never trained{part}; "
                f"NE over the entropy of their own click rate, AUC with ties counted half"
            ),
        )

    def fingerprint(self) -> Mapping[str, Any]:
        return {**self._source.fingerprint(), "eval_samples": len(self._held_out)}

    def _numbers(self, samples: Samples) -> NDArray[np.float32]:
        """[n, dense + 1]"""
        return samples.columns["numbers"].values.reshape(-1, self._source.dense + 1)
