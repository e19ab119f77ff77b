"""Plans for tests: two ranks on two hosts, a link of one byte a nanosecond between them, nothing else takes time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fsbench.axes import CRITICAL, DENSE, EXCHANGE, LaneSpec
from fsbench.metrics.bubbles import Bubbles, account
from fsbench.sim.engine import Executed, execute
from fsbench.sim.machine import Machine, Rate
from fsbench.sim.plan import MAIN, Operation, Script
from fsbench.sim.timeline import run_trace
from fsbench.sim.topology import Topology

LANES = (EXCHANGE, CRITICAL, DENSE)
TWO = Topology(2, 1)
RATES = {"host": Rate(2e9), "memory": Rate(2e9), "rail": Rate(1e9), "across": Rate(1e9), "pcie": Rate(1e9)}


def machine(topology: Topology = TWO, **other: object) -> Machine:
    return Machine(topology, **{"links": RATES, **other})


def run(write: Callable[[Script], None], on: Machine | None = None, *, device: str = "gpu", steps: int = 1) -> Executed:
    """Executes a plan of which `write` writes each step."""
    on = on or machine()
    script = Script(on.topology, device, LANES)

    def written():
        for _ in range(steps):
            write(script)
            yield script.end_step()

    return execute(written(), on)


def bubbles(executed: Executed) -> Bubbles:
    return account(run_trace(executed, LANES))


def ends(executed: Executed, thread: str = MAIN) -> list[list[int]]:
    """By operation of a thread, when it ends on each rank."""
    return [executed.times[operation].end.tolist() for operation in executed.threads[thread]]


def send(script: Script, lane: LaneSpec, size: int, **other: object) -> Operation:
    """Every rank sends `size` bytes to every other one."""
    between = np.full((script.ranks, script.ranks), size)
    return script.issue(lane, "all_to_all", script.topology.all_to_all(between), kind="rows", **other)
