from dataclasses import dataclass

import numpy as np

from fsbench.axes import BatchMeta, Sharding


class RoundRobin(Sharding):
    """Deals samples to ranks in turn."""

    @dataclass(frozen=True)
    class Options:
        """`block`: so many neighbours stay together."""

        block: int = 1

        def __post_init__(self):
            if self.block < 1:
                raise ValueError(f"block is {self.block}, expected at least 1")

    lookahead = 1  # the coming batch moves while this one trains

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self.equal_counts = self.options.block == 1

    def assign(self, batch: BatchMeta) -> np.ndarray:
        return np.arange(len(batch.costs)) // self.options.block % batch.ranks
