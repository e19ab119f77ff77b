"""fsbench: which systems strategies train your sequential recommender fastest, at equal quality, and why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsbench.batches import BalancedBatches
    from fsbench.per_sample import transformer_cost

__version__ = "0.1.0"
__all__ = ["BalancedBatches", "__version__", "transformer_cost"]

# Imported on first use: the command line imports this package to list plugins, and must not wait for numpy.
_HOMES = {"BalancedBatches": "fsbench.batches", "transformer_cost": "fsbench.per_sample"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
