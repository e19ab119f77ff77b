"""What really ran, for the record: from the recorder. A strategy's own word stands apart, as `evidence`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fsbench.axes import AXES, Strategy
from fsbench.metrics.ranking import ranking_quality
from fsbench.results.schema import plain
from fsbench.train.session import Finished
from fsbench.train.trainer import Trainer

_MOST_EVIDENCE = 2**20
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
        if evidence := _evidence(strategy):
            found[axis]["evidence"] = evidence
    if finished.ranking is not None:
        found["evaluation"] = _evaluation(finished)
    return found


def _evidence(strategy: Strategy) -> dict[str, Any]:
    """A strategy's own details; why there are none, if they cannot be recorded: the run was measured all the same."""
    try:
        evidence = dict(strategy.evidence())
        if len(text := json.dumps(evidence, allow_nan=False)) > _MOST_EVIDENCE:
            raise ValueError(f"{len(text)} characters, expected at most {_MOST_EVIDENCE}")
        plain(evidence, "evidence")
    except Exception as error:
        return {"error": f"not to be recorded: {type(error).__name__}: {error}"}
    return evidence


def _of_class(trainer: Trainer, operations: Operations, waits_as: str) -> dict[str, int]:
    return {
        name: count
        for lane, counts in operations.items()
        if trainer.context.lanes[lane].spec.waits_as == waits_as
        for name, count in counts.items()
    }


def _evaluation(finished: Finished) -> dict[str, Any]:
    assert finished.ranking is not None
    evaluated = {name: ranking_quality(counts.filtered) for name, counts in (finished.evaluated or {}).items()}
    return {
        "protocol": finished.ranking.protocol,
        "users": len(finished.ranking.users),
        "replicas": {name: quality.ndcg.mean if quality else None for name, quality in evaluated.items()},
    }
