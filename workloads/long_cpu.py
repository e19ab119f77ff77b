"""A synthetic workload with the shape of industrial histories, scaled to what a CPU trains in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fsbench.samples import Int64, Jagged
from fsbench.workload import Ranking
from fsbench_workloads import keyed
from fsbench_workloads.lengths import GammaLengths
from fsbench_workloads.markov import ItemChain
from fsbench_workloads.next_item import ITEMS, NextItem
from fsbench_workloads.splits import heads, sha256_of, tails

# The shape of the listening histories in Yambda (music), at a tenth of their length.
LENGTH_SHAPE, LENGTH_SCALE = 0.78, 610.0
SHORTEST = 2
_HASHED_SAMPLES = 64


class LongCpu(NextItem):
    """Synthetic long histories for a CPU: gamma lengths up to 2,100, Zipf items, a chain over categories.

    The stream has no end: sample i depends on the seed and on i only. How items follow each other is told in
    `fsbench_workloads.markov`.
    """

    default_steps = 120
    samples_available = None

    @dataclass(frozen=True)
    class Options(NextItem.Options):
        """`items`: size of the catalogue, in `categories`. `eval_users`: held-out histories to rank on."""

        negatives: int = 64
        max_len: int = 2100
        items: int = 2_000
        categories: int = 200
        eval_users: int = 256

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 1 <= self.categories <= self.items:
                raise ValueError(f"categories is {self.categories}, expected 1 to items ({self.items})")
            if self.eval_users < 1:
                raise ValueError(f"eval_users is {self.eval_users}, expected at least 1")

    options: Options

    def prepare(self, data_dir: Path | None, seed: int) -> None:
        """Makes the catalogue; `data_dir` is not used."""
        self.seed = seed
        self._chain = ItemChain(self.options.items, self.options.categories, seed)
        self._lengths = GammaLengths(LENGTH_SHAPE, LENGTH_SCALE, SHORTEST, self.options.max_len)

    @property
    def chain(self) -> ItemChain:
        """The catalogue and the law of its histories."""
        return self._chain

    @property
    def items(self) -> int:
        return self.options.items

    def histories(self, index: Int64) -> Jagged:
        return self._draw("train", index)

    def lengths(self, index: Int64) -> Int64:
        return self._drawn_lengths("train", index)

    def ranking(self) -> Ranking:
        known, targets = self._held_out()
        return Ranking(
            users=self.samples(np.arange(self.options.eval_users), known),
            targets=targets,
            seen=known,
            table=ITEMS,
            baseline_scores=self._chain.popularity(),
            protocol=(
                f"test = last event of {self.options.eval_users:,} held-out synthetic histories, "
                f"full catalogue of {self.items:,} items, seen items removed but for the target; "
                f"popularity = the generator's own long-run item shares"
            ),
        )

    def fingerprint(self) -> Mapping[str, Any]:
        first = self.histories(np.arange(_HASHED_SAMPLES))
        known, targets = self._held_out()
        return {
            "data": f"synthetic, seed {self.seed}",
            "data_sha256": sha256_of(first.values, first.lengths),  # of the first samples of the stream
            "split": "held-out histories",
            "split_sha256": sha256_of(known.values, known.lengths, targets),
            **{name: asdict(self.options)[name] for name in ("items", "categories", "eval_users", "max_len")},
        }

    def _held_out(self) -> tuple[Jagged, Int64]:
        """Histories of a stream that is never trained on: all events but the last, and the last."""
        whole = self._draw("held-out", np.arange(self.options.eval_users))
        ones = np.ones_like(whole.lengths)
        return heads(whole, whole.lengths - ones), tails(whole, ones).values

    def _draw(self, stream: str, index: Int64) -> Jagged:
        return self._chain.histories(stream, index, self._drawn_lengths(stream, index))

    def _drawn_lengths(self, stream: str, index: Int64) -> Int64:
        return self._lengths(keyed.uniform(self.seed, f"{stream}/length", index))
