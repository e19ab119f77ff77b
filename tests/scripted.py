"""A workload whose every ID is chosen by the test: what happens when rows collide always, never, or come back later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fsbench.axes import TableSpec
from fsbench.samples import Jagged, Samples
from fsbench.workload import Batch, Workload
from tests import support

ROWS, DIM, PER_RANK = 60, 4, 3


def disjoint(step, sample):
    """Rows of one step and of the next never meet."""
    return [(step % 2) * 30 + (sample * 5 + i) % 30 for i in range(4)]


def same(step, sample):
    """Every step has the same rows."""
    return [sample * 3 + i for i in range(4)]


def own(step, sample):
    """No two samples of a step share a row, and every step has the same rows."""
    return [sample * 4 + i for i in range(4)]


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


def drifting(step, sample):
    """Of a few rows that all want, others from step 16 on; and some that few want."""
    popular = 0 if step < 16 else 40
    return [*(popular + (sample + i) % 4 for i in range(3)), 10 + (step * 7 + sample * 5) % 23]


_PATTERNS = (disjoint, same, own, one_row, all_equal, returning, sparse_samples, drifting)


def varied(step, sample):
    """Each of the others in turn, two steps of each, so that every one meets itself and the next."""
    return _PATTERNS[step // 2 % len(_PATTERNS)](step, sample)


SCRIPTS = {f.__name__: f for f in (*_PATTERNS, varied)}
OPTIMIZERS = ("sgd", "rowwise-adagrad", "lazy-adam")


class Scripted(Workload):
    """IDs by script; the loss pulls a linear image of each row towards a value keyed by its sample."""

    default_steps = 10
    samples_per_rank = PER_RANK
    samples_available = None

    @dataclass(frozen=True)
    class Options:
        dtype: str = "float64"

    def __init__(self, script: str, tables: int, optimizer: str, dtype: str = "float64") -> None:
        super().__init__(self.Options(dtype))
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
        # The second table is asked for the mirrored rows, so that its classes differ from those of the first; and it
        # comes first, which is not the order of `tables`.
        by_table = {f"t{i}": ids if i == 0 else ROWS - 1 - ids for i in reversed(range(self._tables))}
        return Batch(samples, by_table, {"y": wanted})

    def build_model(self, dtype):
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.image = torch.nn.Linear(DIM, 1, dtype=dtype)

            def forward(self, batch, rows):
                y = batch.features["y"]
                return sum((self.image(r)[:, 0] - y[: len(r)]).square().sum() for r in rows.values())

        return Model()

    def dense_optimizer(self, parameters):
        import torch

        return torch.optim.SGD(parameters, lr=0.05)

    def fingerprint(self):
        return {}


class Linear(Scripted):
    """The loss is the sum of all rows: gradients do not depend on them, and a row tells how many updates it has had.

    The model keeps (IDs, rows) of each step in `seen`.
    """

    def build_model(self, dtype):
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.unused = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
                self.seen = []

            def forward(self, batch, rows):
                self.seen.append((batch.ids["t0"].numpy().copy(), rows["t0"].detach().numpy().copy()))
                return rows["t0"].sum() + (0 * self.unused).sum()

        return Model()


class Absent(Scripted):
    """Batches 0, 1, 4, 7, 8, 11, ... lack table `t1`; or, if `empty`, have no ID of it."""

    def __init__(self, script: str, optimizer: str, ranks: int, *, empty: bool) -> None:
        super().__init__(script, 2, optimizer)
        self._ranks, self._empty = ranks, empty

    def build_batch(self, samples, dtype):
        batch = super().build_batch(samples, dtype)
        if samples.index[0] // (self._ranks * PER_RANK) % 7 in (0, 1, 4):
            batch.ids["t1"] = batch.ids["t1"][:0]
            if not self._empty:
                del batch.ids["t1"]
        return batch


class Pooled(Scripted):
    """Bags of IDs: two features of each sample look up table `shared`, to be summed and averaged, a third one `wide`.

    The contract knows IDs and rows; bags are the model's. Features of one table follow each other in its IDs.
    """

    def __init__(self) -> None:
        super().__init__("one_row", 2, "rowwise-adagrad")

    def tables(self):
        return [
            TableSpec("shared", ROWS, DIM, self._optimizer, lr=0.1, init_std=1.0),
            TableSpec("wide", ROWS, 7, self._optimizer, lr=0.1, init_std=1.0),
        ]

    def build_batch(self, samples, dtype):
        import torch

        column = samples.columns["items"]
        ids = torch.from_numpy(np.ascontiguousarray(column.values, np.int64))
        bag = torch.from_numpy(np.repeat(np.arange(len(samples)), column.lengths))
        wanted = torch.from_numpy(np.sin(samples.index + 1.0)).to(dtype)
        both = torch.cat([ids, (ids * 7 + 3) % ROWS])
        return Batch(samples, {"shared": both, "wide": ROWS - 1 - ids}, {"bag": bag, "y": wanted})

    def build_model(self, dtype):
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.image = torch.nn.Linear(2 * DIM + 7, 1, dtype=dtype)

            def forward(self, batch, rows):
                bag, bags = batch.features["bag"], len(batch.features["y"])
                first, second = rows["shared"].split(len(bag))
                size = torch.bincount(bag, minlength=bags).clamp(min=1)[:, None]

                def pooled(values):
                    return values.new_zeros(bags, values.shape[1]).index_add(0, bag, values)

                inputs = torch.cat([pooled(first), pooled(second) / size, pooled(rows["wide"])], 1)
                return (self.image(inputs)[:, 0] - batch.features["y"]).square().sum()

        return Model()


def left_behind(trainer, driver, losses=()):
    """Losses (after earlier ones), tables and dense weights."""
    from fsbench.train.session import global_losses

    state = trainer.strategies.embedding.state_dict()
    return {
        "losses": [*losses, *global_losses(driver)],
        "tables": {f"{t}.{n}": value.numpy() for t, table in state.items() for n, value in table.items()},
        "dense": {name: tensor.numpy() for name, tensor in trainer.model.state_dict().items()},
        "counts": [],
    }


def train_scripted(
    rank, ranks, embedding, script, tables, optimizer, steps, stop_at=None, folder=None, then=None, dtype="float64"
):
    """What training leaves; with `stop_at`, through a checkpoint and a fresh trainer, with the strategy `then`."""
    from fsbench.train import checkpoint
    from fsbench.train.driver import Driver
    from fsbench.train.session import global_losses

    def fresh(strategy):
        workload = Scripted(script, tables, optimizer, dtype)
        return support.opened_cell(rank, ranks, workload, embedding=strategy)

    losses, saved = [], folder and folder / embedding.partition(":")[0]
    if saved:
        with fresh(embedding) as trainer:
            driver = Driver(trainer, 0, stop_at)
            driver.run()
            losses = global_losses(driver)
            checkpoint.save(trainer, saved, driver.step)
    with fresh(then or embedding) as trainer:
        first = checkpoint.load(trainer, saved) if saved else 0
        driver = Driver(trainer, first, steps)
        driver.run()
        return left_behind(trainer, driver, losses)


def assert_same_bits(ours, reference):
    assert ours["losses"] == reference["losses"]
    for part in ("tables", "dense"):
        assert ours[part].keys() == reference[part].keys()
        for name, values in reference[part].items():
            assert np.array_equal(ours[part][name], values), name
    for left, right in zip(ours["counts"], reference["counts"], strict=True):
        assert np.array_equal(left, right)
