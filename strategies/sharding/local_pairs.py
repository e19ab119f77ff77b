"""Balancing without moving: heavy samples with light ones, among those that a rank itself reads.

Within one global batch nothing can be balanced if no sample changes rank: a rank's work is what it read. What a rank
can choose is *when* it trains what it reads. It reads `window` batches ahead, sorts their samples by length and makes
`window` batches of equal counts out of them, the heaviest beside the lightest. Each of these weighs about as much as
the mean of the window, and means of long windows differ little between ranks. That is what Meta's GEM does in its
readers ("Base Batch Shuffling", July 2026), instead of a shuffle in every step.

The price: **a sample trains up to `window - 1` steps before or after the batch in which it arrived.** All other
strategies keep the members of every global batch; this one keeps those of `window` batches together, so order in time
holds between windows only, and training is not that of the reference (`exact = False`). It is there to compare with, an
ablation of balancing over all ranks. At `window=1` it is `naive`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fsbench.axes import BatchMeta, Sharding
from fsbench.samples import Samples
from fsbench.workload import Loader
from fsbench_strategies.sharding.checks import check_batch, within_token_limit

Int64 = NDArray[np.int64]


class LocalPairs(Sharding):
    """Heavy samples with light ones among the next batches that a rank reads; nothing moves between ranks."""

    @dataclass(frozen=True)
    class Options(Sharding.Options):
        """`window`: batches that a rank reads ahead and makes over."""

        window: int = 8

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.window < 1:
                raise ValueError(f"window is {self.window}, expected at least 1")

    options: Options
    moves: ClassVar[bool] = False
    lookahead: ClassVar[int] = 1
    exact: ClassVar[bool] = False

    def reads(self, loader: Loader) -> Loader:
        return PairingLoader(loader, self.options.window)

    def assign(self, batch: BatchMeta) -> Int64:
        """The rank of each sample, int64[n]: its source. Raises what `checks` refuses."""
        check_batch(batch)
        return within_token_limit(batch, batch.source.astype(np.int64))


class PairingLoader:
    """A loader whose batches are made over within windows of `window` steps: [0, window), [window, 2 * window), ...

    What a step trains depends on the step alone, so that a resumed run goes on as it would have. `window` batches are
    read at first, then one a step, so that no step waits for many: a run reads that many more than it trains.
    """

    def __init__(self, loader: Loader, window: int) -> None:
        self.samples_per_rank = loader.samples_per_rank
        self.costs = loader.costs
        self.cost_features = loader.cost_features
        self.build_batch = loader.build_batch
        self._loader, self._window = loader, window
        self._read: dict[int, Samples] = {}

    def load(self, step: int, rank: int, ranks: int) -> Samples:
        first = step - step % self._window
        window = range(first, first + self._window)
        self._read = {s: batch for s, batch in self._read.items() if s >= first}
        for s in (*window, step + self._window):
            if s not in self._read:
                self._read[s] = self._loader.load(s, rank, ranks)
        batches = [self._read[s] for s in window]
        trained = pair_up(np.concatenate([batch.tokens for batch in batches]), self._window) == step - first
        ends = np.cumsum([len(batch) for batch in batches])
        parts = zip(batches, np.split(trained, ends[:-1]), strict=True)
        return Samples.concatenate([batch.take(np.flatnonzero(part)) for batch, part in parts])


def pair_up(tokens: Int64, batches: int) -> Int64:
    """The batch of each sample, int64[n]: to and fro in order of length, so that the heaviest meet the lightest.

    Counts are equal where n divides. Which batch is which says nothing: time goes by windows.
    """
    row, place = np.divmod(np.arange(len(tokens)), batches)
    batch_of = np.empty(len(tokens), np.int64)
    batch_of[np.argsort(-tokens, kind="stable")] = np.where(row % 2 == 0, place, batches - 1 - place)
    return batch_of
