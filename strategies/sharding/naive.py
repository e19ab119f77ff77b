"""Every sample stays where it was loaded."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta, Sharding
from fsbench_strategies.sharding.checks import check_batch, within_token_limit


class Naive(Sharding):
    """Arrival order: a rank trains the samples it loaded, long or short."""

    moves: ClassVar[bool] = False
    # Gradients are divided by the target count over all ranks, which is gathered before the step begins.
    lookahead: ClassVar[int] = 1

    def assign(self, batch: BatchMeta) -> NDArray[np.int64]:
        """The rank of each sample, int64[n]: its source. Raises what `checks` refuses."""
        check_batch(batch)
        return within_token_limit(batch, batch.source.astype(np.int64))
