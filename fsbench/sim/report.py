"""From what was executed to the outcome of a run: the same metrics, by the same code, as of real ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fsbench.axes import EmbeddingExchange, LaneSpec
from fsbench.metrics.bubbles import BUBBLE_PARTS, Bubbles, account
from fsbench.metrics.collisions import enter_collisions
from fsbench.metrics.lookups import enter_lookups
from fsbench.metrics.sheet import Sheet
from fsbench.metrics.summary import Trained, summarise
from fsbench.metrics.syncs import enter_syncs
from fsbench.metrics.trace import RunTrace
from fsbench.results.schema import METRICS, NOT_COLLECTED
from fsbench.sim.driver import Written
from fsbench.sim.engine import Executed
from fsbench.sim.plan import Collective, Operation
from fsbench.sim.timeline import run_trace

MAX_WARMUP = 5
_NO_STEP = "no step was measured"
_OF_TABLES = ("collision_rate", "collision_rate_p99", "owner_imbalance", "hot_coverage", "staleness_steps")
_NOT_SIMULATED = "a simulated machine trains nothing and has no memory: only time and bytes are simulated"


def simulated_metrics(
    executed: Executed,
    lanes: Sequence[LaneSpec],
    written: Sequence[Written],
    synced: Iterable[Operation],
    embedding: EmbeddingExchange,
) -> dict[str, Any]:
    """The keyword arguments `metrics`, `missing` and `per_rank` of `make_record`. As many steps are left out at first
    as of a real run. `synced`: see `SyncPlan`."""
    measured = range(min(MAX_WARMUP, len(written) // 4), len(written))
    whole = run_trace(executed, lanes)
    trace = RunTrace(
        [rank.steps(measured) for rank in whole.ranks], whole.lanes, whole.lane_names, True, whole.kind_names
    )
    bubbles = account(trace)
    sheet = Sheet()
    steps = written[measured.start :]
    summarise(sheet, trace, bubbles, _trained(steps, _sent(executed, lanes, len(written))))
    sheet.enter("steps_measured", len(measured), _NO_STEP)
    sheet.enter("train_s", int(bubbles.step_ns.sum()) * 1e-9, _NO_STEP)
    _enter_rows(sheet, written, steps, embedding)
    _enter_syncs(sheet, executed, trace, synced)
    for name in METRICS.keys() - sheet.metrics.keys() - NOT_COLLECTED - {"compute_inflation"}:
        sheet.enter(name, None, _NOT_SIMULATED)
    return {"metrics": sheet.metrics, "missing": sheet.missing, "per_rank": _per_rank(bubbles)}


def operations(executed: Executed, lanes: Iterable[LaneSpec], waits_as: str) -> dict[str, int]:
    """How many operations of each name the lanes of a class carried on a rank."""
    counts: dict[str, int] = {}
    for spec in lanes:
        for operation in _collectives(executed, spec) if spec.waits_as == waits_as else ():
            name = f"{operation.name} {operation.kind}"
            counts[name] = counts.get(name, 0) + 1
    return counts


def _collectives(executed: Executed, spec: LaneSpec) -> list[Collective]:
    return [operation for operation in executed.threads.get(spec.name, ()) if isinstance(operation, Collective)]


def _trained(steps: Sequence[Written], sent: dict[tuple[str, str], float]) -> Trained:
    def stack(name: str) -> Any:
        return np.stack([getattr(step.dealt, name) for step in steps], axis=1)

    return Trained(*(stack(name) for name in ("samples", "tokens", "longest", "flops", "costs")), sent=sent)


def _sent(executed: Executed, lanes: Iterable[LaneSpec], steps: int) -> dict[tuple[str, str], float]:
    """Bytes a step by (wait class, kind), all ranks, what was pending after the last step included."""
    totals: dict[tuple[str, str], float] = {}
    for spec in lanes:
        for operation in _collectives(executed, spec):
            key = spec.waits_as, operation.kind
            totals[key] = totals.get(key, 0.0) + float(operation.traffic.sent.sum()) / steps
    return totals


def _enter_rows(
    sheet: Sheet, written: Sequence[Written], measured: Sequence[Written], embedding: EmbeddingExchange
) -> None:
    asked = [step.asked.tolist() for step in measured if step.asked.ndim]
    if not asked:
        sheet.withhold(_OF_TABLES, "the workload has no embedding table")
        return
    enter_lookups(sheet, [asked], [{}])
    sheet.enter("staleness_steps", embedding.staleness, "nothing bounds it, and it is not simulated")
    # Of rows that are estimated nobody knows which they are. Those of the first steps are always counted.
    counted = [[(step.again, step.touched) for step in steps[:-1] if step.touched] for steps in (measured, written)]
    enter_collisions(sheet, np.array(counted[0] or counted[1], np.int64).reshape(-1, 2))


def _enter_syncs(sheet: Sheet, executed: Executed, trace: RunTrace, synced: Iterable[Operation]) -> None:
    known = [executed.times[operation].end for operation in synced if operation in executed.times]
    ends = np.array([end for end in known if end is not None], np.int64).reshape(-1, executed.ranks)
    steps, seconds = [], 0.0
    for rank, main in enumerate(trace.ranks):
        begin, end = int(main.step_begin[0]), int(main.step_end[-1])
        inside = ends[(ends[:, rank] >= begin) & (ends[:, rank] < end), rank]
        steps.append(np.searchsorted(main.step_end, inside, side="right"))
        seconds = max(seconds, (end - begin) * 1e-9)
    enter_syncs(sheet, steps, seconds)


def _per_rank(bubbles: Bubbles) -> list[dict[str, float]]:
    """Milliseconds by part over all measured steps."""
    rows = []
    for parts in bubbles.totals_by_rank():
        row = {"window_ms": sum(parts.values()) / 1e6, "compute_ms": parts["compute"] / 1e6}
        rows.append(row | {f"{name}_ms": sum(parts[part] for part in of) / 1e6 for name, of in BUBBLE_PARTS.items()})
    return rows
