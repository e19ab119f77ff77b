"""Replicas that each meet a central copy, and never each other: elastic averaging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fsbench.axes import ServerContext
from fsbench_strategies.sync.synced import Synced

if TYPE_CHECKING:
    from fsbench_strategies.sync.central import SyncServer
    from fsbench_strategies.sync.exchange import Exchange
    from fsbench_strategies.sync.replica import Replica

ROLE = "sync-server"


@dataclass(frozen=True)
class ElasticOptions:
    """Options of `Elastic`, to be mixed into those of when replicas meet."""

    servers: int = 1
    order: Literal["push-pull", "symmetric"] = "push-pull"

    def check_servers(self) -> None:
        """Raises:
        ValueError: a value out of its range.
        """
        if not 1 <= self.servers <= 64:
            raise ValueError(f"servers is {self.servers}, expected 1 to 64")


class Elastic(Synced):
    """A replica and the central copy approach each other by alpha, on server processes that hold a slice of it each.

    Every rank asks them on its own: no collective, and no rank waits for another.
    """

    together = False
    options: Any  # ElasticOptions, with alpha

    def roles(self) -> Mapping[str, int]:
        return {ROLE: self.options.servers}

    def serve(self, context: ServerContext) -> SyncServer:
        from fsbench_strategies.sync.central import SyncServer

        return SyncServer(context.dtype, self.options.alpha, self.options.order)

    def open_exchange(self, replica: Replica) -> Exchange:
        from fsbench_strategies.sync.central import CentralExchange

        return CentralExchange(replica, self.context.servers[ROLE])
