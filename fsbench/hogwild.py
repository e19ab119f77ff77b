"""Hogwild: several worker threads of a rank train over one copy of its dense parameters. What that asks of a cell."""

from __future__ import annotations

from typing import NamedTuple

from fsbench.axes import DenseSync, EmbeddingExchange, Sharding
from fsbench.costs.weigher import needs_times


class Obstacle(NamedTuple):
    """The strategy of this axis does not go together with several workers, and why."""

    axis: str
    reason: str


def obstacle(
    workers: int, *, sharding: Sharding, embedding: EmbeddingExchange, sync: DenseSync, tables: bool
) -> Obstacle | None:
    """Why a cell cannot be trained by so many worker threads a rank, or None. `tables`: whether there are any."""
    if workers == 1:
        return None
    at_will = f"with workers={workers} each thread of a rank takes its steps when it comes to them"
    if not sync.hogwild or sync.needs_totals:
        return Obstacle("sync", f"{at_will}; it cannot keep such steps together")
    if sharding.moves:
        return Obstacle("sharding", f"{at_will}; it moves samples between ranks in every step")
    if needs_times(sharding):
        return Obstacle("sharding", f"{at_will}; costs=online and speeds=measured compare the steps of all ranks")
    if tables and (embedding.needs_totals or embedding.lanes):
        return Obstacle("embedding", f"{at_will}; all ranks meet in it to exchange rows, unlike with tables on servers")
    return None
