"""What really ran, for the record: from the recorder. A strategy's own word stands apart, as `evidence`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsbench.axes import AXES
from fsbench.train.evidence import evidence_of
from fsbench.train.quality import evaluation_evidence
from fsbench.train.session import Finished
from fsbench.train.trainer import Trainer

Operations = Mapping[str, Mapping[str, int]]
"""How many operations of each name, by lane."""


def observed(trainer: Trainer, finished: Finished, operations: Operations) -> dict[str, Any]:
    """By axis: the operations that its lanes carried on this rank over the whole run, evaluation included."""
    lanes = {name: lane.group.getBackendName() for name, lane in trainer.context.lanes.items()}
    found: dict[str, Any] = {
        "sharding": {
            "samples": sum(int(step.samples.sum()) for step in finished.stats),
            "moved": sum(step.moved for step in finished.stats),
            **finished.weighing,
            "operations": _of_class(trainer, operations, "shuffle"),
        },
        "embedding": {"operations": _of_class(trainer, operations, "embedding")},
        "collectives": {"device": str(trainer.context.device), "lanes": lanes},
        "sync": {"operations": _of_class(trainer, operations, "dense")},
    }
    if servers := trainer.context.servers:
        found["servers"] = {
            lane.name: {"peak_rss_mib": lane.peak_rss_mib()} for of_role in servers.values() for lane in of_role
        }
    for axis in AXES:
        strategy = getattr(trainer.strategies, axis)
        found[axis]["exact"] = strategy.exact
        if evidence := evidence_of(strategy):
            found[axis]["evidence"] = evidence
    if finished.evaluation is not None:
        found["evaluation"] = evaluation_evidence(finished.evaluation, finished)
    return found


def _of_class(trainer: Trainer, operations: Operations, waits_as: str) -> dict[str, int]:
    return {
        name: count
        for lane, counts in operations.items()
        if trainer.context.lanes[lane].spec.waits_as == waits_as
        for name, count in counts.items()
    }
