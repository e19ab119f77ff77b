"""A strategy's own word on what it did: kept apart from what was observed, and bounded."""

from __future__ import annotations

import json
from typing import Any

from fsbench.axes import Strategy
from fsbench.results.schema import plain

_MOST_EVIDENCE = 2**20


def evidence_of(strategy: Strategy) -> dict[str, Any]:
    """A strategy's own details; why there are none, if they cannot be recorded: the run was measured all the same."""
    try:
        evidence = dict(strategy.evidence())
        if len(text := json.dumps(evidence, allow_nan=False)) > _MOST_EVIDENCE:
            raise ValueError(f"{len(text)} characters, expected at most {_MOST_EVIDENCE}")
        plain(evidence, "evidence")
    except Exception as error:
        return {"error": f"not to be recorded: {type(error).__name__}: {error}"}
    return evidence
