"""What a sweep may ask for by name: laws of history lengths, and costs from lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsbench import transformer_cost
from fsbench.errors import UserError
from fsbench.options import Spec, build_options, nearest


@dataclass(frozen=True)
class Gamma:
    shape: float
    scale: float

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return rng.gamma(self.shape, self.scale, n)


@dataclass(frozen=True)
class Lognormal:
    mean: float
    sigma: float

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return rng.lognormal(self.mean, self.sigma, n)


@dataclass(frozen=True)
class Normal:
    mean: float
    sd: float

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return rng.normal(self.mean, self.sd, n)


@dataclass(frozen=True)
class Length:
    """Cost L."""

    def of(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        return lengths.astype(np.float64)


@dataclass(frozen=True)
class Transformer:
    """Cost 24 L dim^2 + 4 L^2 dim."""

    dim: int

    def of(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        return transformer_cost(self.dim)(lengths)


LAWS = {"gamma": Gamma, "lognormal": Lognormal, "normal": Normal}
COSTS = {"length": Length, "transformer": Transformer}


def law(text: str) -> Any:
    """The law of lengths that `name:key=value` asks for."""
    return _chosen(LAWS, text, "law of lengths")


def cost(text: str) -> Any:
    """The cost that `name:key=value` asks for."""
    return _chosen(COSTS, text, "cost")


def _chosen(kinds: dict[str, type], text: str, what: str) -> Any:
    spec = Spec.parse(text)
    if spec.name not in kinds:
        raise UserError(f"unknown {what} {spec.name!r}; {nearest(spec.name, kinds)}")
    return build_options(kinds[spec.name], spec.options, owner=f"{what} {spec.name}")
