"""The answer of `Sharding.assign`, checked: a wrong one would lose samples, or hang the exchange of them."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta, Sharding
from fsbench.errors import FsbenchError


def checked_assign(sharding: Sharding, meta: BatchMeta) -> NDArray[np.int64]:
    """The rank of each sample of a global batch, int64[n].

    Raises:
        FsbenchError: the strategy's answer is not one valid rank for each sample, or it moves samples although it
            promises not to. What `assign` itself raises passes through.
    """
    assignment = np.asarray(sharding.assign(meta))
    if fault := _fault(sharding, meta, assignment):
        raise FsbenchError(f"sharding {type(sharding).__name__}, step {meta.step}: {fault}")
    return assignment.astype(np.int64, copy=False)


def unheeded_options(sharding: Sharding) -> list[str]:
    """Options, `token_limit=8`, that were set and that only a run of the suite heeds: it weighs samples and ranks by
    them, and hands the result to `assign`."""
    options, default = sharding.options, Sharding.Options()
    if not isinstance(options, Sharding.Options):
        return []
    set_to = {field.name: getattr(options, field.name) for field in dataclasses.fields(default)}
    return [f"{name}={value}" for name, value in set_to.items() if value != getattr(default, name)]


def _fault(sharding: Sharding, meta: BatchMeta, assignment: NDArray) -> str | None:
    if not np.issubdtype(assignment.dtype, np.integer):
        return f"assign returned {assignment.dtype}; expected int64 ranks"
    if assignment.shape != meta.source.shape:
        return f"assign returned shape {assignment.shape} for {len(meta.source)} samples"
    if len(assignment) and not (assignment.min() >= 0 and assignment.max() < meta.ranks):
        return f"assign returned ranks {assignment.min()} to {assignment.max()}; valid: 0 to {meta.ranks - 1}"
    if not sharding.moves and (assignment != meta.source).any():
        return "moves is False, yet samples change rank"
    return None
