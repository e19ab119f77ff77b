"""What a slow trainer costs the others: rank 1 at half speed, under each embedding exchange and dense synchronisation.

`python -m tests.bench.slow_trainer [--on local:ranks=2,link=400mbit] [--embedding NAME].. [--sync NAME]..` (as root,
for the link) prints a line a combination: how fast each rank is while rank 1 is slow, over its speed while it is not.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from fsbench.options import Spec
from fsbench.results.ratios import ratio_text
from fsbench.results.statistics import Estimate, paired
from fsbench.samples import Samples
from fsbench.workload import Loader
from fsbench_strategies.sharding.naive import Naive
from tests import fakes, sessions

SLOW_RANK = 1


class SlowLoader:
    """Another loader, on which the slow rank computes as long as its last step took before it gets a batch.

    A sleep would leave its core to the other rank. The work is torch's, so that its lanes' threads need not wait.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._matrix = torch.ones(128, 128)
        self._ended = time.monotonic()

    def load(self, step: int, rank: int, ranks: int) -> Samples:
        if rank == SLOW_RANK:
            until = 2 * time.monotonic() - self._ended
            while time.monotonic() < until:
                self._matrix @ self._matrix
        self._ended = time.monotonic()
        return self._loader.load(step, rank, ranks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class SlowTrainer(Naive):
    """`naive`, and rank 1 takes twice the time for every step."""

    def reads(self, loader: Loader) -> Loader:
        return SlowLoader(loader)


def measure(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Records of interleaved runs."""
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name, "set")
        slow = {"sharding": {"slow-trainer": "tests.bench.slow_trainer:SlowTrainer"}}
        fakes.install(folder, "slow-trainers", slow)
        path = os.pathsep.join(filter(None, (name, str(Path.cwd()), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "fsbench", "run", "--workload", asked.workload, "--on", asked.on]
        for axis in ("embedding", "sync"):
            command += [word for strategy in getattr(asked, axis) for word in (f"--{axis}", strategy)]
        command += ["--sharding", "naive", "--sharding", "slow-trainer", "--out", str(out)]
        command += ["--steps", str(asked.steps), "--repeats", str(asked.repeats)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, stdout=2)
        return sessions.all_records(out)


def speeds(records: Sequence[dict[str, Any]], cell: tuple[str, ...], rank: int) -> list[float]:
    """Steps a second of one rank, by repeat. `cell`: embedding, sync, sharding."""
    of_cell = [r for r in records if tuple(r["cell"][axis] for axis in ("embedding", "sync", "sharding")) == cell]
    return [
        r["metrics"]["steps_measured"] * 1000 / r["per_rank"][rank]["window_ms"]
        for r in sorted(of_cell, key=lambda r: r["repeat"])
    ]


def change(records: Sequence[dict[str, Any]], embedding: str, sync: str, rank: int) -> Estimate:
    """Speed of a rank while rank 1 is slow, over its speed while it is not."""
    slow, usual = (speeds(records, (embedding, sync, sharding), rank) for sharding in ("slow-trainer", "naive"))
    return paired([math.log(one / other) for one, other in zip(slow, usual, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", default="sparse")
    parser.add_argument("--on", default="local:ranks=2,link=400mbit")
    parser.add_argument("--embedding", action="append")
    parser.add_argument("--sync", action="append")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=6)
    asked = parser.parse_args()
    asked.embedding = [str(Spec.parse(text)) for text in asked.embedding or ("parameter-server", "plain")]
    asked.sync = [str(Spec.parse(text)) for text in asked.sync or ("none",)]
    records = measure(asked)
    rows = [
        (*pair, *(ratio_text(change(records, *pair, rank)) for rank in (1 - SLOW_RANK, SLOW_RANK)))
        for pair in itertools.product(asked.embedding, asked.sync)
    ]
    print(tabulate(rows, headers=["embedding", "sync", "the other rank", "the slow rank"]))


if __name__ == "__main__":
    main()
