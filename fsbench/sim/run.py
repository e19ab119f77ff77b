"""One run on a simulated machine, in this process: from an order to an outcome."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsbench.axes import AXES
from fsbench.launch.handover import Order
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench.sim.batches import Batches
from fsbench.sim.cell import Described, PlannedStrategies, write_cell
from fsbench.sim.driver import PlannedDriver
from fsbench.sim.engine import Executed, execute
from fsbench.sim.machine import Machine
from fsbench.sim.plan import Loop, Operation
from fsbench.sim.profile import Profile
from fsbench.sim.report import operations, simulated_metrics
from fsbench.workload import Workload


def simulate(
    order: Order,
    profile: Profile,
    machine: Machine,
    describe: Callable[[Workload], Described],
    on_step: Callable[[], None],
) -> dict[str, Any]:
    """The keyword arguments of `make_record` that the run determines. `on_step`: called before each step is written.

    Raises:
        Unsupported: a strategy that cannot be simulated; why.
    """
    strategies = PlannedStrategies(**{axis: create(axis, order.strategy(axis)) for axis in AXES})
    stream = _stream(order, machine.topology.ranks, describe)
    driver = write_cell(strategies, stream.workload, stream.described, stream.batches, profile, machine.topology)
    executed = execute(_watched(driver, on_step), machine)
    metrics = simulated_metrics(executed, strategies.lanes, driver.written, driver.synced, strategies.embedding)
    return {"kind": "sim", **metrics, "observed": _observed(executed, strategies, driver, stream, profile, machine)}


@dataclass(frozen=True)
class _Stream:
    """What cells have in common that train the same, dealt to the same ranks by the same sharding."""

    workload: Workload
    described: Described
    batches: Batches


_STREAMS: OrderedDict[str, _Stream] = OrderedDict()
"""The last `_KEPT`, by what they depend on: a matrix asks for the same ones again and again."""
_KEPT = 2


def _stream(order: Order, ranks: int, describe: Callable[[Workload], Described]) -> _Stream:
    key = repr((order.cell["workload"], order.cell["sharding"], ranks, order.seed, order.steps, order.data_dir))
    if key not in _STREAMS:
        workload: Workload = create("workloads", Spec.parse(order.cell["workload"]))
        workload.prepare(Path(order.data_dir) if order.data_dir else None, order.seed)
        described = describe(workload)
        sharding = create("sharding", order.strategy("sharding"))
        _STREAMS[key] = _Stream(workload, described, Batches(workload, sharding, ranks, order.steps, described.row_ids))
    _STREAMS.move_to_end(key)
    while len(_STREAMS) > _KEPT:
        _STREAMS.popitem(last=False)
    return _STREAMS[key]


def _watched(driver: PlannedDriver, on_step: Callable[[], None]) -> Iterator[Sequence[Operation | Loop]]:
    for step in driver.steps():
        on_step()
        yield step


def _observed(
    executed: Executed,
    strategies: PlannedStrategies,
    driver: PlannedDriver,
    stream: _Stream,
    profile: Profile,
    machine: Machine,
) -> dict[str, Any]:
    """As of a real run, but that it is the plan that says what was issued."""
    found: dict[str, Any] = {
        axis: {"operations": operations(executed, strategies.lanes, waits_as)}
        for axis, waits_as in (("sharding", "shuffle"), ("embedding", "embedding"), ("sync", "dense"))
    }
    found["sharding"] |= {
        "samples": sum(int(step.dealt.samples.sum()) for step in driver.written),
        "moved": sum(step.dealt.moved for step in driver.written),
        **stream.batches.weighing,
    }
    found["collectives"] = {"device": profile.device}
    for axis in AXES:
        found[axis]["exact"] = getattr(strategies, axis).exact
    topology = machine.topology
    found["simulated"] = {
        "profile": profile.path.name,
        "constants": dict(profile.values),
        "hosts": topology.hosts,
        "ranks_a_host": topology.ranks_a_host,
        "rows": stream.batches.evidence(),
        "bytes_per_s": {link: rate.bytes_per_s for link, rate in machine.links.items()},
    }
    return found
