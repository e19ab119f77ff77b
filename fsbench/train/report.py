"""From what each rank recorded to the outcome of a run: gathered on rank 0, computed by `fsbench.metrics`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fsbench.axes import Sync
from fsbench.collect.interface import LinkUse, bypass, link_evidence
from fsbench.collect.memory import peak_rss_mib
from fsbench.collect.timeline import marker_cost_ns
from fsbench.metrics.bubbles import BUBBLE_PARTS, Bubbles, account
from fsbench.metrics.collisions import enter_collisions
from fsbench.metrics.gpus import GpuSamples, enter_gpus
from fsbench.metrics.lookups import enter_lookups
from fsbench.metrics.sheet import Sheet
from fsbench.metrics.summary import Trained, summarise
from fsbench.metrics.syncs import enter_syncs
from fsbench.metrics.trace import LaneOps, LaneTrace, RankTrace, RunTrace
from fsbench.train.moved_by import Seen, engine_evidence
from fsbench.train.observed import observed
from fsbench.train.quality import enter_quality
from fsbench.train.session import Finished
from fsbench.train.shard_stats import ShardStats
from fsbench.train.trainer import Trainer

_LAST_STEPS = 10
_NO_STEP = "no step was measured"
_OF_TABLES = ("collision_rate", "collision_rate_p99", "owner_imbalance", "hot_coverage", "staleness_steps")


@dataclass(frozen=True)
class Watched:
    """What was seen beside the run of a rank. `gpu`: samples of its device, of the whole run. `moved`: what moved the
    bytes between GPUs; None on a CPU."""

    gpu: GpuSamples
    moved: Seen | None


UNWATCHED = Watched(GpuSamples.none("no GPU was sampled", pid=0), None)


@dataclass(frozen=True)
class RankRecord:
    """What one rank hands in. `flops`: of what it trained in each step. `peak_gpu_mib`: None on a CPU. `link_use`: None
    without a link."""

    trace: RankTrace
    operations: dict[str, dict[str, int]]
    ops: dict[str, LaneOps]
    marker_ns: float
    clock_bound_ns: int | None
    peak_rss_mib: float
    peak_gpu_mib: float | None
    lookahead_bytes: int
    flops: list[float]
    sent: dict[tuple[str, str], int]
    link_use: LinkUse | None
    watched: Watched
    syncs: Sequence[Sync]
    rows_asked: Sequence[Sequence[int]]
    rows_by_class: Mapping[str, int]
    stalest: int


def build_report(trainer: Trainer, finished: Finished, watched: Watched = UNWATCHED) -> dict[str, Any] | None:
    """The keyword arguments of `make_record` that a finished run determines; None on ranks other than 0. Collective.

    A run whose bytes did not cross its link has no metrics: whatever they were, they were not those of its cluster.
    """
    kinds, records = gather_records(trainer, finished, watched)
    if trainer.context.rank:
        return None
    evidence = observed(trainer, finished, records[0].operations)
    if uses := [record.link_use for record in records if record.link_use]:
        evidence["link"] = link_evidence(uses)
        if reason := bypass(uses):
            return {"status": "failed", "reason": reason, "observed": evidence}
    trace = run_trace(trainer, records, kinds, finished.measured)
    bubbles = account(trace)
    floor = account(run_trace(trainer, records, kinds, finished.floor))
    sheet = Sheet()
    summarise(sheet, trace, bubbles, _trained(trainer, finished, records))
    sheet.enter("straggler_floor", floor.shares().get("bubble_straggler"), "no step of the noise floor was run")
    _enter_embedding(sheet, trainer, finished, records)
    enter_quality(sheet, finished)
    _enter_run(sheet, finished, records, bubbles)
    spans = [record.trace.steps(finished.measured).span for record in records]
    if gpus := enter_gpus(sheet, [record.watched.gpu for record in records], spans):
        evidence["gpus"] = gpus
    return {
        **_judged(trainer, records, evidence),
        "metrics": sheet.metrics,
        "missing": sheet.missing,
        "observed": evidence,
        "per_rank": [_rank_row(*pair) for pair in zip(records, bubbles.totals_by_rank(), strict=True)],
    }


def _judged(trainer: Trainer, records: list[RankRecord], evidence: dict[str, Any]) -> dict[str, Any]:
    """Puts what moved the bytes into the evidence; the status of a run in which that was not what was asked for."""
    seen = [record.watched.moved for record in records if record.watched.moved]
    if not seen:
        return {}
    engines, fallback = engine_evidence(trainer.strategies.collectives.engines(), seen)
    evidence["collectives"]["engines"] = engines
    return {"status": "fallback", "reason": fallback} if fallback else {}


def gather_records(
    trainer: Trainer, finished: Finished, watched: Watched = UNWATCHED
) -> tuple[list[str], list[RankRecord]]:
    """What the bytes of any lane were, in the order of their codes, and the records of all ranks. Collective."""
    kinds = _agree_on_kinds(trainer)
    records: list[Any] = [None] * trainer.context.ranks
    dist.all_gather_object(records, _record(trainer, finished, kinds, watched))
    return kinds, records


def _agree_on_kinds(trainer: Trainer) -> list[str]:
    """What the bytes of any lane on any rank were, in one order for all."""
    everyone: list[Any] = [None] * trainer.context.ranks
    dist.all_gather_object(everyone, [kind for lane in trainer.context.lanes.values() for kind in lane.log.kinds()])
    return sorted(set().union(*everyone))


def _record(trainer: Trainer, finished: Finished, kinds: list[str], watched: Watched) -> RankRecord:
    on_gpu = trainer.context.device.type == "cuda"
    timeline = trainer.context.timeline
    largest = max((step.own_bytes for step in finished.stats), default=0)
    return RankRecord(
        trace=timeline.trace(),
        operations={name: lane.log.operations() for name, lane in trainer.context.lanes.items()},
        ops={name: lane.log.arrays(kinds) for name, lane in trainer.context.lanes.items()},
        marker_ns=marker_cost_ns(timeline),
        clock_bound_ns=timeline.clock_bound_ns,
        peak_rss_mib=peak_rss_mib(),
        peak_gpu_mib=torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
        lookahead_bytes=largest * trainer.strategies.lookahead,
        flops=[step.own_flops for step in finished.stats],
        sent=finished.sent,
        link_use=finished.link_use,
        watched=watched,
        syncs=trainer.strategies.sync.syncs(),
        rows_asked=finished.rows_asked,
        rows_by_class=finished.rows_by_class,
        stalest=finished.stalest,
    )


def run_trace(trainer: Trainer, records: list[RankRecord], kinds: list[str], steps: range) -> RunTrace:
    """The timeline of all ranks over a range of their windows."""
    lanes = {
        name: LaneTrace(lane.spec.waits_as, [record.ops[name] for record in records], lane.collective)
        for name, lane in trainer.context.lanes.items()
    }
    ranks = [record.trace.steps(steps) for record in records]
    return RunTrace(ranks, lanes, trainer.context.timeline.lanes, shared_clock=True, kind_names=tuple(kinds))


def _trained(trainer: Trainer, finished: Finished, records: list[RankRecord]) -> Trained:
    measured = slice(finished.measured.start, finished.measured.stop)
    stats: list[ShardStats] = finished.stats[measured]

    def stack(name: str) -> Any:
        rows = [getattr(step, name) for step in stats]
        return np.stack(rows, axis=1) if rows else np.zeros((trainer.context.ranks, 0))

    steps = len(finished.losses)
    keys = sorted({key for record in records for key in record.sent})
    sent = {key: sum(record.sent.get(key, 0) for record in records) / steps for key in keys}
    return Trained(
        stack("samples"),
        stack("tokens"),
        stack("longest"),
        flops=np.array([record.flops[measured] for record in records]),
        costs=stack("predicted"),
        sent=sent,
    )


def _enter_run(sheet: Sheet, finished: Finished, records: list[RankRecord], bubbles: Bubbles) -> None:
    marks = [record.marker_ns * len(record.trace.steps(finished.measured).starts) for record in records]
    last = finished.losses[-_LAST_STEPS:]
    bounds = [record.clock_bound_ns for record in records if record.clock_bound_ns is not None]
    on_gpus = [record.peak_gpu_mib for record in records if record.peak_gpu_mib is not None]
    sheet.enter("steps_measured", len(finished.measured), _NO_STEP)
    sheet.enter("train_s", int(bubbles.step_ns.sum()) * 1e-9, _NO_STEP)
    sheet.enter_ratio("timeline_overhead", sum(marks), int(bubbles.windows.sum()), _NO_STEP)
    sheet.enter("clock_bound_us", max(bounds) / 1e3 if bounds else None, "the timeline is the host's own")
    _enter_syncs(sheet, finished, records)
    sheet.enter("loss", float(np.mean(last)) if last else None, _NO_STEP)
    sheet.enter("peak_rss_mib", max(record.peak_rss_mib for record in records), _NO_STEP)
    sheet.enter("peak_gpu_mib", max(on_gpus) if on_gpus else None, "trained on CPU")
    sheet.enter("lookahead_mib", max(record.lookahead_bytes for record in records) / 2**20, _NO_STEP)


def _enter_embedding(sheet: Sheet, trainer: Trainer, finished: Finished, records: list[RankRecord]) -> None:
    if not trainer.workload.tables():
        sheet.withhold(_OF_TABLES, "the workload has no embedding table")
        return
    enter_collisions(sheet, finished.collisions)
    enter_lookups(sheet, [record.rows_asked for record in records], [record.rows_by_class for record in records])
    bound, seen = trainer.strategies.embedding.staleness, [record.stalest for record in records]
    sheet.enter("staleness_steps", max(seen) if bound is None else bound, "")


def _enter_syncs(sheet: Sheet, finished: Finished, records: list[RankRecord]) -> None:
    """Of the syncs between the first measured window's begin and the last one's end, on each rank's own clock."""
    steps, seconds = [], 0.0
    for record in records:
        begin, end = record.trace.steps(finished.measured).span
        seconds = max(seconds, (end - begin) * 1e-9)
        steps.append(np.array([sync.step for sync in record.syncs if begin <= sync.at_ns < end], np.int64))
    enter_syncs(sheet, steps, seconds)
    sheet.enter("replica_spread", finished.replica_spread, "the replicas' mean is 0")


def _rank_row(record: RankRecord, parts: dict[str, int]) -> dict[str, Any]:
    """One rank over all measured steps: milliseconds by part, and memory."""
    return {
        "window_ms": sum(parts.values()) / 1e6,
        "compute_ms": parts["compute"] / 1e6,
        **{f"{name}_ms": sum(parts[part] for part in of) / 1e6 for name, of in BUBBLE_PARTS.items()},
        "peak_rss_mib": record.peak_rss_mib,
        "peak_gpu_mib": record.peak_gpu_mib,
    }
