"""What a plan runs on, in numbers: how fast ranks and links are, and how much they are in each other's way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fsbench.sim.plan import Collective, Engine
from fsbench.sim.topology import Int64, Link, Topology, links_of

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Rate:
    """Of a class of links. `latency_ns`: of each hop of a collective."""

    bytes_per_s: float
    latency_ns: int = 0

    def ns(self, size: float) -> float:
        return size / self.bytes_per_s * 1e9


@dataclass(frozen=True)
class Machine:
    """`slowdown`: by what drives a collective, how much longer compute takes beside one: 0.1 is a tenth. `speeds`:
    float64[ranks], beside which work is measured; 1 unless given. `jitter`: spread of the time of a piece of work, the
    standard deviation of its logarithm, drawn with `seed`; its mean is 1."""

    topology: Topology
    links: Mapping[Link, Rate]
    slowdown: Mapping[Engine, float] = field(default_factory=dict)
    speeds: Float64 | None = None
    jitter: float = 0.0
    seed: int = 0

    def demand(self, collective: Collective) -> dict[Link, float]:
        """By link, nanoseconds that a collective takes of it where nothing else uses it."""
        used = links_of(collective.traffic, collective.engine, collective.copied)
        return {link: self.links[link].ns(size) for link, size in used.items()}

    def latency(self, collective: Collective) -> int:
        """Nanoseconds before its bytes move: its hops, and copies with no wire beside them."""
        inside, between = collective.traffic.hops
        own: Link = "host" if collective.engine == "sm" else "memory"
        hops = inside * self._latency(own) + between * self._latency("rail")
        copies = collective.alone * self.links["pcie"].ns(collective.copied) if collective.copied else 0
        return hops + round(copies)

    def _latency(self, link: Link) -> int:
        return self.links[link].latency_ns if link in self.links else 0

    def durations(self, ns: Int64, random: np.random.Generator) -> Int64:
        """Nanoseconds int64[ranks] that work takes here, by its own on an idle machine."""
        if self.speeds is None and not self.jitter:
            return ns
        times = ns.astype(np.float64)
        if self.speeds is not None:
            times = times / self.speeds
        if self.jitter:
            times = times * np.exp(self.jitter * random.standard_normal(len(ns)) - self.jitter**2 / 2)
        return np.rint(times).astype(np.int64)
