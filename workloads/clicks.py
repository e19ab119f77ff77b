"""Where click-through examples come from: what the sources of workload `ctr` have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsbench.samples import Int64, Jagged

HELD_OUT_TENTH = 10
"""One example in so many is held out of a finite source: the last in time."""


@dataclass(frozen=True)
class Examples:
    """`n` impressions with `d` dense and `c` categorical features.

    `dense`: float32[n, d]. `bags`: n * c bags of rows, example by example, feature by feature; int64, each a row of its
    feature's own table. `clicked`: bool[n].
    """

    dense: NDArray[np.float32]
    bags: Jagged
    clicked: NDArray[np.bool_]


class Source(ABC):
    """Examples in the order of time, each at its place.

    `dense`: how many dense features. `rows`: rows of each categorical feature's table. `train`: places below it are to
    train on; None for a stream without end. `held_out`: places to evaluate on, none of which is ever trained.
    `protocol`: what is held out, in words.
    """

    dense: int
    rows: Sequence[int]
    train: int | None
    held_out: range
    protocol: str

    @abstractmethod
    def read(self, places: Int64) -> Examples:
        """The examples at some places.

        Raises:
            DataError: an example is malformed: the file and the line.
        """

    @abstractmethod
    def fingerprint(self) -> Mapping[str, Any]:
        """What the examples are, for the manifest."""


def split_in_time(examples: int) -> tuple[int, range]:
    """How many of them are to train on, and the places that are held out."""
    train = examples - examples // HELD_OUT_TENTH
    return train, range(train, examples)
