"""How far apart two trainings are, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fsbench.testing.trial import Trained
from fsbench.testing.verdicts import Fault

TOLERANCES = {"float64": 1e-9, "float32": 1e-5}
"""In norm, relative to the reference's, by dtype. Sums in another order differ by less than 1e-13 in float64."""


def check_finite(trained: Sequence[Trained]) -> None:
    """Raises:
    Fault: something that training left is NaN or infinite.
    """
    for rank, one in enumerate(trained):
        for name, values in _parts(one).items():
            if not np.isfinite(values).all():
                raise Fault(f"rank {rank}: {name} has values that are not finite")


def check_equal(ours: Sequence[Trained], reference: Sequence[Trained], *, whose: str = "the reference's") -> None:
    """Raises:
    Fault: dense gradients of some step, dense parameters, or tables with their optimizer state, differ.
    """
    for rank, (one, other) in enumerate(zip(ours, reference, strict=True)):
        for name, values in _parts(one).items():
            expected = _parts(other).get(name)
            if expected is None or expected.shape != values.shape:
                raise Fault(f"rank {rank}: {name} is {_shape(values)}, {whose} is {_shape(expected)}")
            if (distance := _distance(values, expected)) > TOLERANCES[str(values.dtype)]:
                raise Fault(f"rank {rank}: {name} differs from {whose} by {distance:.1e} of its norm")


def check_same_bits(first: Sequence[Trained], second: Sequence[Trained]) -> None:
    """Raises:
    Fault: two trainings of the same did not leave the same bits.
    """
    for rank, (one, other) in enumerate(zip(first, second, strict=True)):
        for name, values in _parts(one).items():
            if not np.array_equal(values, _parts(other)[name]):
                distance = _distance(values, _parts(other)[name])
                raise Fault(f"rank {rank}: two trainings differ in {name}, by {distance:.1e} of its norm")


def _parts(trained: Trained) -> Mapping[str, NDArray]:
    """What can be compared, in the order in which it goes wrong."""
    gradients = {f"the dense gradient of step {step}": row for step, row in enumerate(trained.gradients)}
    tables = {f"table {name}": values for name, values in trained.tables.items()}
    return {**gradients, **tables, **{f"parameter {name}": values for name, values in trained.dense.items()}}


def _distance(values: NDArray, expected: NDArray) -> float:
    norm = np.linalg.norm(expected)
    return float(np.linalg.norm(values - expected) / norm) if norm else float(np.linalg.norm(values))


def _shape(values: NDArray | None) -> str:
    return "missing" if values is None else f"of shape {values.shape}"
