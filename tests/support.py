"""Builders shared by tests: tiny workloads, cells and data files. Everything a rank process calls lives in a module."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np

from fsbench.axes import AXES, DEFAULTS, BatchMeta, Sharding
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.train.trainer import Strategies, Trainer, open_trainer
from fsbench.workload import Workload

TINY = "dim=8,heads=2,layers=1,negatives=4,dtype=float64"
TINY_LONG = f"long-cpu:batch=4,items=50,categories=5,max_len=250,eval_users=150,{TINY}"
TINY_CTR = "ctr:batch=4,dim=4,hidden=6,rows=50,eval_samples=150,dtype=float64"
LIMIT = timedelta(seconds=40)


def with_options(workload: str, **options: object) -> str:
    """The workload with some options set or replaced."""
    spec = Spec.parse(workload)
    return str(Spec(spec.name, {**spec.options, **{key: str(value) for key, value in options.items()}}))


class AllOnOne(Sharding):
    """Gives every sample to one rank: the others train nothing."""

    lookahead = 1

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def assign(self, batch: BatchMeta) -> np.ndarray:
        return np.full(len(batch.costs), self._rank % batch.ranks)


def open_cell(
    rank: int,
    ranks: int,
    workload: str = TINY_LONG,
    data_dir: Path | None = None,
    seed: int = 3,
    sharding_object: Sharding | None = None,
    device: str = "cpu",
    **axes: str,
) -> Trainer:
    """A trainer on this rank, with the default strategy on every axis that is not named."""
    prepared = create("workloads", Spec.parse(workload))
    prepared.prepare(data_dir, seed)
    return open_workload(rank, ranks, prepared, seed, sharding_object, device, **axes)


def open_workload(
    rank: int,
    ranks: int,
    prepared: Workload,
    seed: int = 3,
    sharding_object: Sharding | None = None,
    device: str = "cpu",
    **axes: str,
) -> Trainer:
    """The same for a workload that is ready."""
    import torch

    where = {"rank": rank, "ranks": ranks, "seed": seed, "timeout": LIMIT}
    return open_trainer(prepared, strategies(sharding_object, **axes), device=torch.device(device), **where)


@contextlib.contextmanager
def opened_cell(
    rank: int, ranks: int, prepared: Workload, seed: int = 3, workers: int = 1, **axes: str
) -> Iterator[Trainer]:
    """The same, with the servers that the strategies ask for; closed at the end."""
    import torch

    from fsbench.testing.servers import served
    from fsbench.train.trainer import close_trainer

    chosen, others = strategies(**axes), [strategies(**axes) for _ in range(1, workers)]
    where = {"rank": rank, "ranks": ranks, "seed": seed, "timeout": LIMIT}
    with served(chosen, prepared, workers=workers, **where) as store:
        trainer = open_trainer(prepared, chosen, device=torch.device("cpu"), store=store, others=others, **where)
        yield trainer
        close_trainer(trainer)


def strategies(sharding_object: Sharding | None = None, **axes: str) -> Strategies:
    """Those named, and the default ones on the other axes."""
    chosen = {axis: create(axis, Spec.parse(axes.get(axis, DEFAULTS[axis]))) for axis in AXES}
    if sharding_object is not None:
        chosen["sharding"] = sharding_object
    return Strategies(**chosen)


def is_gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process that was killed has ended: the kernel takes a moment."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def write_ratings(folder: Path, rows: list[tuple[int, int, int]]) -> Path:
    """`rows` of (user, item, timestamp) as folder/ml-100k/u.data; returns the folder."""
    target = folder / "ml-100k"
    target.mkdir()
    (target / "u.data").write_text("".join(f"{user}\t{item}\t3\t{time}\n" for user, item, time in rows))
    return folder
