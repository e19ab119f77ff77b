"""All-to-all between two ranks on an emulated link: how near the line, and how much of it hides behind compute.

`python -m tests.bench.collectives backend:piece=1MiB host-staged` (as root) prints a line a strategy.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from fsbench.errors import FsbenchError
from fsbench.launch import links
from fsbench.launch.process import die_with_parent
from fsbench.options import Spec
from fsbench.plugins import create

RANKS = 2
ROUNDS = 8
SIZE = 2**24
"""Bytes that each rank sends to the other, and keeps."""
CLUSTER = f"local:ranks={RANKS},link=400mbit"
STRATEGIES = ("backend:piece=1MiB", "backend", "host-staged", "host-staged:buffers=1")
_LIMIT = timedelta(seconds=60)
_WIDTH = 192


@dataclass(frozen=True)
class Times:
    """Milliseconds of the slowest rank, medians over the rounds: the exchange, the compute, and both at once."""

    exchange: float
    compute: float
    both: float

    @property
    def overlap(self) -> float:
        """The share of the shorter of the two that the longer one hides."""
        return (self.exchange + self.compute - self.both) / min(self.exchange, self.compute)


def line_ms() -> float:
    """What the bytes of one rank take at the link's rate."""
    return SIZE * 8 / create("clusters", Spec.parse(CLUSTER)).link.bits_per_s * 1e3


def measure(strategies: Sequence[str], rounds: int = ROUNDS) -> dict[str, Times]:
    """Each strategy's times, in fresh ranks on a network of their own; strategies take turns within a round.

    Raises:
        FsbenchError: this machine has no such network, or a rank failed.
    """
    local = create("clusters", Spec.parse(CLUSTER))
    if reason := local.requirements():
        raise FsbenchError(reason)
    with tempfile.TemporaryDirectory(prefix="fsbench-") as folder, local.open(0):
        environment = {**os.environ, **local.environment()}
        command = [
            *links.enter_host(local.ranks, 1),
            sys.executable,
            "-m",
            "tests.bench.collectives",
            "--folder",
            folder,
        ]
        ranks = [
            subprocess.Popen(
                [*command, "--rounds", str(rounds), *strategies],
                env={**environment, "LOCAL_RANK": str(rank)},
                preexec_fn=die_with_parent,
            )
            for rank in range(RANKS)
        ]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            raise FsbenchError(f"ranks ended with exit codes {codes}")
        figures = json.loads(Path(folder, "times.json").read_text())
    return {name: Times(**times) for name, times in figures.items()}


def report(times: dict[str, Times], rounds: int = ROUNDS) -> str:
    """A line a strategy; `/ first`: beside the first one's exchange."""
    line, first = line_ms(), next(iter(times.values())).exchange
    rows = [
        f"{SIZE / 2**20:g} MiB each way on {CLUSTER}: {line:.1f} ms on the line; medians of {rounds}",
        f"{'strategy':<36}{'exchange ms':>12}{'/ line':>8}{'/ first':>8}{'compute':>9}{'both':>8}{'overlap':>9}",
    ]
    for name, t in times.items():
        ratios = f"{t.exchange / line:>8.3f}{t.exchange / first:>8.3f}"
        rows.append(f"{name:<36}{t.exchange:>12.1f}{ratios}{t.compute:>9.1f}{t.both:>8.1f}{t.overlap:>9.3f}")
    return "\n".join(rows)


class Rank:
    """One rank: its lanes, what it sends, and a loop of matrix products that takes as long as the line."""

    def __init__(self, rank: int, strategies: Sequence[str]) -> None:
        import torch

        from fsbench.axes import EXCHANGE, RankContext
        from fsbench.collect.timeline import Timeline
        from fsbench.train.lanes import open_lanes

        self.rank = rank
        device, timeline = torch.device("cpu"), Timeline(["control", "shuffle", "exchange"])
        self.lanes = open_lanes([EXCHANGE], timeline, device, _LIMIT)
        self.strategies = {name: create("collectives", Spec.parse(name)) for name in strategies}
        for strategy in self.strategies.values():
            context = RankContext(rank, RANKS, device, torch.float32, 0, self.lanes, timeline, strategy)
            strategy.setup(context)
        self.send = torch.full((RANKS * SIZE // 256, 64), float(rank))
        self.factors = torch.rand(_WIDTH, _WIDTH), torch.rand(_WIDTH, _WIDTH), torch.empty(_WIDTH, _WIDTH)
        self.products = self._calibrate()

    def exchange(self, strategy: str):
        half = len(self.send) // RANKS
        splits = [half] * RANKS
        lane = self.lanes["exchange"]
        return self.strategies[strategy].all_to_all(lane, self.send, splits, splits, largest_split=half, kind="rows")

    def compute(self, products: int) -> None:
        import torch

        left, right, out = self.factors
        for _ in range(products):
            torch.mm(left, right, out=out)

    def _calibrate(self) -> int:
        trial = 200
        self.compute(trial)
        return int(trial * line_ms() / min(self.slowest_ms(lambda: self.compute(trial)) for _ in range(5)))

    def slowest_ms(self, act: Callable[[], object]) -> float:
        """Wall time of `act`, begun together: that of the slowest rank."""
        import torch
        import torch.distributed as dist

        dist.barrier()
        started = time.perf_counter()
        act()
        took = torch.tensor([(time.perf_counter() - started) * 1e3], dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        return float(took)

    def times(self, rounds: int) -> dict[str, Times]:
        for name in self.strategies:
            received = self.exchange(name).wait()
            assert received.view(RANKS, -1).mean(1).tolist() == [float(rank) for rank in range(RANKS)]
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in self.strategies}
        for _ in range(rounds):
            for name in self.strategies:
                found[name].append(self._round(name))
        return {name: Times(*map(statistics.median, zip(*rows, strict=True))) for name, rows in found.items()}

    def _round(self, name: str) -> tuple[float, ...]:
        def both() -> None:
            handle = self.exchange(name)
            self.compute(self.products)
            handle.wait()

        return (
            self.slowest_ms(lambda: self.exchange(name).wait()),
            self.slowest_ms(lambda: self.compute(self.products)),
            self.slowest_ms(both),
        )

    def close(self) -> None:
        for strategy in self.strategies.values():
            strategy.close()
        for lane in self.lanes.values():
            lane.close()


def serve(folder: Path, strategies: Sequence[str], rounds: int) -> None:
    """What a rank does; rank 0 leaves the times in the folder."""
    import torch
    import torch.distributed as dist

    from fsbench.collect import recorder

    torch.set_num_threads(1)
    recorder.register_backends()
    number = int(os.environ["LOCAL_RANK"])
    store = (folder / "store").as_uri()
    dist.init_process_group(recorder.GLOO, init_method=store, rank=number, world_size=RANKS, timeout=_LIMIT)
    rank = Rank(number, strategies)
    times = rank.times(rounds)
    if number == 0:
        (folder / "times.json").write_text(json.dumps({name: dataclasses.asdict(t) for name, t in times.items()}))
    rank.close()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strategies", nargs="*", default=list(STRATEGIES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder:
        serve(given.folder, given.strategies, given.rounds)
        return
    try:
        times = measure(given.strategies, rounds=given.rounds)
    except FsbenchError as error:
        sys.exit(f"not measured: {error}")
    print(report(times, given.rounds))


if __name__ == "__main__":
    main()
