"""What the GPUs of a run used over the measured steps, from samples of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal, NamedTuple

from fsbench.metrics.sheet import Sheet

Kind = Literal["gauge", "counter", "flags", "pids"]
"""`gauge`: a level. `counter`: grows. `flags`: bits. `pids`: process IDs."""

THROTTLE_REASONS = {
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
}
"""Bits by which a GPU says that it runs below its clock. The others (idle, clocks that were set) are no throttling."""


class Sample(NamedTuple):
    """`at_ns`: monotonic clock. `answers`: by question, those that had one."""

    at_ns: int
    answers: Mapping[str, Any]


@dataclass(frozen=True)
class GpuSamples:
    """What one rank saw of its device.

    `device`: the same for ranks that share one; None without one. `pid`: of the rank. `kinds`: by question.
    `refused`: why a question has no answers, or none from some time on. `dropped`: oldest samples that are no longer
    among `taken`.
    """

    device: str | None
    pid: int
    interval_s: float
    kinds: Mapping[str, Kind]
    refused: Mapping[str, str]
    taken: Sequence[Sample]
    dropped: int
    reason: str | None = None
    """Why nothing was asked at all."""

    @classmethod
    def none(cls, reason: str, pid: int) -> GpuSamples:
        return cls(None, pid, 0.0, {}, {}, [], 0, reason)


@dataclass(frozen=True)
class GpuUse:
    """One device over a span: `figures` by question, `missing` the reasons of the others.

    A gauge has `mean`, `least` and `most`; a counter `total` and `seconds`, between the outermost samples; flags the
    share of samples by bit; of PIDs there are those seen.
    """

    samples: int
    figures: Mapping[str, Any]
    missing: Mapping[str, str]


def gpu_use(samples: GpuSamples, begin_ns: int, end_ns: int) -> GpuUse:
    """What a device used between two instants. A question that went unanswered there has no figure: what it told
    before is about another span."""
    taken = [sample for sample in samples.taken if begin_ns <= sample.at_ns < end_ns]
    if samples.dropped and samples.taken[0].at_ns > begin_ns:
        return GpuUse(len(taken), {}, dict.fromkeys(samples.kinds, "samples of the measured steps were dropped"))
    figures, missing = {}, {}
    for name, kind in samples.kinds.items():
        answered = [(sample.at_ns, sample.answers[name]) for sample in taken if name in sample.answers]
        if len(answered) < len(taken) or not taken:
            missing[name] = samples.refused.get(name) or "no sample in the measured steps"
        elif kind == "counter" and len(answered) < 2:
            missing[name] = "fewer than two samples in the measured steps"
        else:
            figures[name] = _FIGURES[kind](answered)
    return GpuUse(len(taken), figures, missing)


Answered = Sequence[tuple[int, Any]]


def _gauge(answered: Answered) -> dict[str, float]:
    values = [value for _, value in answered]
    return {"mean": fmean(values), "least": min(values), "most": max(values)}


def _counter(answered: Answered) -> dict[str, float]:
    """Counters that are reset (a driver that reloads) begin anew: what they lose is no use of the device."""
    grown = sum(max(0, later - earlier) for (_, earlier), (_, later) in pairwise(answered))
    return {"total": grown, "seconds": (answered[-1][0] - answered[0][0]) * 1e-9}


def _flags(answered: Answered) -> dict[str, float]:
    """Share of samples by reason, those that were seen, and of any of them."""
    any_of = sum(THROTTLE_REASONS)
    shares = {name: _share(answered, bit) for bit, name in THROTTLE_REASONS.items()}
    return {"any": _share(answered, any_of), **{name: share for name, share in shares.items() if share}}


def _share(answered: Answered, bits: int) -> float:
    return fmean(bool(value & bits) for _, value in answered)


def _pids(answered: Answered) -> list[int]:
    return sorted({pid for _, pids in answered for pid in pids})


_FIGURES: dict[Kind, Callable[[Answered], Any]] = {"gauge": _gauge, "counter": _counter, "flags": _flags, "pids": _pids}

_METRICS: dict[str, tuple[str, str, Callable[[Sequence[float]], float]]] = {
    "power_w_mean": ("power_w", "mean", sum),
    "energy_j": ("energy_j", "total", sum),
    "sm_util_mean": ("sm_util", "mean", fmean),
    "sm_clock_mhz_mean": ("sm_clock_mhz", "mean", fmean),
    "throttled_share": ("throttle_reasons", "any", fmean),
}
"""By metric: the question, which of its figures, and over the GPUs."""


def enter_gpus(sheet: Sheet, samples: Sequence[GpuSamples], spans: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Enters the metrics of all GPUs and returns what else is known of each, for the record.

    A metric of all GPUs is missing if that of one is.

    Args:
        samples: by rank.
        spans: by rank, the measured steps on its own clock.
    """
    ranks = [rank for rank, of_rank in enumerate(samples) if _first_of_its_device(samples, rank)]
    uses = {rank: gpu_use(samples[rank], *spans[rank]) for rank in ranks}
    for metric, (name, figure, over) in _METRICS.items():
        reason = next((why for rank in ranks if (why := _why_not(rank, samples[rank], uses[rank], name))), None)
        known = [] if reason else [use.figures[name][figure] for use in uses.values()]
        sheet.enter(metric, float(over(known)) if known else None, reason or "no rank")
    pids = {of_rank.pid for of_rank in samples}
    return [_described(samples, rank, uses[rank], pids) for rank in ranks if samples[rank].reason is None]


def _first_of_its_device(samples: Sequence[GpuSamples], rank: int) -> bool:
    device = samples[rank].device
    return device is None or all(earlier.device != device for earlier in samples[:rank])


def _why_not(rank: int, samples: GpuSamples, use: GpuUse, name: str) -> str | None:
    reason = samples.reason or use.missing.get(name)
    return reason and (f"rank {rank}: {reason}" if samples.reason is None else reason)


def _described(samples: Sequence[GpuSamples], rank: int, use: GpuUse, pids: set[int]) -> dict[str, Any]:
    device = samples[rank].device
    figures = {name: figure for name, figure in use.figures.items() if name != "processes"}
    seen = set(use.figures.get("processes", ()))
    missing = dict(use.missing)
    if "processes" in use.figures:
        if pids & seen:
            figures["foreign_processes"] = len(seen - pids)
        else:
            # In a container NVML may list the host's IDs, among which ours are not known.
            missing["processes"] = "NVML lists processes, and none of this run is among them by its ID"
    return {
        "ranks": [other for other, of_rank in enumerate(samples) if of_rank.device == device],
        "interval_s": samples[rank].interval_s,
        "samples": use.samples,
        "dropped": samples[rank].dropped,
        **figures,
        "missing": missing,
    }
