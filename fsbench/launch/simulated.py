"""Ranks that are not there: their plans are executed against a hardware profile, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsbench.errors import FsbenchError
from fsbench.launch.cluster import Cluster
from fsbench.launch.handover import Order
from fsbench.options import BitRate, rate_text
from fsbench.sim.machine import Machine
from fsbench.sim.profile import load_profile

MOST_RANKS = 2**14


class Simulated(Cluster):
    """Simulated ranks: `sim:PROFILE,ranks=N` on the machine of a hardware profile. Nothing is trained.

    What strategies issue is their plans' word; lengths and assignments are the workload's and the sharding's own.
    """

    kind = "sim"

    @dataclass(frozen=True)
    class Options:
        """`profile`: `h100-ib200`, or a path to FILE.toml. `ranks`: how many. `link`: another rate between hosts than
        the profile's, `400mbit`; each rank is a host then."""

        profile: str
        ranks: int
        link: BitRate | None = None

        def __post_init__(self) -> None:
            if not 1 <= self.ranks <= MOST_RANKS:
                raise ValueError(f"ranks={self.ranks}: expected 1 to {MOST_RANKS}")
            if self.link is not None and self.link < 1:
                raise ValueError(f"link={rate_text(self.link)}: expected more than 0")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._profile = load_profile(options.profile)
        self._machine(seed=0)

    @property
    def ranks(self) -> int:
        return self.options.ranks

    def describe(self) -> str:
        topology = self._machine(seed=0).topology
        text = f"simulated {self._profile.path.stem}: {self.ranks} ranks on {topology.hosts} hosts"
        return f"{text}, {rate_text(self.options.link)} between them" if self.options.link else text

    def simulate(self, order: Order, on_step: Callable[[], None]) -> dict[str, Any]:
        from fsbench.sim.run import simulate
        from fsbench.train.described import describe

        return simulate(order, self._profile, self._machine(order.seed), describe, on_step)

    def command(self, spec_file: Path, servers: int) -> Sequence[str]:
        raise FsbenchError("a simulated machine starts no processes")

    def _machine(self, seed: int) -> Machine:
        link = self.options.link
        return self._profile.machine(self.ranks, seed=seed, bytes_per_s=link / 8 if link else None)
