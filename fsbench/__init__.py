"""fsbench: which systems strategies train your sequential recommender fastest, at equal quality, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsbench.batches import BalancedBatches, transformer_cost

__version__ = "0.1.0"
__all__ = ["BalancedBatches", "__version__", "transformer_cost"]


def __getattr__(name: str) -> Any:
    # On first use only: the command line imports this package to list plugins, and must not wait for numpy.
    if name in __all__:
        from fsbench import batches

        return getattr(batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
