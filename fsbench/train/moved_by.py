"""A few steps under the profiler after a run on GPUs: what moved the bytes of its operations, for the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsbench.axes import Engine
from fsbench.collect.profiled import profiled
from fsbench.metrics.movers import IncompleteTrace, Moved, Operations, judge, moved
from fsbench.train.driver import Driver
from fsbench.train.floor import SameForAll, Stay
from fsbench.train.trainer import Trainer

STEPS = 3


@dataclass(frozen=True)
class Seen:
    """On one rank. `reason`: why the trace tells nothing, or None."""

    by_operation: Mapping[Operations, Moved] = field(default_factory=dict)
    reason: str | None = None


def watch_movers(trainer: Trainer, first: int) -> Seen | None:
    """Trains steps from `first` on, which must come after all that is measured; None on a CPU. Collective."""
    if trainer.context.device.type != "cuda":
        return None
    driver = Driver(trainer, first, first + STEPS, workload=SameForAll(trainer.workload), sharding=Stay())
    try:
        return Seen(moved(profiled(driver.run)))
    except IncompleteTrace as error:
        return Seen(reason=f"the profiler's records are incomplete: {error}")


def engine_evidence(asked: Mapping[str, Engine], by_rank: Sequence[Seen]) -> tuple[dict[str, Any], str | None]:
    """What the record says of the engines, in detail that of rank 0; and why the run is a `fallback`, or None."""
    verdicts = [judge(asked, seen.by_operation, len(by_rank)) for seen in by_rank]
    fallback = next((f"rank {rank}: {v.fallback}" for rank, v in enumerate(verdicts) if v.fallback), None)
    unknown = [reason for seen in by_rank if (reason := seen.reason)] + list(verdicts[0].unknown)
    details = {str(operations): _described(of_them) for operations, of_them in by_rank[0].by_operation.items()}
    return {"asked": dict(asked), "steps": STEPS, "operations": details, "unknown": unknown}, fallback


def _described(of_them: Moved) -> dict[str, Any]:
    return {
        "count": of_them.count,
        "by_kernels": of_them.by_kernels,
        "by_copies": of_them.by_copies,
        "unseen": of_them.unseen,
        "records": dict(of_them.records.most_common(5)),
    }
