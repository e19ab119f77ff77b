"""A cost profile as text."""

from __future__ import annotations

from collections.abc import Mapping

from fsbench.costs.features import BATCH
from fsbench.costs.profile import Profile


def describe(profile: Profile) -> str:
    """What was measured, for people."""
    measured, per = profile.measured, {**profile.coefficients_s}
    samples, batches = measured["samples"], measured["rank_batches"]
    fixed = per.pop(BATCH)
    terms = [f"{_seconds(fixed)} a rank-batch", *(f"{_seconds(value)} a {name}" for name, value in per.items())]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in measured["shares"].items())
    wall = _errors(measured["error_against_wall"])
    return "\n".join([
        f"{profile.workload['name']} on {profile.machine['device']} ({profile.machine['model']}), "
        f"{profile.machine['threads']} threads, seconds {measured['seconds']}",
        f"{samples['kept']:,} of {samples['read']:,} samples read, {batches['fitted']} rank-batches fitted, "
        f"{batches['held_out']} held out, {measured['took_s']:.1f} s",
        f"compute = {' + '.join(terms)}",
        f"{shares}; wall over CPU {measured['wall_over_cpu']:.2f}",
        f"error on held-out rank-batches: {_errors(profile.error)}; against wall {wall}",
        f"by operations alone (costs=flops): {_errors(measured['error_of_flops'])}",
    ])  # fmt: skip


def _errors(error: Mapping[str, float]) -> str:
    return f"median {error['median']:.1%}, p95 {error['p95']:.1%}"


def _seconds(value: float) -> str:
    """With the unit that makes it readable: `2.1 ms`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"
