"""A workload whose every ID is chosen by the test: what happens when rows collide always, never, or come back later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fsbench.axes import TableSpec
from fsbench.samples import Jagged, Samples
from fsbench.workload import Batch, Workload

ROWS, DIM, PER_RANK = 60, 4, 3


def disjoint(step, sample):
    """Rows of one step and of the next never meet."""
    return [(step % 2) * 30 + (sample * 5 + i) % 30 for i in range(4)]


def same(step, sample):
    """Every step has the same rows."""
    return [sample * 3 + i for i in range(4)]


def one_row(step, sample):
    """Every sample of every step hits row 0, and a few others."""
    return [0, 0, 1 + (step * 7 + sample) % 50]


def all_equal(step, sample):
    """There is one ID."""
    return [17] * (1 + sample % 3)


def returning(step, sample):
    """Rows of step t come back at t + 2 and t + 3, not at t + 1."""
    return [(step % 5) * 10 + sample, ((step + 3) % 5) * 10 + sample]


def sparse_samples(step, sample):
    """Every third sample has no ID at all, and whole steps are empty."""
    return [] if sample % 3 == 0 or step % 4 == 3 else [(step * 11 + sample * 5 + i) % ROWS for i in range(3)]


SCRIPTS = {f.__name__: f for f in (disjoint, same, one_row, all_equal, returning, sparse_samples)}


class Scripted(Workload):
    """IDs by script; the loss pulls a linear image of each row towards a value keyed by its sample."""

    default_steps = 10
    samples_per_rank = PER_RANK
    samples_available = None

    @dataclass(frozen=True)
    class Options:
        dtype: str = "float64"

    def __init__(self, script: str, tables: int, optimizer: str) -> None:
        super().__init__()
        self._script, self._tables, self._optimizer = SCRIPTS[script], tables, optimizer

    def prepare(self, data_dir, seed):
        pass

    def load(self, step, rank, ranks):
        places = np.arange(rank * PER_RANK, (rank + 1) * PER_RANK)
        rows = [self._script(step, place) for place in places.tolist()]
        lengths = np.array([len(row) for row in rows], np.int64)
        values = np.array([item for row in rows for item in row], np.int64)
        return Samples(step * ranks * PER_RANK + places, lengths, {"items": Jagged(values, lengths)})

    def costs(self, samples):
        return samples.tokens.astype(np.float64) + 1

    def tables(self):
        return [TableSpec(f"t{i}", ROWS, DIM, self._optimizer, lr=0.1, init_std=1.0) for i in range(self._tables)]

    def build_batch(self, samples, dtype):
        import torch

        column = samples.columns["items"]
        ids = torch.from_numpy(np.ascontiguousarray(column.values, np.int64))
        wanted = torch.from_numpy(np.sin(np.repeat(samples.index, column.lengths) + 1.0)).to(dtype)
        # The second table is asked for the mirrored rows, so that its classes differ from those of the first.
        return Batch(samples, {f"t{i}": ids if i == 0 else ROWS - 1 - ids for i in range(self._tables)}, {"y": wanted})

    def build_model(self, dtype):
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.image = torch.nn.Linear(DIM, 1, dtype=dtype)

            def forward(self, batch, rows):
                return sum((self.image(r)[:, 0] - batch.features["y"]).square().sum() for r in rows.values())

        return Model()

    def dense_optimizer(self, parameters):
        import torch

        return torch.optim.SGD(parameters, lr=0.05)

    def fingerprint(self):
        return {}
