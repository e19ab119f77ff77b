"""The record of a run: one JSON object, a line of `runs.jsonl`. Metrics may be added, none renamed.

Missing is not zero: a metric without a value is null and has its reason in `missing`. NaN and infinity never
get in.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsbench.matrix import RunSpec
from fsbench.options import nearest
from fsbench.results.decoding import LARGEST_INTEGER, check_depth

SCHEMA = 1
KINDS = ("cpu", "gpu", "sim")
STATUSES = ("ok", "fallback", "unsupported", "failed", "timeout", "oom")
MEASURED = ("ok", "fallback")
"""Statuses of runs that trained to their end and have metrics."""
_LONGEST_REASON = 2000
"""Characters. It stands in a record once for each metric."""


@dataclass(frozen=True)
class Metric:
    """The unit in which a metric is stored, and what it means."""

    unit: str
    meaning: str


METRICS: dict[str, Metric] = {
    # Speed.
    "step_ms_p50": Metric("ms", "median step; a step takes as long as its slowest rank"),
    "step_ms_p95": Metric("ms", "95th percentile of the steps"),
    "samples_per_s": Metric("1/s", "real samples trained, all ranks"),
    "tokens_per_s": Metric("1/s", "real tokens trained, all ranks"),
    "tflops": Metric("TFLOP/s", "the model's floating-point operations, from real lengths, all ranks"),
    "train_s": Metric("s", "the measured steps, first to last"),
    "steps_measured": Metric("1", "steps behind the figures, without warm-up"),
    # Where the window went.
    "bubble": Metric("share", "part of the window that is not compute; the sum of its parts"),
    "bubble_straggler": Metric("share", "waiting for a rank that comes later"),
    "bubble_embedding": Metric("share", "waiting for embedding IDs, rows or gradients to move"),
    "bubble_dense": Metric("share", "waiting for dense parameters or gradients to move"),
    "bubble_shuffle": Metric("share", "waiting for samples or their metadata to move"),
    "bubble_strategy": Metric("share", "the strategies' own work: packing, lookup, table update, assignment"),
    "bubble_input": Metric("share", "waiting for the loader"),
    "bubble_preempted": Metric("share", "compute intervals in which the thread did not have a CPU"),
    "bubble_other": Metric("share", "unlabelled"),
    "lost_us_per_sample": Metric("us", "non-compute time of all ranks over samples trained"),
    "straggler_floor": Metric("share", "straggler share when every rank trains the same samples: the machine's own"),
    "compute_us_per_sample": Metric("us", "compute time of all ranks over samples trained"),
    "compute_inflation": Metric("ratio", "compute a sample over that of the set's reference cell; `show` derives it"),
    "exposed_embedding_ms": Metric("ms", "embedding transfer that the step waits for, slowest rank"),
    "exposed_ms_by_class": Metric("ms", "transfer that the step waits for, slowest rank, by class of bytes"),
    "blocked_share": Metric("share", "the main thread's waits for dense parameters"),
    "timeline_overhead": Metric("share", "part of the window spent on measuring it"),
    "clock_bound_us": Metric("us", "how far times of a GPU may be off the host's clock, largest rank"),
    # Balance.
    "imbalance_predicted": Metric("ratio", "predicted cost over the rank's speed, largest rank over mean"),
    "imbalance_measured": Metric("ratio", "measured compute, largest rank over mean"),
    "padding": Metric("share", "tokens that a padded batch would waste"),
    "owner_imbalance": Metric("ratio", "rows asked of a table shard by ID, step by step, largest rank over mean"),
    # Traffic.
    "embedding_bytes_per_step": Metric("B", "embedding IDs, rows and gradients sent, all ranks"),
    "dense_bytes_per_step": Metric("B", "dense parameters and gradients sent, all ranks"),
    "shuffle_bytes_per_step": Metric("B", "samples and their metadata sent, all ranks"),
    "bytes_by_class": Metric("B", "bytes sent a step, by class of operation"),
    "collision_rate": Metric("share", "a global batch's unique rows that the next one touches, last 200 steps"),
    "collision_rate_p99": Metric("share", "99th percentile over those steps of each step's own rate"),
    "hot_coverage": Metric("share", "rows looked up that copies on the ranks answered, each row once a rank and step"),
    "staleness_steps": Metric("steps", "most steps whose updates a row may lack when it is used; 0: none"),
    # Background synchronisation.
    "sync_gap_p50": Metric("steps", "median of a trainer's own steps between two syncs"),
    "syncs_per_min": Metric("1/min", "syncs of the dense parameters"),
    "replica_spread": Metric(
        "ratio", "largest distance of a replica from the mean, over the mean's norm, after training"
    ),
    # Quality.
    "ndcg_at_10": Metric("1", "NDCG@10 over every user once, seen items removed"),
    "ndcg_at_10_se": Metric("1", "its standard error over users"),
    "hr_at_10": Metric("1", "hit rate@10 over every user once, seen items removed"),
    "hr_at_10_se": Metric("1", "its standard error over users"),
    "ndcg_at_10_unfiltered": Metric("1", "NDCG@10, seen items not removed"),
    "hr_at_10_unfiltered": Metric("1", "hit rate@10, seen items not removed"),
    "popularity_ndcg_at_10": Metric("1", "NDCG@10 of ranking by popularity, for scale"),
    "ne": Metric("1", "normalised entropy of click-through predictions"),
    "loss": Metric("1", "mean training loss of the last steps"),
    "seconds_to_target": Metric("s", "training until the quality asked for"),
    # Resources.
    "peak_rss_mib": Metric("MiB", "peak resident memory, largest rank"),
    "peak_gpu_mib": Metric("MiB", "peak GPU memory, largest rank"),
    "lookahead_mib": Metric("MiB", "memory of the batches loaded ahead, largest rank"),
    "power_w_mean": Metric("W", "power over the measured steps, sum of all GPUs"),
    "energy_j": Metric("J", "energy between the outermost samples of the measured steps, sum of all GPUs"),
    "sm_util_mean": Metric("share", "NVML busy samples; a GPU that spins in a collective counts as busy"),
    "sm_clock_mhz_mean": Metric("MHz", "clock of the multiprocessors, mean of all GPUs"),
    "throttled_share": Metric("share", "samples in which a GPU was slowed by power or heat, mean of all GPUs"),
}

NO_COLLECTOR = "no collector for it in this version"
OF_THE_SET = "relates runs of a set: `fsbench show` derives it"
NOT_COLLECTED = frozenset({
    "ne", "seconds_to_target",
})  # fmt: skip
"""Metrics that nothing measures yet. They need no reason from the caller."""


def make_record(
    run: RunSpec,
    *,
    kind: str,
    status: str,
    started: str,
    wall_s: float,
    reason: str | None = None,
    metrics: Mapping[str, Any] | None = None,
    missing: Mapping[str, str] | None = None,
    observed: Mapping[str, Any] | None = None,
    per_rank: Sequence[Any] = (),
) -> dict[str, Any]:
    """A complete record: every metric is there, as a value or as null with a reason.

    Args:
        status: one of `STATUSES`.
        started: UTC, ISO 8601.
        reason: why the status is not `ok`. For a run that did not end it is also why its metrics are missing.
        missing: by metric, why there is no value. A metric of `NOT_COLLECTED` may be left out.
        observed: by axis, what ran.

    Raises:
        ValueError: an unknown kind, status or metric, a missing metric or status without its reason, a number
            that is not finite. All of them are faults of the caller.
    """
    _one_of(kind, KINDS, "kind")
    _one_of(status, STATUSES, "status")
    if (reason is None) != (status == "ok"):
        raise ValueError(f"status {status} with reason {reason!r}")
    reason = reason and _shortened(reason)
    values = dict.fromkeys(METRICS) | dict(metrics or {})
    for name in (*values, *(missing or ())):
        _one_of(name, METRICS, "metric")
    absent = [name for name, value in values.items() if value is None]
    record = {
        "schema": SCHEMA,
        "run_id": run.run_id,
        "cell": dataclasses.asdict(run.cell),
        "kind": kind,
        "repeat": run.repeat,
        "seed": run.seed,
        "status": status,
        "reason": reason,
        "observed": observed or {},
        "metrics": values,
        "missing": _reasons(absent, missing or {}, None if status in MEASURED else f"{status}: {reason}"),
        "per_rank": per_rank,
        "started": started,
        "wall_s": wall_s,
    }
    return plain(record, "record")


def _one_of(name: str, known: Sequence[str] | Mapping[str, Any], what: str) -> None:
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}; {nearest(name, known)}")


def _reasons(absent: Sequence[str], given: Mapping[str, str], general: str | None) -> dict[str, str]:
    known = dict.fromkeys(NOT_COLLECTED, NO_COLLECTOR) | {"compute_inflation": OF_THE_SET} | dict(given)
    reasons = {name: general or known.get(name) for name in absent} | {k: v for k, v in given.items() if k in absent}
    if unexplained := [name for name, reason in reasons.items() if not reason]:
        raise ValueError(f"no value and no reason for {', '.join(unexplained)}")
    return {name: str(reason) for name, reason in reasons.items()}


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}... ({len(text)} characters)"


def plain(value: Any, where: str) -> Any:
    """The same value out of types that JSON knows, within the bounds of `fsbench.results.decoding`; numpy's scalars
    become Python's. `where`: what it is called in messages.

    Raises:
        ValueError: what a file cannot hold, and where.
    """
    check_depth(value)
    return _plain(value, where)


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, numbers.Integral):
        if abs(int(value)) >= LARGEST_INTEGER:
            raise ValueError(f"{where} is a whole number of more than 64 bits")
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}")
        return float(value)
    raise ValueError(f"{where} is a {type(value).__name__}, which a record cannot hold")
