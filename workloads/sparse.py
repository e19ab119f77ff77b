"""A synthetic workload of few tokens and many rows: its step is embedding exchange as much as compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fsbench.samples import Int64, Jagged
from fsbench_workloads import keyed
from fsbench_workloads.deck import MEMORY, Deck
from fsbench_workloads.lengths import GammaLengths
from fsbench_workloads.next_item import NextItem
from fsbench_workloads.splits import sha256_of

# Lengths of the shape of listening histories, short, and many negatives: on two CPU cores joined by 400 mbit/s the
# rows of a step take about as long as its compute.
LENGTH_SHAPE, LENGTH_SCALE = 0.78, 185.0
SHORTEST = 2
LINK_BYTES_PER_S = 400e6 / 8
_HASHED_SAMPLES = 64


class Sparse(NextItem):
    """Synthetic histories over 2 M rows, of which consecutive batches share a chosen part (`collision`).

    The stream has no end: sample i depends on the seed and on i only. The knob speaks of blocks of samples: where a
    global batch is a block (16 samples on each of 2 ranks) it is the collision rate; smaller and larger batches collide
    less, and the measured rate is what counts. Items are dealt out, not liked (see `fsbench_workloads.deck`): there is
    no order to be learned, so quality is not measured.
    """

    default_steps = 60
    samples_available = None

    @dataclass(frozen=True)
    class Options(NextItem.Options):
        """`items`: rows of the table. `collision`: share of a block's rows, negatives included, that the next block
        touches, 0 to 0.5. `returning`: share that comes back after two or five blocks. `block`: samples in a block."""

        batch: int = 16
        negatives: int = 1024
        max_len: int = 400
        table_optimizer: Literal["sgd", "rowwise-adagrad", "lazy-adam"] = "rowwise-adagrad"
        items: int = 2_000_000
        collision: float = 0.1
        returning: float = 0.02
        block: int = 32

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0 <= self.collision <= 0.5:
                raise ValueError(f"collision is {self.collision}, expected 0 to 0.5")
            if not 0 <= self.returning <= 0.1:
                raise ValueError(f"returning is {self.returning}, expected 0 to 0.1")
            if self.block < 1:
                raise ValueError(f"block is {self.block}, expected at least 1")
            if self.items < (fewest := MEMORY * self.capacity):
                raise ValueError(
                    f"items is {self.items}, expected at least {fewest}: "
                    f"{MEMORY} blocks of {self.block} samples of up to {self.max_len} + {self.negatives} rows"
                )

        @property
        def capacity(self) -> int:
            """The most rows that a block can touch."""
            return self.block * (self.max_len + self.negatives)

    options: Options

    def prepare(self, data_dir: Path | None, seed: int) -> None:
        """Deals the cards; `data_dir` is not used."""
        options = self.options
        self.seed = seed
        self._lengths = GammaLengths(LENGTH_SHAPE, LENGTH_SCALE, SHORTEST, options.max_len)
        self._deck = Deck(
            options.items,
            options.capacity,
            options.block * self._rows_per_sample,
            collision=options.collision,
            returning=options.returning,
            start=int(keyed.integers(options.items, seed, "start")),
        )

    @property
    def items(self) -> int:
        return self.options.items

    def histories(self, index: Int64) -> Jagged:
        block, held, first, lengths = self._places(index)
        return self._deck.rows(block, held, first, lengths)

    def lengths(self, index: Int64) -> Int64:
        return self._lengths(keyed.uniform(self.seed, "length", index))

    def negatives(self, index: Int64) -> Int64:
        """Rows of the block like those of the histories, so that the knob holds over all rows."""
        block, held, first, lengths = self._places(index)
        count = np.full_like(lengths, self.options.negatives)
        return self._deck.rows(block, held, first + lengths, count).values.reshape(len(index), self.options.negatives)

    def fingerprint(self) -> Mapping[str, Any]:
        first = self.histories(np.arange(_HASHED_SAMPLES))
        negatives = self.negatives(np.arange(_HASHED_SAMPLES))
        shaping = ("items", "collision", "returning", "block", "negatives", "max_len")
        return {
            "data": f"synthetic, seed {self.seed}",
            "data_sha256": sha256_of(first.values, first.lengths, negatives),  # of the first samples of the stream
            **{name: asdict(self.options)[name] for name in shaping},
            "sizing": self.sizing(),
        }

    def sizing(self) -> dict[str, float]:
        """A mean step of two ranks that share the table by halves: a rank's tokens and distinct rows; the bytes of rows
        and gradients that both send each other; how long that takes at 400 mbit/s, rows first, gradients later."""
        rows = self.options.batch * self._rows_per_sample
        row_bytes = self.options.dim * np.dtype(self.options.dtype).itemsize
        one_way = rows / 2 * row_bytes
        return {
            "tokens_per_rank": self.options.batch * self._lengths.mean,
            "unique_rows_per_rank": rows,
            "exchanged_bytes_per_step": 2 * 2 * one_way,
            "exchange_s_at_400mbit": 2 * one_way / LINK_BYTES_PER_S,
        }

    @property
    def _rows_per_sample(self) -> float:
        return self._lengths.mean + self.options.negatives

    def _places(self, index: Int64) -> tuple[Int64, Int64, Int64, Int64]:
        """Of each sample, int64[n]: its block, how many rows that holds, its first place there, its length.

        In a block the samples follow each other, each with its history and then its negatives.
        """
        block, seat = np.divmod(index, self.options.block)
        blocks, of = np.unique(block, return_inverse=True)
        members = blocks[:, None] * self.options.block + np.arange(self.options.block)
        lengths = self._lengths(keyed.uniform(self.seed, "length", members))
        ends = np.cumsum(lengths + self.options.negatives, axis=1)
        own = lengths[of, seat]
        return block, ends[of, -1], ends[of, seat] - own - self.options.negatives, own
