"""From what each rank recorded to the outcome of a run: gathered on rank 0, computed by `fsbench.metrics`."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fsbench.axes import AXES
from fsbench.collect.timeline import marker_cost_ns
from fsbench.metrics.bubbles import BUBBLE_PARTS, Bubbles, account
from fsbench.metrics.ranking import ranking_quality
from fsbench.metrics.summary import Trained, summarise
from fsbench.metrics.trace import LaneOps, LaneTrace, RankTrace, RunTrace
from fsbench.train.evaluation import CHUNK_USERS, RankCounts, count_ranks
from fsbench.train.pipeline import ShardStats
from fsbench.train.session import Finished
from fsbench.train.trainer import Trainer
from fsbench.workload import Ranking

_LAST_STEPS = 10
_QUALITY = (
    "ndcg_at_10",
    "ndcg_at_10_se",
    "hr_at_10",
    "hr_at_10_se",
    "ndcg_at_10_unfiltered",
    "hr_at_10_unfiltered",
    "popularity_ndcg_at_10",
)


@dataclass(frozen=True)
class RankRecord:
    """What one rank hands in."""

    trace: RankTrace
    operations: dict[str, dict[str, int]]
    ops: dict[str, LaneOps]
    marker_ns: float
    peak_rss_mib: float
    lookahead_bytes: int
    evidence: dict[str, Any]


def build_report(trainer: Trainer, finished: Finished) -> dict[str, Any] | None:
    """The keyword arguments of `make_record` that a finished run determines; None on ranks other than 0. Collective."""
    kinds = _agree_on_kinds(trainer)
    records: list[Any] = [None] * trainer.context.ranks
    dist.all_gather_object(records, _record(trainer, finished, kinds))
    if trainer.context.rank:
        return None
    trace = _run_trace(trainer, records, kinds, finished.measured)
    bubbles = account(trace)
    stats = finished.stats[finished.measured.start : finished.measured.stop]
    metrics, missing = summarise(trace, bubbles, _trained(trainer, stats))
    for part in (_quality(finished), _floor(trainer, records, kinds, finished), _run(finished, records, bubbles)):
        metrics |= part[0]
        missing |= part[1]
    return {
        "kind": "cpu" if trainer.context.device.type == "cpu" else "gpu",
        "metrics": metrics,
        "missing": missing,
        "observed": _observed(trainer, finished, records),
        "per_rank": _per_rank(records, bubbles),
    }


def _agree_on_kinds(trainer: Trainer) -> list[str]:
    mine = sorted(set().union(*(lane.log.kinds() for lane in trainer.context.lanes.values())))
    everyone: list[Any] = [None] * trainer.context.ranks
    dist.all_gather_object(everyone, mine)
    return sorted(set().union(*everyone))


def _record(trainer: Trainer, finished: Finished, kinds: list[str]) -> RankRecord:
    rss_unit = 1 if sys.platform == "darwin" else 2**10
    largest = max((step.own_bytes for step in finished.stats), default=0)
    return RankRecord(
        trace=trainer.context.timeline.trace(),
        operations={name: lane.log.operations() for name, lane in trainer.context.lanes.items()},
        ops={name: lane.log.arrays(kinds) for name, lane in trainer.context.lanes.items()},
        marker_ns=marker_cost_ns(),
        peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * rss_unit / 2**20,
        lookahead_bytes=largest * trainer.strategies.lookahead,
        evidence={axis: dict(getattr(trainer.strategies, axis).evidence()) for axis in AXES},
    )


def _run_trace(trainer: Trainer, records: list[RankRecord], kinds: list[str], steps: range) -> RunTrace:
    names = trainer.context.timeline.lanes
    lanes = {
        name: LaneTrace(trainer.context.lanes[name].spec.waits_as, [record.ops[name] for record in records])
        for name in names
    }
    ranks = [record.trace.steps(steps) for record in records]
    return RunTrace(ranks, lanes, names, shared_clock=True, kind_names=tuple(kinds))


def _trained(trainer: Trainer, stats: list[ShardStats]) -> Trained:
    def stack(name: str) -> Any:
        rows = [getattr(step, name) for step in stats]
        return np.stack(rows, axis=1) if rows else np.zeros((trainer.context.ranks, 0))

    return Trained(
        samples=stack("samples"),
        tokens=stack("tokens"),
        longest=stack("longest"),
        flops=stack("cost"),
        costs=stack("cost"),
    )


def _quality(finished: Finished) -> tuple[dict[str, Any], dict[str, str]]:
    if finished.ranking is None or finished.evaluated is None:
        return {}, dict.fromkeys(_QUALITY, "the workload measures no ranking")
    headline = next(iter(finished.evaluated.values()))
    filtered, unfiltered = ranking_quality(headline.filtered), ranking_quality(headline.unfiltered)
    popularity = ranking_quality(popularity_counts(finished.ranking))
    if filtered is None or unfiltered is None or popularity is None:
        return {}, dict.fromkeys(_QUALITY, "no user has a held-out event")
    metrics = {
        "ndcg_at_10": filtered.ndcg.mean,
        "ndcg_at_10_se": filtered.ndcg.standard_error,
        "hr_at_10": filtered.hr.mean,
        "hr_at_10_se": filtered.hr.standard_error,
        "ndcg_at_10_unfiltered": unfiltered.ndcg.mean,
        "hr_at_10_unfiltered": unfiltered.hr.mean,
        "popularity_ndcg_at_10": popularity.ndcg.mean,
    }
    return metrics, {name: "one user has no spread" for name, value in metrics.items() if value is None}


def popularity_counts(ranking: Ranking) -> Any:
    """int64[users, 2]: the same counts for the popularity baseline, under the same protocol (seen items removed)."""
    users = np.arange(len(ranking.users))
    scores = torch.from_numpy(ranking.baseline_scores)
    parts = [
        count_ranks(scores.expand(len(chunk), -1), ranking.targets[chunk], ranking.seen.take(chunk), chunk).numpy()
        for chunk in np.split(users, range(CHUNK_USERS, len(users), CHUNK_USERS))
    ]
    return np.concatenate(parts)[:, :2]


def _floor(
    trainer: Trainer, records: list[RankRecord], kinds: list[str], finished: Finished
) -> tuple[dict[str, Any], dict[str, str]]:
    floor = account(_run_trace(trainer, records, kinds, finished.floor)).shares()
    share = floor.get("bubble_straggler")
    return {"straggler_floor": share}, {} if share is not None else {"straggler_floor": "no floor step was run"}


def _run(finished: Finished, records: list[RankRecord], bubbles: Bubbles) -> tuple[dict[str, Any], dict[str, str]]:
    window = int(bubbles.windows.sum())
    marks = [record.marker_ns * len(record.trace.steps(finished.measured).starts) for record in records]
    last = finished.losses[-_LAST_STEPS:]
    metrics: dict[str, Any] = {
        "steps_measured": len(finished.measured),
        "train_s": int(bubbles.step_ns.sum()) * 1e-9,
        "timeline_overhead": sum(marks) / window if window else None,
        "loss": float(np.mean(last)) if last else None,
        "peak_rss_mib": max(record.peak_rss_mib for record in records),
        "lookahead_mib": max(record.lookahead_bytes for record in records) / 2**20,
    }
    return metrics, {name: "no step was measured" for name, value in metrics.items() if value is None}


def _observed(trainer: Trainer, finished: Finished, records: list[RankRecord]) -> dict[str, Any]:
    """What ran, as the recorder saw it on rank 0: never a strategy's own word, which stands apart as `evidence`."""
    operations = records[0].operations
    moved = sum(step.moved for step in finished.stats)
    seen = sum(int(step.samples.sum()) for step in finished.stats)
    engine = "gloo" if trainer.context.device.type == "cpu" else "nccl"
    lanes = {name: lane.group.getBackendName() for name, lane in trainer.context.lanes.items()}
    observed: dict[str, Any] = {
        "sharding": {"samples": seen, "moved": moved, "operations": operations.get("shuffle", {})},
        "embedding": {
            "operations": {
                name: count
                for lane, counts in operations.items()
                if trainer.context.lanes[lane].spec.waits_as == "embedding"
                for name, count in counts.items()
            }
        },
        "collectives": {"engine": engine, "lanes": lanes},
        "sync": {"operations": operations.get("dense", {})},
    }
    for axis in AXES:
        if evidence := records[0].evidence[axis]:
            observed[axis]["evidence"] = evidence
    if finished.ranking is not None:
        observed["evaluation"] = {
            "protocol": finished.ranking.protocol,
            "users": len(finished.ranking.users),
            "replicas": _replicas(finished.evaluated or {}),
        }
    return observed


def _replicas(evaluated: dict[str, RankCounts]) -> dict[str, float | None]:
    quality = {name: ranking_quality(counts.filtered) for name, counts in evaluated.items()}
    return {name: found.ndcg.mean if found else None for name, found in quality.items()}


def _per_rank(records: list[RankRecord], bubbles: Bubbles) -> list[dict[str, Any]]:
    """Milliseconds by part over all measured steps, and memory, for each rank."""
    rows = []
    for record, parts in zip(records, bubbles.totals_by_rank(), strict=True):
        row: dict[str, Any] = {"window_ms": sum(parts.values()) / 1e6, "compute_ms": parts["compute"] / 1e6}
        for name, members in BUBBLE_PARTS.items():
            row[f"{name}_ms"] = sum(parts[member] for member in members) / 1e6
        rows.append(row | {"peak_rss_mib": record.peak_rss_mib})
    return rows
