"""From what each rank recorded to the outcome of a run: gathered on rank 0, computed by `fsbench.metrics`."""

from __future__ import annotations

from collections import Counter
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
from fsbench.metrics.lookups import enter_lookups
from fsbench.metrics.sheet import Sheet
from fsbench.metrics.summary import Trained, summarise
from fsbench.metrics.syncs import SyncTrace, enter_syncs
from fsbench.metrics.trace import LaneOps, LaneTrace, RankTrace, RunTrace
from fsbench.train.observed import observed
from fsbench.train.quality import enter_quality
from fsbench.train.session import Finished, Part
from fsbench.train.shard_stats import ShardStats
from fsbench.train.trainer import Trainer

_LAST_STEPS = 10
_NO_STEP = "no step was measured"
_OF_TABLES = ("collision_rate", "collision_rate_p99", "owner_imbalance", "hot_coverage", "staleness_steps")
_NEEDS_DEVICE_TIMELINE = (
    *("bubble", *(f"bubble_{part}" for part in BUBBLE_PARTS), "lost_us_per_sample", "straggler_floor"),
    "compute_us_per_sample",
    *("exposed_embedding_ms", "exposed_ms_by_class", "blocked_share", "imbalance_measured", "timeline_overhead"),
)


@dataclass(frozen=True)
class WorkerRecord:
    """What one worker of a rank hands in. `ops`: by lane, its own and those of its rank. `flops`: of what it trained in
    each step."""

    trace: RankTrace
    ops: dict[str, LaneOps]
    flops: list[float]
    rows_asked: Sequence[Sequence[int]]
    rows_by_class: Mapping[str, int]
    stalest: int


@dataclass(frozen=True)
class RankRecord:
    """What one rank hands in. `operations`: how many of each name, by lane, of all its workers. `peak_gpu_mib`: None on
    a CPU. `link_use`: None without a link."""

    workers: Sequence[WorkerRecord]
    operations: dict[str, dict[str, int]]
    marker_ns: float
    peak_rss_mib: float
    peak_gpu_mib: float | None
    lookahead_bytes: int
    sent: dict[tuple[str, str], int]
    link_use: LinkUse | None
    syncs: Sequence[Sync]
    shadow_cpu_s: float | None


def build_report(trainer: Trainer, finished: Finished) -> dict[str, Any] | None:
    """The keyword arguments of `make_record` that a finished run determines; None on ranks other than 0. Collective.

    A run whose bytes did not cross its link has no metrics: whatever they were, they were not those of its cluster.
    """
    kinds, records = gather_records(trainer, finished)
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
    _enter_floor(sheet, floor, apart=trainer.apart)
    _enter_embedding(sheet, trainer, finished, records)
    enter_quality(sheet, finished)
    _enter_run(sheet, finished, records, bubbles)
    sheet.enter("elp", trainer.workload.samples_per_rank * trainer.context.readers, "")
    on_gpu = trainer.context.device.type == "cuda"
    if on_gpu:
        sheet.withhold(_NEEDS_DEVICE_TIMELINE, "the host's timeline does not see the GPU; no CUDA events yet")
    return {
        "metrics": sheet.metrics,
        "missing": sheet.missing,
        "observed": evidence,
        "per_rank": _rows(records, bubbles, on_gpu),
    }


def _enter_floor(sheet: Sheet, floor: Bubbles, *, apart: bool) -> None:
    share, reason = floor.shares().get("bubble_straggler"), "no step of the noise floor was run"
    if apart and share == 0:
        # Ranks differ as ever, but nobody waits to see it.
        share, reason = None, "no rank waited for another: what the machine does to ranks cannot be seen"
    sheet.enter("straggler_floor", share, reason)


def gather_records(trainer: Trainer, finished: Finished) -> tuple[list[str], list[RankRecord]]:
    """What the bytes of any lane were, in the order of their codes, and the records of all ranks. Collective."""
    kinds = _agree_on_kinds(trainer)
    records: list[Any] = [None] * trainer.context.ranks
    dist.all_gather_object(records, _record(trainer, finished, kinds))
    return kinds, records


def _agree_on_kinds(trainer: Trainer) -> list[str]:
    """What the bytes of any lane on any rank were, in one order for all."""
    everyone: list[Any] = [None] * trainer.context.ranks
    dist.all_gather_object(everyone, [kind for lane in trainer.lanes for kind in lane.log.kinds()])
    return sorted(set().union(*everyone))


def _record(trainer: Trainer, finished: Finished, kinds: list[str]) -> RankRecord:
    on_gpu = trainer.context.device.type == "cuda"
    largest = [max((step.own_bytes for step in part.stats), default=0) for part in finished.parts]
    return RankRecord(
        workers=[_worker(*pair, kinds) for pair in zip(trainer.members, finished.parts, strict=True)],
        operations=_operations(trainer),
        marker_ns=marker_cost_ns(),
        peak_rss_mib=peak_rss_mib(),
        peak_gpu_mib=torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
        lookahead_bytes=sum(largest) * trainer.strategies.lookahead,
        sent=finished.sent,
        link_use=finished.link_use,
        syncs=trainer.strategies.sync.syncs(),
        shadow_cpu_s=finished.shadow_cpu_s,
    )


def _worker(member: Trainer, part: Part, kinds: list[str]) -> WorkerRecord:
    return WorkerRecord(
        trace=member.context.timeline.trace(),
        ops={name: lane.log.arrays(kinds) for name, lane in member.context.lanes.items()},
        flops=[step.own_flops for step in part.stats],
        rows_asked=part.rows_asked,
        rows_by_class=part.rows_by_class,
        stalest=part.stalest,
    )


def _operations(trainer: Trainer) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for lane in trainer.lanes:
        counts.setdefault(lane.name, Counter()).update(lane.log.operations())
    return {name: dict(of_lane) for name, of_lane in counts.items()}


def run_trace(trainer: Trainer, records: list[RankRecord], kinds: list[str], steps: range) -> RunTrace:
    """The timeline of all workers of all ranks over a range of their windows; metrics call each of them a rank."""
    workers = _workers(records)
    lanes = {
        name: LaneTrace(lane.spec.waits_as, [worker.ops[name] for worker in workers], lane.collective)
        for name, lane in trainer.context.lanes.items()
    }
    ranks = [worker.trace.steps(steps) for worker in workers]
    return RunTrace(ranks, lanes, trainer.context.timeline.lanes, shared_clock=True, kind_names=tuple(kinds))


def _workers(records: Sequence[RankRecord]) -> list[WorkerRecord]:
    return [worker for record in records for worker in record.workers]


def _trained(trainer: Trainer, finished: Finished, records: list[RankRecord]) -> Trained:
    measured = slice(finished.measured.start, finished.measured.stop)
    stats: list[ShardStats] = finished.stats[measured]

    def stack(name: str) -> Any:
        rows = [getattr(step, name) for step in stats]
        return np.stack(rows, axis=1) if rows else np.zeros((trainer.context.readers, 0))

    steps = len(finished.losses)
    keys = sorted({key for record in records for key in record.sent})
    sent = {key: sum(record.sent.get(key, 0) for record in records) / steps for key in keys}
    return Trained(
        stack("samples"),
        stack("tokens"),
        stack("longest"),
        flops=np.array([worker.flops[measured] for worker in _workers(records)]),
        costs=stack("predicted"),
        sent=sent,
    )


def _enter_run(sheet: Sheet, finished: Finished, records: list[RankRecord], bubbles: Bubbles) -> None:
    marks = [
        record.marker_ns * len(worker.trace.steps(finished.measured).starts)
        for record in records
        for worker in record.workers
    ]
    last = finished.losses[-_LAST_STEPS:]
    on_gpus = [record.peak_gpu_mib for record in records if record.peak_gpu_mib is not None]
    sheet.enter("steps_measured", len(finished.measured), _NO_STEP)
    sheet.enter("train_s", int(bubbles.step_ns.sum()) * 1e-9, _NO_STEP)
    sheet.enter_ratio("timeline_overhead", sum(marks), int(bubbles.windows.sum()), _NO_STEP)
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
    workers = _workers(records)
    enter_lookups(sheet, [worker.rows_asked for worker in workers], [worker.rows_by_class for worker in workers])
    bound, seen = trainer.strategies.embedding.staleness, [worker.stalest for worker in workers]
    sheet.enter("staleness_steps", max(seen) if bound is None else bound, "")


def _enter_syncs(sheet: Sheet, finished: Finished, records: list[RankRecord]) -> None:
    """Of the syncs between the first measured window's begin and the last one's end, on each rank's own clock; steps
    are those of all its workers."""
    traces = []
    for record in records:
        windows = [worker.trace.steps(finished.measured) for worker in record.workers]
        begin = min((int(of_worker.step_begin[0]) for of_worker in windows if len(of_worker.windows)), default=0)
        end = max((int(of_worker.step_end[-1]) for of_worker in windows if len(of_worker.windows)), default=0)
        syncs = [sync for sync in record.syncs if begin <= sync.at_ns < end]
        steps = np.array([sync.step for sync in syncs], np.int64)
        lags = np.array([sync.lag for sync in syncs if sync.lag is not None], np.int64)
        traces.append(SyncTrace(steps, lags, (end - begin) * 1e-9))
    enter_syncs(sheet, traces)
    told = [record.shadow_cpu_s for record in records if record.shadow_cpu_s is not None]
    sheet.enter("shadow_cpu_s", sum(told) if told else None, "the sync strategy tells no CPU time of its own")
    sheet.enter("replica_spread", finished.replica_spread, "the replicas' mean is 0")


def _rows(records: Sequence[RankRecord], bubbles: Bubbles, on_gpu: bool) -> list[dict[str, Any]]:
    whose = [
        ({"rank": rank, "worker": worker}, record)
        for rank, record in enumerate(records)
        for worker in range(len(record.workers))
    ]
    totals = bubbles.totals_by_rank()
    return [{**who, **_row(record, parts, on_gpu)} for (who, record), parts in zip(whose, totals, strict=True)]


def _row(record: RankRecord, parts: dict[str, int], on_gpu: bool) -> dict[str, Any]:
    """One worker over all measured steps: milliseconds by part (on a GPU the host's windows alone), and its rank's
    memory."""
    row: dict[str, Any] = {"window_ms": sum(parts.values()) / 1e6}
    if not on_gpu:
        row["compute_ms"] = parts["compute"] / 1e6
        row |= {f"{name}_ms": sum(parts[part] for part in of) / 1e6 for name, of in BUBBLE_PARTS.items()}
    return row | {"peak_rss_mib": record.peak_rss_mib, "peak_gpu_mib": record.peak_gpu_mib}
