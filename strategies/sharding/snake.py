"""FreeScale's balancing at a fixed batch size (arXiv 2604.24073): sort by length, deal to and fro.

With the samples of the global batch sorted by falling length, rank i of R gets those at places i, 2R-1-i, 2R+i,
4R-1-i, ...: the first row of R is dealt from rank 0 up, the next from the last rank down. Every rank gets one sample
of each row, long and short alternate, and what the first ranks gain in one row they lose in the next.

It balances the sum of lengths. Of a cost that grows faster than the length, something remains; and nothing makes up
for one very long history, whose rank gets as many samples of each row as any other.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta, Sharding
from fsbench_strategies.sharding.checks import check_batch, within_token_limit


class Snake(Sharding):
    """FreeScale's fixed batch size: sorts by length and deals in snake order; equal counts."""

    lookahead: ClassVar[int] = 1

    def assign(self, batch: BatchMeta) -> NDArray[np.int64]:
        """The rank of each sample, int64[n]. Equal lengths go by global index. Raises what `checks` refuses."""
        check_batch(batch)
        row, place = np.divmod(np.arange(len(batch.tokens)), batch.ranks)
        assignment = np.empty(len(batch.tokens), np.int64)
        falling = np.argsort(-batch.tokens, kind="stable")
        assignment[falling] = np.where(row % 2 == 0, place, batch.ranks - 1 - place)
        return within_token_limit(batch, assignment)
