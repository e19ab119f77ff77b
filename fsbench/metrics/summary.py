"""The metrics of one run, by the names of the result schema, from its timeline and what it trained.

A metric that cannot be formed is None with a reason: never 0, never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsbench.metrics.bubbles import BUBBLE_PARTS, Bubbles
from fsbench.metrics.exposure import exposed_by_kind
from fsbench.metrics.sheet import Sheet
from fsbench.metrics.trace import RunTrace

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Trained:
    """What each rank trained in each measured step: arrays [ranks, steps]. Every worker of a rank is one here.

    `samples`, `tokens`: int64, real ones; `longest`: int64, tokens of the longest sample; `flops`: float64,
    the model's operations at real lengths; `costs`: float64, how long it should take by what the balancer believed,
    in any unit.

    `sent`: bytes a step by (wait class of the lane, kind), all ranks, over all of training and what was pending at its
    end: a strategy that sends ahead and behind would otherwise gain or lose at the edges of what is measured.
    """

    samples: Int64
    tokens: Int64
    longest: Int64
    flops: Float64
    costs: Float64
    sent: Mapping[tuple[str, str], float]


def summarise(sheet: Sheet, trace: RunTrace, bubbles: Bubbles, trained: Trained) -> None:
    """Enters the metrics that follow from the timeline.

    Raises:
        ValueError: `trained` is not about the ranks and steps of the trace.
    """
    shape = bubbles.windows.shape
    for name, values in vars(trained).items():
        if name != "sent" and values.shape != shape:
            raise ValueError(f"{name} is about {values.shape} ranks and steps; expected {shape}")
    _step_times(sheet, bubbles)
    _throughput(sheet, trace, trained)
    _bubble(sheet, trace, bubbles, int(trained.samples.sum()))
    _balance(sheet, bubbles, trained)
    _traffic(sheet, trained.sent)


def elapsed_ns(trace: RunTrace) -> int:
    """From the first window's begin to the last one's end, over ranks.

    Without a shared clock, begins of two ranks do not compare: the longest span of one rank stands for it.
    """
    spans = np.array([(rank.step_begin[0], rank.step_end[-1]) for rank in trace.ranks if len(rank.windows)])
    if not len(spans):
        return 0
    if trace.shared_clock:
        return int(spans[:, 1].max() - spans[:, 0].min())
    return int((spans[:, 1] - spans[:, 0]).max())


def own_rates(trace: RunTrace, samples: Int64) -> float | None:
    """The sum of the ranks' own samples a second; None if nothing was measured. `samples`: int64[ranks, steps].

    Where no rank waits for another, one that is through early is not charged for those that are not.
    """
    spans = [int(rank.step_end[-1] - rank.step_begin[0]) for rank in trace.ranks if len(rank.windows)]
    if not spans or min(spans) == 0:
        return None
    return float((samples.sum(axis=1) * 1e9 / np.array(spans)).sum())


_TRAFFIC = ("embedding", "dense", "shuffle")
_TRAFFIC_OF_KIND = dict.fromkeys(("ids", "rows", "gradients"), "embedding") | {
    "samples": "shuffle",
    "metadata": "shuffle",
    "state": "control",  # what is set up, saved or loaded
}
_NO_STEP = "no step was measured"
_NO_SAMPLE = "no sample was trained"


def _step_times(sheet: Sheet, bubbles: Bubbles) -> None:
    step_ms = bubbles.step_ns / 1e6
    for percentile in (50, 95):
        value = float(np.percentile(step_ms, percentile)) if len(step_ms) else None
        sheet.enter(f"step_ms_p{percentile}", value, _NO_STEP)


def _throughput(sheet: Sheet, trace: RunTrace, trained: Trained) -> None:
    elapsed = elapsed_ns(trace)
    sheet.enter_ratio("samples_per_s", trained.samples.sum() * 1e9, elapsed, _NO_STEP)
    sheet.enter("examples_per_s", own_rates(trace, trained.samples), _NO_STEP)
    sheet.enter_ratio("tokens_per_s", trained.tokens.sum() * 1e9, elapsed, _NO_STEP)
    sheet.enter_ratio("tflops", trained.flops.sum() / 1e3, elapsed, _NO_STEP)


def _bubble(sheet: Sheet, trace: RunTrace, bubbles: Bubbles, samples: int) -> None:
    shares = bubbles.shares()
    for name in ("bubble", *(f"bubble_{part}" for part in BUBBLE_PARTS)):
        sheet.enter(name, shares.get(name), _NO_STEP)
    lost = int(bubbles.windows.sum()) - int(bubbles.compute.sum())
    sheet.enter_ratio("lost_us_per_sample", lost / 1e3, samples, _NO_SAMPLE)
    sheet.enter_ratio("compute_us_per_sample", int(bubbles.compute.sum()) / 1e3, samples, _NO_SAMPLE)
    _exposed(sheet, trace, bubbles)
    sheet.enter("blocked_share", bubbles.blocked_share(), _NO_STEP)


def _exposed(sheet: Sheet, trace: RunTrace, bubbles: Bubbles) -> None:
    by_kind = {kind: bubbles.on_slowest_rank(ns) for kind, ns in exposed_by_kind(trace).items()}
    milliseconds = {kind: ns / 1e6 for kind, ns in by_kind.items() if ns is not None}
    sheet.enter("exposed_ms_by_class", milliseconds or None, _NO_STEP)
    embedding = bubbles.on_slowest_rank(bubbles.of("embedding_transfer"))
    sheet.enter("exposed_embedding_ms", None if embedding is None else embedding / 1e6, _NO_STEP)


def _balance(sheet: Sheet, bubbles: Bubbles, trained: Trained) -> None:
    for name, loads, of in (
        ("imbalance_predicted", trained.costs, "predicted cost"),
        ("imbalance_measured", bubbles.compute, "measured compute"),
    ):
        total = float(loads.sum())
        sheet.enter_ratio(name, loads.max(axis=0, initial=0).sum() * len(loads), total, f"there is no {of}")
    padded = int((trained.samples * trained.longest).sum())
    sheet.enter_ratio("padding", padded - int(trained.tokens.sum()), padded, "no token was trained")


def traffic_of(kind: str, waits_as: str) -> str:
    """What bytes are for: by their kind (`rows.exclusive` is a kind of `rows`), else by the lane that carried them.

    A strategy may send IDs on the lane of the shuffle; they are embedding traffic all the same.
    """
    return _TRAFFIC_OF_KIND.get(kind.partition(".")[0], waits_as)


def _traffic(sheet: Sheet, sent: Mapping[tuple[str, str], float]) -> None:
    kinds: dict[str, float] = {}
    for (_, kind), size in sorted(sent.items()):
        kinds[kind] = kinds.get(kind, 0.0) + size
    sheet.enter("bytes_by_class", kinds, "no operation was recorded")
    for name in _TRAFFIC:
        total = sum(size for (waits_as, kind), size in sent.items() if traffic_of(kind, waits_as) == name)
        sheet.enter(f"{name}_bytes_per_step", float(total) if sent else None, "no operation was recorded")
