"""What a slow trainer costs the others: rank 1 at half speed, under each embedding exchange, without dense sync.

`python -m tests.bench.slow_trainer [--cluster local:ranks=2,link=400mbit] [parameter-server plain ...]` (as root, for
the link) prints a line a strategy: how fast each rank is while rank 1 is slow, over its speed while it is not.
"""

from __future__ import annotations

import argparse
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
from fsbench_strategies.sync.none import NoSync
from tests import fakes, sessions

STRATEGIES = ("parameter-server", "plain")
SLOW_RANK = 1


class SlowTrainer(NoSync):
    """`none`, and rank 1 computes on after each step for as long as the step took.

    A sleep would leave its core to the other rank. The work is torch's, so that its lanes' threads need not wait.
    """

    def setup(self, context: Any) -> None:
        super().setup(context)
        self._matrix = torch.ones(128, 128)
        self._ended = time.monotonic()

    def after_step(self) -> None:
        super().after_step()
        if self.context.rank == SLOW_RANK:
            until = 2 * time.monotonic() - self._ended
            while time.monotonic() < until:
                self._matrix @ self._matrix
        self._ended = time.monotonic()


def measure(strategies: Sequence[str], cluster: str, steps: int, repeats: int) -> list[dict[str, Any]]:
    """Records of interleaved runs."""
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name, "set")
        fakes.install(folder, "slow-trainers", {"sync": {"slow-trainer": "tests.bench.slow_trainer:SlowTrainer"}})
        path = os.pathsep.join(filter(None, (name, str(Path.cwd()), os.environ.get("PYTHONPATH"))))
        chosen = [word for strategy in strategies for word in ("--embedding", strategy)]
        command = [sys.executable, "-m", "fsbench", "run", "--workload", "sparse", "--on", cluster, *chosen]
        command += ["--sync", "none", "--sync", "slow-trainer", "--steps", str(steps), "--repeats", str(repeats)]
        subprocess.run([*command, "--out", str(out)], env={**os.environ, "PYTHONPATH": path}, check=True, stdout=2)
        return sessions.all_records(out)


def speeds(records: Sequence[dict[str, Any]], strategy: str, sync: str, rank: int) -> list[float]:
    """Steps a second of one rank, by repeat."""
    of_cell = [r for r in records if (r["cell"]["embedding"], r["cell"]["sync"]) == (strategy, sync)]
    return [
        r["metrics"]["steps_measured"] * 1000 / r["per_rank"][rank]["window_ms"]
        for r in sorted(of_cell, key=lambda r: r["repeat"])
    ]


def change(records: Sequence[dict[str, Any]], strategy: str, rank: int) -> Estimate:
    """Speed of a rank while rank 1 is slow, over its speed while it is not."""
    slow, usual = (speeds(records, strategy, sync, rank) for sync in ("slow-trainer", "none"))
    return paired([math.log(one / other) for one, other in zip(slow, usual, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("strategies", nargs="*", default=STRATEGIES)
    parser.add_argument("--cluster", default="local:ranks=2,link=400mbit")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=6)
    asked = parser.parse_args()
    strategies = [str(Spec.parse(strategy)) for strategy in asked.strategies]
    records = measure(strategies, asked.cluster, asked.steps, asked.repeats)
    rows = []
    for strategy in strategies:
        rows.append((strategy, *(ratio_text(change(records, strategy, rank)) for rank in (1 - SLOW_RANK, SLOW_RANK))))
    print(tabulate(rows, headers=["embedding", "the other rank", "the slow rank"]))


if __name__ == "__main__":
    main()
