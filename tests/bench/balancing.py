"""Balancing by what is measured: how far costs and speeds carry, on two real ranks.

`python -m tests.bench.balancing` prints a table. Ranks are slowed, and lengths doubled, by workloads made for it;
`cost-aware` balances.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from fsbench.axes import DEFAULTS, BatchMeta, Sharding
from fsbench.errors import FsbenchError
from fsbench.launch.local import Local
from fsbench.launch.process import die_with_parent
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench_strategies.sharding.cost_aware import CostAware
from fsbench_workloads.lengths import GammaLengths
from fsbench_workloads.long_cpu import LENGTH_SCALE, LENGTH_SHAPE, SHORTEST, LongCpu

RANKS = 2
SETTLED = 20
"""Steps after which what was learned must show."""
SLOWNESS = (1, 2)
"""How often each rank trains its batch."""
SLOW_STEPS = 80
DOUBLED_AT, DOUBLED_STEPS = 60, 140
WORKLOAD = "long-cpu"
_LIMIT = timedelta(seconds=120)


class Informed(CostAware):
    """Knows the speeds beforehand: the ideal split, as far as costs go."""

    def assign(self, batch: BatchMeta) -> np.ndarray:
        return super().assign(dataclasses.replace(batch, speeds=1 / np.array(SLOWNESS)))


class Quick(LongCpu):
    """Without an evaluation, which nothing here asks for."""

    def ranking(self) -> None:
        return None


class SlowRank(Quick):
    """The second rank trains every batch twice, once in vain."""

    def build_model(self, dtype):
        return _repeated(super().build_model(dtype), SLOWNESS[int(os.environ["RANK"])])


class Doubling(Quick):
    """Lengths are halved up to a sample of the stream, and then are not."""

    def prepare(self, data_dir: Path | None, seed: int) -> None:
        super().prepare(data_dir, seed)
        self._short = GammaLengths(LENGTH_SHAPE, LENGTH_SCALE / 2, SHORTEST, self.options.max_len // 2)
        self._long = self._lengths

    def load(self, step: int, rank: int, ranks: int):
        self._lengths = self._short if step < DOUBLED_AT else self._long
        return super().load(step, rank, ranks)


def _repeated(model, times: int):
    import torch

    class Repeated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch, rows):
            for _ in range(times - 1):
                # A copy that is no submodule: its gradients are nobody's.
                in_vain = copy.deepcopy(self.model)
                in_vain(batch, {name: values.detach().requires_grad_() for name, values in rows.items()}).backward()
            return self.model(batch, rows)

    return Repeated()


@dataclass(frozen=True)
class Steps:
    """What a run took, by rank and step, nanoseconds: windows, compute, and waits for stragglers; `floor`: the
    straggler share when both ranks train the same."""

    windows: Sequence[Sequence[int]]
    compute: Sequence[Sequence[int]]
    straggler: Sequence[Sequence[int]]
    floor: float

    def step_ms(self, steps: slice) -> float:
        """The median step; a step takes as long as its slowest rank."""
        return float(np.median(np.max(self.windows, axis=0)[steps])) / 1e6

    def straggler_share(self, steps: slice) -> float:
        return float(np.sum(np.array(self.straggler)[:, steps]) / np.sum(np.array(self.windows)[:, steps]))

    def over_ideal(self, steps: slice) -> float:
        """The slower rank's compute over that of the ideal split of the same work: the median over steps."""
        compute = np.array(self.compute, np.float64)[:, steps]
        speeds = 1 / np.array(SLOWNESS)
        return float(np.median(compute.max(axis=0) / (speeds @ compute / speeds.sum())))


def free(kind: type[CostAware] = CostAware, **options: Any) -> CostAware:
    return kind(CostAware.Options(counts="free", **options))


CASES: dict[str, tuple[Callable[[], LongCpu], Callable[[], Sharding], int]] = {
    "slow, equal speeds": (SlowRank, lambda: free(), SLOW_STEPS),
    "slow, measured speeds": (SlowRank, lambda: free(speeds="measured"), SLOW_STEPS),
    "slow, measured speeds, online costs": (SlowRank, lambda: free(costs="online", speeds="measured"), SLOW_STEPS),
    "slow, known speeds": (SlowRank, lambda: free(Informed), SLOW_STEPS),
    "doubling, flops": (Doubling, lambda: free(), DOUBLED_STEPS),
    "doubling, online": (Doubling, lambda: free(costs="online"), DOUBLED_STEPS),
}


def measure() -> dict[str, Steps]:
    """Every case, one after another, in one pair of fresh ranks.

    Raises:
        FsbenchError: a rank failed.
    """
    with tempfile.TemporaryDirectory(prefix="fsbench-") as folder:
        environment = {**os.environ, **Local().environment(), "WORLD_SIZE": str(RANKS)}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.bench.balancing", folder],
                env={**environment, "RANK": str(rank)},
                preexec_fn=die_with_parent,
            )
            for rank in range(RANKS)
        ]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            raise FsbenchError(f"ranks ended with exit codes {codes}")
        found = json.loads(Path(folder, "steps.json").read_text())
    return {name: Steps(**steps) for name, steps in found.items()}


def calibrated() -> dict:
    """The profile that `fsbench calibrate` makes of the workload here and now."""
    with tempfile.TemporaryDirectory(prefix="fsbench-") as folder:
        path = Path(folder, "profile.json")
        command = [sys.executable, "-m", "fsbench", "calibrate", "--workload", WORKLOAD, "--out", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())


def report(profile: dict, found: dict[str, Steps]) -> str:
    """The three figures that must be reached, and what stands beside them."""
    error, by_flops = profile["error"], profile["measured"]["error_of_flops"]
    held_out = profile["measured"]["rank_batches"]["held_out"]
    known = found["slow, known speeds"].step_ms(slice(SETTLED, None))
    rows = [
        f"cost model of {WORKLOAD} on {held_out} held-out rank-batches: median error "
        f"{error['median']:.1%} (at most 5 %), p95 {error['p95']:.1%}; by operations alone {by_flops['median']:.1%}",
        f"one of {RANKS} ranks slower by {max(SLOWNESS)}, steps {SETTLED} to {SLOW_STEPS}:",
    ]
    for name in ("equal speeds", "measured speeds", "measured speeds, online costs", "known speeds"):
        steps = found[f"slow, {name}"]
        settled = slice(SETTLED, None)
        rows.append(
            f"  {name:<32} step {steps.step_ms(settled):6.1f} ms, / known speeds {steps.step_ms(settled) / known:.3f}, "
            f"compute / ideal split {steps.over_ideal(settled):.3f} (at most 1.1)"
        )
    rows.append(f"lengths doubled at step {DOUBLED_AT}, straggler share before, and from {SETTLED} steps after:")
    for name in ("flops", "online"):
        steps = found[f"doubling, {name}"]
        before = steps.straggler_share(slice(SETTLED, DOUBLED_AT))
        after = steps.straggler_share(slice(DOUBLED_AT + SETTLED, None))
        rows.append(f"  {name:<32} {before:.1%}, {after:.1%} (at most {before:.1%} + floor {steps.floor:.1%})")
    return "\n".join(rows)


def serve(folder: Path) -> None:
    """What a rank does; rank 0 leaves the steps in the folder."""
    import torch
    import torch.distributed as dist

    from fsbench.collect import recorder

    torch.set_num_threads(1)
    recorder.register_backends()
    rank, store = int(os.environ["RANK"]), (folder / "store").as_uri()
    dist.init_process_group(recorder.GLOO, init_method=store, rank=rank, world_size=RANKS, timeout=_LIMIT)
    found = {name: _train(folder, rank, *case) for name, case in CASES.items()}
    if rank == 0:
        (folder / "steps.json").write_text(
            json.dumps({name: dataclasses.asdict(steps) for name, steps in found.items()})
        )
    dist.destroy_process_group()


def _train(folder: Path, rank: int, workload: Callable, sharding: Callable, steps: int) -> Steps | None:
    import torch

    from fsbench.launch.heartbeat import Heartbeat
    from fsbench.metrics.bubbles import BUBBLE_PARTS, account
    from fsbench.train.report import gather_records, run_trace
    from fsbench.train.session import TrainingRun
    from fsbench.train.trainer import Strategies, close_trainer, open_trainer

    prepared = workload()
    prepared.prepare(None, 1)
    others = {axis: create(axis, Spec(name)) for axis, name in DEFAULTS.items() if axis != "sharding"}
    strategies = Strategies(sharding=sharding(), **others)
    trainer = open_trainer(
        prepared, strategies, rank=rank, ranks=RANKS, device=torch.device("cpu"), seed=1, timeout=_LIMIT
    )
    finished = TrainingRun(trainer, steps, Heartbeat(folder, rank)).execute()
    kinds, records = gather_records(trainer, finished)
    whole, floor = (account(run_trace(trainer, records, kinds, which)) for which in (range(steps), finished.floor))
    close_trainer(trainer)
    straggler = whole.of(*BUBBLE_PARTS["straggler"])
    share = floor.shares()["bubble_straggler"]
    return Steps(whole.windows.tolist(), whole.compute.tolist(), straggler.tolist(), share) if rank == 0 else None


def main() -> None:
    if len(sys.argv) > 1:
        serve(Path(sys.argv[1]))
        return
    try:
        print(report(calibrated(), measure()))
    except (FsbenchError, subprocess.CalledProcessError) as error:
        sys.exit(f"not measured: {error}")


if __name__ == "__main__":
    main()
