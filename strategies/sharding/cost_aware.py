"""Equal time on every rank of a global batch, for the fewest bytes moved.

1. **Start from arrival order**, in which nothing has moved. Ranks above the mean trade samples with ranks below it, all
   ranks at once (`trading.py`); what single trades leave is levelled by swaps of several samples (`levelling.py`). As
   only what is too much moves, a few per cent of the bytes are sent that dealing all samples anew would send.
2. **If that is not enough**, which happens where samples are few or arrive in very unequal counts, the batch is dealt
   anew (`dealing.py`; where that does not do, `karmarkar-karp`, `snake`, `lpt`). The best of these is given to the
   ranks that have most of it already (`relabelling.py`), levelled, and taken if it is better.
3. **If a rank is then above the token limit**, it swaps until it is not. Besides, ranks are levelled by tokens, and
   from there by cost as far as the limit allows; the better answer is taken. Without one the batch is refused.

Answers within `split.TOLERANCE` of the bound count as equally balanced.

FreeScale (arXiv 2604.24073), at a fixed batch size, sorts by length and deals in snake order. Like equal-count
Karmarkar-Karp, that gives every rank one sample of each sorted block, so that nothing makes up for one very long
history. Here the rank that holds it trades the others away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta, Sharding
from fsbench_strategies.sharding.checks import check_batch, equal_places, within_token_limit
from fsbench_strategies.sharding.dealing import deal
from fsbench_strategies.sharding.karmarkar_karp import KarmarkarKarp
from fsbench_strategies.sharding.levelling import is_nearly_level, level
from fsbench_strategies.sharding.lpt import LPT
from fsbench_strategies.sharding.moved_bytes import MovedBytes
from fsbench_strategies.sharding.relabelling import relabel
from fsbench_strategies.sharding.snake import Snake
from fsbench_strategies.sharding.split import Split
from fsbench_strategies.sharding.trading import trade

Int64 = NDArray[np.int64]


class CostAware(Sharding):
    """Equal time on every rank for the fewest bytes moved; honours speeds and token limits, counts equal or free."""

    @dataclass(frozen=True)
    class Options(Sharding.Options):
        """`counts`: samples a rank, equal or whatever balances best."""

        counts: Literal["equal", "free"] = "equal"

    options: Options
    lookahead: ClassVar[int] = 1
    equal_counts = True

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self._free = self.options.counts == "free"
        self._lpt = LPT(LPT.Options(counts=self.options.counts))
        self._moved = MovedBytes(self._lpt.assign if self._free else deal)

    def assign(self, batch: BatchMeta) -> Int64:
        """The rank of each sample, int64[n]. Ties go by global index, then by rank.

        Raises:
            ValueError: a cost that is negative or not finite, with its sample; a speed that is not finite and positive,
                with its rank; or a token limit that no split found keeps, with one that it does.
        """
        check_batch(batch)
        unlimited = replace(batch, token_limit=None)
        split = self._balance(unlimited)
        if batch.token_limit is not None and split.held.max() > batch.token_limit:
            split = self._keep_limit(batch, split)
        self._moved.count(unlimited, split.assignment)
        return split.assignment

    def evidence(self) -> Mapping[str, Any]:
        """Bytes moved, and for every 16th batch those that an answer for balance alone would move."""
        return self._moved.evidence()

    def _balance(self, batch: BatchMeta) -> Split:
        """Steps 1 and 2."""
        split = Split.of(batch, batch.source if self._free else even_counts(batch.source, batch.ranks), free=self._free)
        trade(split)
        if tried := is_nearly_level(split):
            level(split)
        if split.slowest <= split.enough:
            return split
        other = self._deal_anew(split, batch)
        relabel(other)
        level(other)
        if other.slowest > other.enough and not tried:
            level(split)
        best = min(split, other, key=_merit)
        if self._free and best.slowest > best.enough:
            best = min(best, split.restart(CostAware()._balance(batch).assignment), key=_merit)
        return best

    def _deal_anew(self, split: Split, batch: BatchMeta) -> Split:
        """The first that is good enough, or the best of all."""
        best = split.restart(deal(batch))
        for strategy in (KarmarkarKarp(), Snake(), self._lpt):
            if best.slowest <= best.enough:
                break
            best = min(best, split.restart(strategy.assign(batch)), key=_merit)
        return best

    def _keep_limit(self, batch: BatchMeta, balanced: Split) -> Split:
        """Step 3, for a batch whose limit `balanced` does not keep."""
        tokens = replace(batch, costs=batch.tokens.astype(np.float64), speeds=np.ones(batch.ranks), token_limit=None)
        fewest = self._balance(tokens).assignment
        splits = [Split.of(batch, start, free=self._free) for start in (balanced.assignment, fewest)]
        for split in splits:
            trade(split)
            level(split)
        best = min(splits, key=_merit)
        if best.excess_tokens.any():
            within_token_limit(batch, fewest)
        return best


def _merit(split: Split) -> tuple[int, float, int]:
    """Less is better: tokens above the limit, then time, then bytes moved; good enough is as good as the best."""
    return int(split.excess_tokens.sum()), max(split.slowest, split.enough), split.moved_bytes


def even_counts(source: NDArray[np.int32], ranks: int) -> Int64:
    """Arrival order, int64[n], but where a rank has too many samples its last ones go to the ranks with too few.

    What does not divide goes to those that have the most.
    """
    counts = np.bincount(source, minlength=ranks)
    places = np.empty_like(counts)
    places[np.argsort(-counts, kind="stable")] = equal_places(len(source), ranks)
    by_rank = np.argsort(source, kind="stable")
    nth = np.arange(len(source)) - np.repeat(counts.cumsum() - counts, counts)
    surplus = by_rank[nth >= places[source[by_rank]]]
    assignment = source.astype(np.int64)
    assignment[surplus] = np.repeat(np.arange(ranks), np.maximum(places - counts, 0))
    return assignment
