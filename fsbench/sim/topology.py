"""Which links the bytes of a collective take, and how many hops it has. A hop costs latency, a link has a rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

Link = Literal["host", "memory", "rail", "across", "pcie"]
"""Classes of links. `host`: between devices of one host; `memory`: between its ranks through host memory; `rail`: a
rank's own way out of its host; `across`: beyond the rail, to other hosts' devices of another place in their host;
`pcie`: between a device and host memory. Every rank has one of each, in either direction."""
LINKS: tuple[Link, ...] = ("host", "memory", "rail", "across", "pcie")
BETWEEN_HOSTS: tuple[Link, ...] = ("rail", "across")


@dataclass(frozen=True)
class Traffic:
    """A collective in bytes. `sent`: int64[ranks], as the recorder counts what a rank sends. `inside`, `rail`,
    `across`: on the busiest link of that class in either direction; `inside`: between ranks of one host. `hops`: how
    many there are one after the other, inside a host and between hosts."""

    sent: Int64
    inside: float
    rail: float
    across: float
    hops: tuple[int, int]


@dataclass(frozen=True)
class Topology:
    """`ranks` on hosts of `ranks_a_host`, those of a host in a row."""

    ranks: int
    ranks_a_host: int

    @property
    def hosts(self) -> int:
        return self.ranks // self.ranks_a_host

    def all_to_all(self, between: Int64) -> Traffic:
        """`between`: int64[ranks, ranks], bytes from rank to rank; what stays on a rank takes no link."""
        hosts, size = self.hosts, self.ranks_a_host
        own = between.diagonal()
        # By host and place in it, of the sender and of the receiver.
        cube = between.reshape(hosts, size, hosts, size)
        at_home = np.arange(hosts)
        home = cube[at_home, :, at_home, :]  # [hosts, senders, receivers]
        out, came = between.sum(axis=1), between.sum(axis=0)
        rail = _busiest(out - home.sum(axis=2).ravel(), came - home.sum(axis=1).ravel())
        places = np.arange(size)
        same = cube[:, places, :, places]  # [places, hosts, hosts]: between devices of one place
        along_out, along_in = (same.sum(axis=axis).T.ravel() for axis in (2, 1))
        beyond = _busiest(
            out - home.sum(axis=2).ravel() - (along_out - own), came - home.sum(axis=1).ravel() - (along_in - own)
        )
        inside = _busiest(home.sum(axis=2).ravel() - own, home.sum(axis=1).ravel() - own)
        return Traffic(out - own, inside, rail, beyond, (int(inside > 0), int(rail > 0)))

    def all_gather(self, block: int) -> Traffic:
        """A ring: every block passes every rank; a host's ranks share its ways out. `block`: bytes of each rank."""
        return self._ring((self.ranks - 1) * block, (self.ranks - self.hosts, self.hosts - 1))

    def all_reduce(self, size: int) -> Traffic:
        """Bytes as of a ring, up and down; hops as of a tree over the hosts, which libraries take where latency counts.

        `size`: bytes of the tensor.
        """
        hops = (2 * (self.ranks_a_host - 1), 2 * int(np.ceil(np.log2(self.hosts))))
        return self._ring(2 * size * (self.ranks - 1) // self.ranks, hops)

    def _ring(self, sent: int, hops: tuple[int, int]) -> Traffic:
        inside = float(sent) if self.ranks_a_host > 1 else 0.0
        rail = sent / self.ranks_a_host if self.hosts > 1 else 0.0
        return Traffic(np.full(self.ranks, sent, np.int64), inside, rail, 0.0, hops)


def links_of(traffic: Traffic, engine: str, copied: float) -> Mapping[Link, float]:
    """Bytes on the busiest link of each class that is used. What hosts drive stays off the links between devices."""
    inside: Link = "host" if engine == "sm" else "memory"
    used: dict[Link, float] = {inside: traffic.inside, "rail": traffic.rail, "across": traffic.across, "pcie": copied}
    return {link: size for link, size in used.items() if size}


def _busiest(*loads: Int64) -> float:
    return float(max(load.max(initial=0) for load in loads))
