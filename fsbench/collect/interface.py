"""What a network interface carried, held against what the recorder counted.

The recorder sees what enters a process group. Whether it then crossed the emulated link, only the kernel knows: its
counters of the interface are read before the first step and after the last, each time when every rank has come
to a barrier, so that all that was sent before has arrived. The traffic of the barrier itself is in the difference.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from fsbench.launch.cluster import Link

if TYPE_CHECKING:
    from fsbench.train.lanes import Lane

COUNTERS = Path("/sys/class/net")
HEADER_BYTES = 66
"""Ethernet, IPv4 and TCP with timestamps: what a packet of the counters is longer than its payload. A large segment
that the kernel cuts up behind the counter is one packet there, and so is a bare acknowledgement."""
LEAST = 0.95
"""Of the bytes that were counted, the interface must have carried this share."""
MOST = 1.05
OPERATION_BYTES = 512
"""What an operation may add to its bytes: gloo's own headers and the messages that tell a peer to go on."""


@dataclass(frozen=True)
class Traffic:
    """Counters of an interface, or their growth. Bytes are those of whole packets, headers included."""

    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int

    @classmethod
    def read(cls, interface: str) -> Traffic:
        folder = COUNTERS / interface / "statistics"
        return cls(*(int((folder / name).read_text()) for name in ("tx_bytes", "tx_packets", "rx_bytes", "rx_packets")))

    def since(self, earlier: Traffic) -> Traffic:
        return Traffic(
            self.sent_bytes - earlier.sent_bytes,
            self.sent_packets - earlier.sent_packets,
            self.received_bytes - earlier.received_bytes,
            self.received_packets - earlier.received_packets,
        )

    @property
    def sent_payload(self) -> int:
        return self.sent_bytes - HEADER_BYTES * self.sent_packets

    @property
    def received_payload(self) -> int:
        return self.received_bytes - HEADER_BYTES * self.received_packets


@dataclass(frozen=True)
class LinkUse:
    """One rank's share of a span, or one host's. `traffic`: of the host's interface, which its ranks see alike.

    `counted_bytes`, `operations`: what the recorder saw leave for other hosts, and in how many operations.
    `counted_received`: what it saw come from servers, who keep no record of their own.
    """

    link: Link
    traffic: Traffic
    counted_bytes: int
    operations: int
    counted_received: int = 0

    @property
    def bypassed(self) -> bool:
        return (
            self.traffic.sent_payload < LEAST * self.counted_bytes
            or self.traffic.received_payload < LEAST * self.counted_received
        )

    def figures(self) -> str:
        counted = f"counted {self.counted_bytes}, the interface carried {self.traffic.sent_payload}"
        if not self.counted_received:
            return counted
        return f"{counted}; from servers {self.counted_received}, it received {self.traffic.received_payload}"

    @property
    def excessive(self) -> bool:
        return self.traffic.sent_payload > MOST * self.counted_bytes + OPERATION_BYTES * self.operations


class LinkMeter:
    """Measures from when it is made to its end. Both are collective, and no operation of `lanes` may be under way."""

    def __init__(self, link: Link, lanes: Collection[Lane]) -> None:
        self._link = link
        self._logs = [lane.log for lane in lanes]
        first = dist.get_rank() // link.ranks_a_host * link.ranks_a_host
        for log in (lane.log for lane in lanes if lane.collective):
            log.host = range(first, first + link.ranks_a_host)
        dist.barrier()
        self._counted = self._count()
        self._traffic = Traffic.read(link.interface)

    def end(self) -> LinkUse:
        dist.barrier()
        traffic = Traffic.read(self._link.interface).since(self._traffic)
        sent, operations, received = (now - before for now, before in zip(self._count(), self._counted, strict=True))
        # One more: the barrier.
        return LinkUse(self._link, traffic, sent, operations + 1, received)

    def _count(self) -> tuple[int, ...]:
        """Bytes sent, operations, and bytes received of all logs so far."""
        return tuple(map(sum, zip(*((*log.crossing(), log.received()) for log in self._logs), strict=True)))


def by_host(uses: Sequence[LinkUse]) -> list[LinkUse]:
    """What the hosts used, from what their ranks did; `uses`: by rank, those of a host in a row."""
    size = uses[0].link.ranks_a_host
    hosts = [uses[first : first + size] for first in range(0, len(uses), size)]
    return [
        LinkUse(
            ranks[0].link,
            ranks[0].traffic,
            sum(rank.counted_bytes for rank in ranks),
            sum(rank.operations for rank in ranks),
            sum(rank.counted_received for rank in ranks),
        )
        for ranks in hosts
    ]


def link_evidence(uses: Sequence[LinkUse]) -> dict[str, Any]:
    """What the link carried in all, for the record. `uses`: by rank.

    `rate` in bit/s. `interface_bytes` is payload, `packets` those it came in. `ratio`, interface to counted bytes, is
    None where the two do not compare; `unchecked` then says why. `from_servers`: the same of what servers sent, None
    without them.
    """
    hosts = by_host(uses)
    counted = sum(host.counted_bytes for host in hosts)
    carried = sum(host.traffic.sent_payload for host in hosts)
    from_servers = sum(host.counted_received for host in hosts)
    arrived = sum(host.traffic.received_payload for host in hosts)
    return {
        "rate": uses[0].link.bits_per_s,
        "counted_bytes": counted,
        "interface_bytes": carried,
        "packets": sum(host.traffic.sent_packets for host in hosts),
        "ratio": carried / counted if counted else None,
        "warning": _first_figures("more on the link than was counted", [host for host in hosts if host.excessive]),
        "unchecked": None if counted else "nothing was sent to another host",
        "from_servers": {"counted_bytes": from_servers, "interface_bytes": arrived} if from_servers else None,
    }


def bypass(uses: Sequence[LinkUse]) -> str | None:
    """Why the figures of the run are not those of its link, or None: the first host whose bytes went another way."""
    return _first_figures("bytes bypassed the link", [host for host in by_host(uses) if host.bypassed])


def _first_figures(what: str, hosts: Sequence[LinkUse]) -> str | None:
    return next((f"{what}: {host.figures()}" for host in hosts), None)
