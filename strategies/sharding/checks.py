"""What every sharding refuses: costs and speeds that mean nothing, and ranks over the token limit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta


def check_batch(batch: BatchMeta) -> None:
    """Refuses what no assignment can be made of.

    Raises:
        ValueError: a cost that is negative or not finite, with its sample's index; or a speed that is not finite and
            positive, with its rank.
    """
    _refuse(batch, "cost", "sample", batch.costs, batch.costs >= 0, ">= 0")
    _refuse(batch, "speed", "rank", batch.speeds, batch.speeds > 0, "> 0")


def _refuse(
    batch: BatchMeta, what: str, of: str, values: NDArray[np.float64], in_range: NDArray[np.bool_], expected: str
) -> None:
    bad = np.flatnonzero(~(np.isfinite(values) & in_range))
    if len(bad):
        raise ValueError(f"step {batch.step}: {what} {values[bad[0]]} of {of} {bad[0]} is not finite and {expected}")


def within_token_limit(batch: BatchMeta, assignment: NDArray[np.int64]) -> NDArray[np.int64]:
    """The assignment, if every rank can hold it.

    Raises:
        ValueError: a rank is over `batch.token_limit`: the fullest one, and which limit it would keep.
    """
    if batch.token_limit is None:
        return assignment
    tokens = np.bincount(assignment, batch.tokens, minlength=batch.ranks).astype(np.int64)
    fullest = int(tokens.argmax())
    if tokens[fullest] > batch.token_limit:
        raise ValueError(
            f"step {batch.step}: rank {fullest} would hold {tokens[fullest]} tokens, over the limit of "
            f"{batch.token_limit}; a limit of {tokens[fullest]} would do, or fewer samples a step"
        )
    return assignment


def equal_places(samples: int, ranks: int) -> NDArray[np.int64]:
    """int64[ranks]: how many samples each rank gets; the first ones take what does not divide."""
    return samples // ranks + (np.arange(ranks) < samples % ranks)
