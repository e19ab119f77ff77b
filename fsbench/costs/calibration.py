"""From samples of a workload to its cost profile: draw, measure, fit, and test on what was held out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fsbench
from fsbench.costs.draw import RankBatch, deal, draw
from fsbench.costs.features import of_batch
from fsbench.costs.fit import fit, quantiles, relative_errors
from fsbench.costs.machine import CPU, this_machine
from fsbench.costs.measure import RankBench, Times
from fsbench.costs.profile import Profile, identity
from fsbench.errors import UserError
from fsbench.samples import Samples
from fsbench.workload import Workload

Float64 = NDArray[np.float64]

READING = 0.25
"""The share of the time that may go into reading samples."""
WARMUP = 3
"""Rank-batches that are trained before the first is measured."""
FEWEST_A_COEFFICIENT = 4
"""Rank-batches to fit that there must be for each coefficient."""
FEWEST_HELD_OUT = 5


@dataclass(frozen=True)
class Measured:
    """Rank-batches in the order in which they were measured: features [m, k] by `names`, phases [m, 3] on either clock,
    `flops` [m], `held_out` bool[m]."""

    names: Sequence[str]
    features: Float64
    cpu: Float64
    wall: Float64
    flops: Float64
    held_out: NDArray[np.bool_]


def calibrate(
    name: str, workload: Workload, *, samples: int, seconds: float, seed: int, device: torch.device
) -> Profile:
    """Measures and fits. Takes `seconds` at most, and what one load, the warm-up and one rank-batch take.

    Args:
        name: what the workload is called, for people.
        workload: prepared.
        samples: the most to train.

    Raises:
        UserError: too few rank-batches could be measured to fit and test the coefficients.
    """
    started = time.monotonic()
    drawn = draw(workload, samples, seconds * READING, seed)
    batches = deal(len(drawn.samples), workload.samples_per_rank, seed)
    bench = RankBench(workload, device, seed)
    measured = _measure(bench, workload, drawn.samples, batches, started + seconds)
    had_all = workload.samples_available is not None and drawn.read >= workload.samples_available
    hurried = len(measured.held_out) < len(batches) or (len(drawn.samples) < samples and not had_all)
    _check_enough(measured, len(drawn.samples), f"{seconds:g} s" if hurried else None)
    threads = torch.get_num_threads()
    # A thread's clock is not stopped by others that want the core, but it does not see helper threads, nor a GPU.
    on_thread = device.type == CPU and threads == 1
    coefficients, figures = _fit(measured, measured.cpu if on_thread else measured.wall)
    return Profile(
        workload={"name": name, **identity(workload)},
        machine=this_machine(device, threads),
        coefficients_s=coefficients,
        error=figures.pop("error"),
        measured={
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"fsbench": fsbench.__version__, "numpy": np.__version__},
            "seconds": "of the thread's CPU" if on_thread else "by the clock",
            "samples": {"read": drawn.read, "kept": len(drawn.samples)},
            **figures,
            "took_s": time.monotonic() - started,
        },
    )


def _measure(
    bench: RankBench, workload: Workload, samples: Samples, batches: Sequence[RankBatch], deadline: float
) -> Measured:
    for batch in batches[:WARMUP]:
        bench.train(samples.take(batch.places))
    described: list[dict[str, float]] = []
    times: list[Times] = []
    flops: list[float] = []
    for batch in batches:
        if time.monotonic() > deadline:
            break
        taken = samples.take(batch.places)
        described.append(of_batch(workload, taken))
        times.append(bench.train(taken))
        flops.append(workload.costs(taken).sum())
    return Measured(
        names=tuple(described[0]) if described else (),
        features=np.array([list(row.values()) for row in described]),
        cpu=np.array([row.cpu for row in times]),
        wall=np.array([row.wall for row in times]),
        flops=np.array(flops),
        held_out=np.array([batch.held_out for batch in batches[: len(times)]], bool),
    )


def _check_enough(measured: Measured, samples: int, too_short: str | None) -> None:
    """`too_short`: the time, if there would have been more to measure."""
    held_out = int(measured.held_out.sum())
    fitted, wanted = len(measured.held_out) - held_out, FEWEST_A_COEFFICIENT * max(1, len(measured.names))
    if fitted >= wanted and held_out >= FEWEST_HELD_OUT:
        return
    cause, cure = (too_short, "--seconds") if too_short else (f"{samples} samples", "--samples")
    raise UserError(
        f"{cause} gave {fitted} rank-batches to fit and {held_out} to test on; {wanted} and {FEWEST_HELD_OUT} are "
        f"needed: raise {cure}"
    )


def _fit(measured: Measured, phases: Float64) -> tuple[dict[str, float], dict[str, Any]]:
    """Coefficients by feature, and what is to be known about them. `phases`: [m, 3], on the clock that counts."""
    out, fitted = measured.held_out, ~measured.held_out
    seconds, wall = phases.sum(axis=1), measured.wall.sum(axis=1)
    coefficients = fit(measured.features[fitted], seconds[fitted])
    predicted = measured.features @ coefficients
    by_flops = measured.flops * fit(measured.flops[fitted, None], seconds[fitted])
    figures = {
        "error": quantiles(relative_errors(predicted[out], seconds[out])),
        "error_of_flops": quantiles(relative_errors(by_flops[out], seconds[out])),
        "error_against_wall": quantiles(relative_errors(predicted[out], wall[out])),
        "wall_over_cpu": float(np.median(wall / measured.cpu.sum(axis=1))),
        "rank_batches": {"fitted": int(fitted.sum()), "held_out": int(out.sum())},
        "shares": dict(zip(("forward", "backward", "optimizer"), phases.sum(0) / phases.sum(), strict=True)),
    }
    return dict(zip(measured.names, coefficients.tolist(), strict=True)), figures
