"""Collectives under way, and how they share links: at any instant, all users of a class of links have equal parts."""

from __future__ import annotations

from dataclasses import dataclass

from fsbench.sim.machine import Machine
from fsbench.sim.plan import Collective
from fsbench.sim.topology import Link


@dataclass
class Transfer:
    """`moves_at`: when its bytes begin to move. `left`: nanoseconds of each link that it still needs for itself."""

    collective: Collective
    begun: int
    moves_at: int
    left: dict[Link, float]


class Transfers:
    """All that are under way. Time only goes forward, from event to event."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._under_way: list[Transfer] = []
        self._now = 0

    def begin(self, collective: Collective, now: int) -> None:
        """All ranks have come to it."""
        moves_at = now + self._machine.latency(collective)
        self._under_way.append(Transfer(collective, now, moves_at, self._machine.demand(collective)))

    @property
    def slowdown(self) -> float:
        """How much longer compute takes beside them, as a share."""
        return sum(self._machine.slowdown.get(transfer.collective.engine, 0.0) for transfer in self._under_way)

    def next_event(self) -> int | None:
        """When one begins to move bytes, is done with a link or ends; None if nothing is under way."""
        users = self._users()
        events = [
            transfer.moves_at
            if transfer.moves_at > self._now
            else self._now + round(min((left * users[link] for link, left in transfer.left.items()), default=0.0))
            for transfer in self._under_way
        ]
        return min(events, default=None)

    def advance(self, now: int) -> list[Collective]:
        """Goes on to `now`, which is not beyond the next event; returns what ends there."""
        users, elapsed = self._users(), now - self._now
        for transfer in self._moving():
            left = {link: left - elapsed / users[link] for link, left in transfer.left.items()}
            # Less than half a nanosecond is the rounding of an event's time.
            transfer.left = {link: rest for link, rest in left.items() if rest * users[link] > 0.5}
        self._now = now
        ended = [transfer for transfer in self._moving() if not transfer.left]
        self._under_way = [transfer for transfer in self._under_way if transfer not in ended]
        return [transfer.collective for transfer in ended]

    def _moving(self) -> list[Transfer]:
        return [transfer for transfer in self._under_way if transfer.moves_at <= self._now]

    def _users(self) -> dict[Link, int]:
        users: dict[Link, int] = {}
        for transfer in self._moving():
            for link in transfer.left:
                users[link] = users.get(link, 0) + 1
        return users
