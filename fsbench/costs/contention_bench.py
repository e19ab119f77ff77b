"""The order in which a kernel is timed alone and beside copies. What is timed, and on what, is behind `Machine`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fsbench.costs.contention import Pair, Row, row


@dataclass(frozen=True)
class Copy:
    """A way to copy. `blocks`: thread blocks that do it, 0 for copy engines. `reason`: why it cannot be had here."""

    name: str
    blocks: int
    reason: str | None = None


class Machine(Protocol):
    """What kernels and copies run on."""

    kernels: Sequence[str]
    copies: Sequence[Copy]

    def time(self, kernel: str, copy: Copy) -> Pair:
        """The kernel alone, then beside the copy."""


def measure(machine: Machine, repeats: int, seed: int, on_pair: Callable[[int, int], None]) -> list[Row]:
    """Every kernel beside every copy, `repeats` times, in an order that is shuffled anew each time: what drifts meets
    all alike. `on_pair`: told after each pair how many of how many are done."""
    combinations = [(kernel, copy) for kernel in machine.kernels for copy in machine.copies]
    possible = [(kernel, copy) for kernel, copy in combinations if copy.reason is None]
    pairs: dict[tuple[str, Copy], list[Pair]] = {combination: [] for combination in combinations}
    generator, done = random.Random(seed), 0
    for _ in range(repeats):
        for kernel, copy in generator.sample(possible, len(possible)):
            pairs[kernel, copy].append(machine.time(kernel, copy))
            done += 1
            on_pair(done, repeats * len(possible))
    return [_row(kernel, copy, pairs[kernel, copy]) for kernel, copy in combinations]


def _row(kernel: str, copy: Copy, pairs: Sequence[Pair]) -> Row:
    if copy.reason is not None:
        return Row(kernel, copy.name, copy.blocks, 0, reason=copy.reason)
    return row(kernel, copy.name, copy.blocks, pairs)
