"""A number for each sample of somebody's data set: read once, and refused with the sample's index where it is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fsbench.errors import UserError

PerSample = ArrayLike | Callable[[NDArray], ArrayLike]
"""[n], a number for each sample; or a function that makes them from the lengths, [n] to [n]."""

MOST_TOKENS = 2**53
"""Lengths are tokens, which strategies add up as int64; float64 counts them exactly up to here."""


def transformer_cost(dim: int) -> Callable[[NDArray], NDArray[np.float64]]:
    """Operations of a transformer layer of width `dim` forward, by length: `24 dim^2 L + 4 dim L^2`, float64[n].

    The projections and a feed-forward block four times as wide, then queries by keys and weights by values. Backward
    and further layers multiply all costs alike, which no balance depends on.
    """

    def cost(lengths: NDArray) -> NDArray[np.float64]:
        tokens = np.asarray(lengths, np.float64)
        return 24.0 * dim**2 * tokens + 4.0 * dim * tokens**2

    return cost


def size_of(data: Any) -> int:
    """How many samples a map-style data set has.

    Raises:
        UserError: it is a stream.
    """
    kind = type(data)
    # torch's streams inherit a `__getitem__`, which only raises.
    stream = any(base.__name__ == "IterableDataset" for base in kind.__mro__)
    if stream or not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
        raise UserError(f"{kind.__name__} is no map-style data set: balancing needs len() and [index], not a stream")
    return len(data)


def read_lengths(data: Any, lengths: ArrayLike | Callable[[Any], float], n: int) -> NDArray:
    """[n], from an array or from a function of a sample, which is called once for each.

    Raises:
        UserError: what `read_numbers` refuses, or more tokens than can be added up.
    """
    if callable(lengths):
        lengths = np.fromiter((lengths(data[i]) for i in range(n)), np.float64, n)
    values = read_numbers("length", lengths, n)
    if len(values) and values.max() > MOST_TOKENS:
        sample = int(values.argmax())
        raise UserError(f"length {values[sample]} of sample {sample} is above 2**53: a cost? cost= takes it")
    return values


def from_lengths(name: str, given: PerSample, lengths: NDArray) -> NDArray:
    """[n], from an array or from a function of the lengths, which gets them as float64[n]: integers may be too narrow
    for what it makes of them."""
    return read_numbers(name, given(lengths.astype(np.float64)) if callable(given) else given, len(lengths))


def whole(name: str, values: NDArray) -> NDArray[np.int64]:
    """[n] whole numbers as int64.

    Raises:
        UserError: one with a fraction, or too large to be added up.
    """
    bad = np.flatnonzero((values != np.floor(values)) | (values > MOST_TOKENS))
    if len(bad):
        raise UserError(f"{name} {values[bad[0]]} of sample {bad[0]} is not a whole number of at most 2**53")
    return values.astype(np.int64)


def read_numbers(name: str, given: ArrayLike, n: int) -> NDArray:
    """[n], of the type that was given: nothing is copied, so an array on disk stays there.

    Raises:
        UserError: not a number for each sample, or one that is negative or not finite.
    """
    values = np.asarray(given)
    if values.shape != (n,) or values.dtype.kind not in "iuf":
        raise UserError(f"{name}: got {values.dtype} of shape {values.shape}; expected {n} numbers, one a sample")
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        raise UserError(f"{name} {values[bad[0]]} of sample {bad[0]} is not finite and >= 0")
    return values
