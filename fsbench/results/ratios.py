"""Ratios, intervals and verdicts as text, the same under every table and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsbench.results.statistics import ALPHA, FEWEST_RUNS, MARGIN, NO_SPREAD, POWER, Estimate, Judged

MISSING = "\N{EN DASH}"
RUNS, RUNS_NEEDED = "runs", "runs\nneeded"


def ratio_text(estimate: Estimate) -> str:
    """`1.084 (1.061 to 1.108)`, with the 95 % interval."""
    if estimate.ratio is None:
        return MISSING
    inside = estimate.no_interval
    if estimate.spread:
        inside = " to ".join(map(_three_decimals, estimate.spread.interval(1 - ALPHA)))
    return f"{_three_decimals(estimate.ratio)} ({inside})"


def verdict_text(judged: Judged) -> str:
    return judged.verdict or judged.reason or MISSING


def runs_text(estimate: Estimate) -> str:
    """The number of pairs, or of runs on top and below: `6`, `6, 7`."""
    return ", ".join(map(str, estimate.runs))


def needed_text(judged: Judged) -> str:
    return MISSING if judged.runs_needed is None else f"{judged.runs_needed:,}"


def rules(judged: Sequence[Judged], what: str) -> list[str]:
    """How to read verdicts that were made together. `what`: the plural of what they are about."""
    lines = [f"a verdict takes {FEWEST_RUNS} runs of each cell (--repeats {FEWEST_RUNS})"]
    if any(one.verdict for one in judged):
        lines = [verdict_rule(f"the {len(judged)} {what}" if len(judged) > 1 else None)]
    if any(one.runs_needed for one in judged):
        lines.append(
            f"runs needed: to find a true difference of {_percent(MARGIN)}, the margin, in {_percent(POWER)} of cases, "
            f"at the spread seen here and Holm's strictest step"
        )
    if any(one.estimate.no_interval == NO_SPREAD for one in judged):
        lines.append(f"{NO_SPREAD}: the runs agree to the last bit; they tell nothing about noise, and get no verdict")
    return lines


def verdict_rule(family: str | None) -> str:
    """`family`: what Holm's method runs over, if it is more than one."""
    method = f", by Holm's method over {family}" if family else ""
    return (
        f"FASTER, SLOWER: p < {ALPHA:g}{method}; SAME: the {_percent(1 - 2 * ALPHA)} interval lies within "
        f"±{_percent(MARGIN)} (1/{1 + MARGIN:g} to {1 + MARGIN:g}); else UNCLEAR"
    )


def judged_json(judged: Judged) -> dict[str, Any]:
    """Every figure of a verdict, in full precision; None beside `reason` or `no_interval`."""
    estimate = judged.estimate
    low, high = estimate.spread.interval(1 - ALPHA) if estimate.spread else (None, None)
    return {
        "ratio": estimate.ratio,
        "low": low,
        "high": high,
        "no_interval": estimate.no_interval,
        "p": estimate.spread.p if estimate.spread else None,
        "p_adjusted": judged.p,
        "verdict": judged.verdict,
        "reason": judged.reason,
        "runs": list(estimate.runs),
        "runs_needed": judged.runs_needed,
    }


def _three_decimals(ratio: float) -> str:
    return f"{ratio:.3f}" if 0.01 <= ratio < 1000 else f"{ratio:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
