"""What a network interface carried, held against what the recorder counted.

The recorder sees what enters a process group. Whether it then crossed the emulated link, only the kernel knows: its
counters of the interface are read before the first step and after the last, each time when every rank has come
to a barrier, so that all that was sent before has arrived. The traffic of the barrier itself is in the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fsbench.collect.recorder import OperationLog
from fsbench.launch.cluster import Link

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


@dataclass(frozen=True)
class LinkUse:
    """One rank's share of a span. `traffic`: of its host's interface, which ranks of one host see alike.

    `counted_bytes`, `operations`: what the recorder saw this rank send to others, and in how many operations.
    """

    link: Link
    traffic: Traffic
    counted_bytes: int
    operations: int

    @property
    def bypassed(self) -> bool:
        return self.traffic.sent_payload < LEAST * self.counted_bytes

    @property
    def excessive(self) -> bool:
        return self.traffic.sent_payload > MOST * self.counted_bytes + OPERATION_BYTES * self.operations


class LinkMeter:
    """Measures from when it is made to its end. Both are collective, and no operation of `logs` may be under way."""

    def __init__(self, link: Link, logs: Iterable[OperationLog]) -> None:
        self._link = link
        self._logs = list(logs)
        dist.barrier()
        self._counted, self._operations = self._count()
        self._traffic = Traffic.read(link.interface)

    def end(self) -> LinkUse:
        dist.barrier()
        traffic = Traffic.read(self._link.interface).since(self._traffic)
        counted, operations = self._count()
        return LinkUse(self._link, traffic, counted - self._counted, operations - self._operations)

    def _count(self) -> tuple[int, int]:
        """Bytes and operations of all logs so far."""
        sent = [log.arrays(sorted(log.kinds())).bytes_sent for log in self._logs]
        return sum(int(column.sum()) for column in sent), sum(map(len, sent))


def link_evidence(uses: Sequence[LinkUse]) -> dict[str, Any]:
    """What the link carried in all, for the record. `uses`: by rank.

    `rate` in bit/s. `interface_bytes` is payload, `packets` those it came in. `ratio`, interface to counted bytes, is
    None where the two do not compare; `unchecked` then says why.
    """
    link = uses[0].link
    by_host = uses[:: link.ranks_a_host]
    counted = sum(use.counted_bytes for use in uses)
    carried = sum(use.traffic.sent_payload for use in by_host)
    unchecked = _unchecked(link, counted)
    return {
        "rate": link.bits_per_s,
        "counted_bytes": counted,
        "interface_bytes": carried,
        "packets": sum(use.traffic.sent_packets for use in by_host),
        "ratio": None if unchecked else carried / counted,
        "warning": None if unchecked else _warning(uses),
        "unchecked": unchecked,
    }


def bypass(uses: Sequence[LinkUse]) -> str | None:
    """Why the figures of the run are not those of its link, or None: the first host whose bytes went another way."""
    if uses[0].link.ranks_a_host > 1:
        return None
    return next((f"bytes bypassed the link: {_figures(use)}" for use in uses if use.bypassed), None)


def _unchecked(link: Link, counted: int) -> str | None:
    if link.ranks_a_host > 1:
        return f"{link.ranks_a_host} ranks share a host: the recorder does not tell what they send to each other apart"
    return None if counted else "nothing was sent"


def _warning(uses: Sequence[LinkUse]) -> str | None:
    return next((f"more on the link than was counted: {_figures(use)}" for use in uses if use.excessive), None)


def _figures(use: LinkUse) -> str:
    return f"counted {use.counted_bytes}, the interface carried {use.traffic.sent_payload}"
