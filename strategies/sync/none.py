"""No synchronisation: the ceiling of throughput and the floor of quality."""

from __future__ import annotations

from fsbench_strategies.sync.local_steps import LocalSteps


class NoSync(LocalSteps):
    """Every rank trains a replica of its own and never hears of the others: the ceiling of throughput."""
