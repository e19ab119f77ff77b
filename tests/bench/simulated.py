"""How long simulated runs take, and how much memory: `python -m tests.bench.simulated [WORKLOAD]`, on one core.

The 16 cells of the built-in matrix on 256 ranks for 200 steps, then one cell on 2,048 ranks for 20.
Reading the workload and importing torch are included.
"""

from __future__ import annotations

import itertools
import os
import resource
import sys
import time

from fsbench.axes import AXES
from fsbench.launch.handover import Order
from fsbench.launch.simulated import Simulated
from fsbench.matrix import BUILT_IN


def seconds(workload: str, ranks: int, steps: int, axes: dict[str, list[str]]) -> float:
    """Of all cells of these strategies, in this process."""
    cluster = Simulated(Simulated.Options("h100-ib200", ranks))
    begun = time.perf_counter()
    for chosen in itertools.product(*(axes[axis] for axis in AXES)):
        cell = {"workload": workload, "cluster": "", **dict(zip(AXES, chosen, strict=True))}
        cluster.simulate(Order(cell, seed=1, steps=steps, time_limit_s=600, data_dir=None), lambda: None)
    return time.perf_counter() - begun


def main() -> None:
    os.sched_setaffinity(0, {0})
    workload = sys.argv[1] if len(sys.argv) > 1 else "long-cpu"
    one = {axis: [BUILT_IN[axis][-1]] for axis in AXES} | {"sharding": ["naive"]}
    for ranks, steps, axes in ((256, 200, {axis: list(BUILT_IN[axis]) for axis in AXES}), (2048, 20, one)):
        took = seconds(workload, ranks, steps, axes)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{workload}, {ranks} ranks x {steps} steps: {took:.1f} s, at most {peak:.0f} MiB so far", flush=True)


if __name__ == "__main__":
    main()
