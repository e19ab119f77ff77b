"""Plans for tests: two ranks on two hosts, a link of one byte a nanosecond between them, nothing else takes time.

And what a cell records on real ranks, beside what its plan says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fsbench.axes import AXES, CRITICAL, DEFAULTS, DENSE, EXCHANGE, LaneSpec
from fsbench.metrics.bubbles import Bubbles, account
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.sim.batches import Batches
from fsbench.sim.cell import PlannedStrategies, write_cell
from fsbench.sim.engine import Executed, execute
from fsbench.sim.machine import Machine, Rate
from fsbench.sim.plan import MAIN, Collective, Loop, Operation, Script
from fsbench.sim.profile import load_profile
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
    script = Script(on.topology, device)

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


def recorded(rank: int, ranks: int, workload: str, steps: int, axes: dict[str, str]) -> dict[str, list]:
    """Trains for real, on a rank; by lane, (name, kind, bytes) of each operation that the recorder saw."""
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer
    from tests import support

    trainer = support.open_cell(rank, ranks, workload, **axes)
    Driver(trainer, 0, steps).run()
    sequences = {name: lane.log.sequence() for name, lane in trainer.context.lanes.items()}
    close_trainer(trainer)
    return sequences


def written(ranks: int, workload: str, steps: int, axes: dict[str, str]) -> tuple[dict[str, list], dict[str, list]]:
    """What the plan of the same cell says: by lane, the operations of the steps, and those of a round of its loop."""
    from fsbench.train.described import describe

    prepared = create("workloads", Spec.parse(workload))
    prepared.prepare(None, seed=3)
    strategies = PlannedStrategies(**{axis: create(axis, Spec.parse(axes.get(axis, DEFAULTS[axis]))) for axis in AXES})
    described = describe(prepared)
    batches = Batches(prepared, strategies.sharding, ranks, steps, described.row_ids)
    driver = write_cell(strategies, prepared, described, batches, load_profile("local-cpu"), Topology(ranks, 1))
    once: dict[str, list] = {lane.name: [] for lane in strategies.lanes}
    rounds: dict[str, list] = {}
    for item in (item for step in driver.steps() for item in step):
        if isinstance(item, Loop):
            rounds[item.lane] = [each for each in item.next_round(None) if isinstance(each, Collective)]
        elif isinstance(item, Collective):
            once[item.thread].append(item)
    return once, rounds
