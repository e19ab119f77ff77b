"""Random numbers by key, not by turn: the value at (seed, stream, words...) is a hash of just that.

Whatever is drawn with a sample is keyed by the sample's index, so a sample is the same on any rank, in any
order and for any number of ranks. Words are integers or integer arrays that broadcast against each other;
everything is vectorised over them.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The constants of splitmix64 (Steele, Lea and Flood, 2014): its increment and the multipliers of its
# finaliser.
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)


def bits(seed: int, stream: str, *words: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits for each key: uint64, in the broadcast shape of `words`.

    `stream` names what the numbers are for: streams of one seed are unrelated.
    """
    state = np.asarray(_start(seed, stream))
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is the point
        for word in words:
            state = np.asarray(_mix((state ^ np.asarray(word).astype(np.uint64)) + _INCREMENT))
    return state


def uniform(seed: int, stream: str, *words: ArrayLike) -> NDArray[np.float64]:
    """A multiple of 2**-53 in [0, 1) for each key."""
    return (bits(seed, stream, *words) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(below: int, seed: int, stream: str, *words: ArrayLike) -> NDArray[np.int64]:
    """An int64 in [0, below) for each key; no value is favoured by more than `below` / 2**64.

    Raises:
        ValueError: `below` is less than 1.
    """
    if below < 1:
        raise ValueError(f"no integer is in [0, {below})")
    return (bits(seed, stream, *words) % np.uint64(below)).astype(np.int64)


def permutation(n: int, seed: int, stream: str, *words: int) -> NDArray[np.int64]:
    """A random order of 0..n-1, int64[n]."""
    return np.argsort(bits(seed, stream, *words, np.arange(n)), kind="stable").astype(np.int64)


@functools.lru_cache(maxsize=256)
def _start(seed: int, stream: str) -> np.uint64:
    """The state before the first word: a digest of the seed and of the stream's name."""
    digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection in which every input bit moves every output bit."""
    state = (state ^ (state >> np.uint64(30))) * _FIRST_MULTIPLIER
    state = (state ^ (state >> np.uint64(27))) * _SECOND_MULTIPLIER
    return state ^ (state >> np.uint64(31))
