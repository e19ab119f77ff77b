"""Which server processes a cell has, and what they are called."""

from __future__ import annotations

import pytest

from fsbench.errors import FsbenchError
from fsbench.roles import member_names, server_processes
from tests import support


def asking(**roles):
    """The default strategies, some of which ask for processes."""
    chosen = support.strategies()
    for axis, asked in roles.items():
        getattr(chosen, axis).roles = lambda asked=asked: asked
    return {axis: getattr(chosen, axis) for axis in support.AXES}


def test_servers_come_after_the_ranks_in_the_order_of_the_axes():
    servers = server_processes(asking(sync={"averager": 1}, embedding={"keeper": 2}))
    assert member_names(2, servers) == ["rank 0", "rank 1", "keeper 0", "keeper 1", "averager 0"]
    assert [server.lane for server in servers] == ["keeper-0", "keeper-1", "averager-0"]
    assert [server.waits_as for server in servers] == ["embedding", "embedding", "dense"]


def test_there_are_none_unless_a_strategy_asks():
    assert server_processes(asking()) == []


def test_a_role_is_of_one_strategy_and_has_a_process_at_least():
    with pytest.raises(FsbenchError, match="embedding and sync both ask for keeper processes"):
        server_processes(asking(embedding={"keeper": 1}, sync={"keeper": 1}))
    with pytest.raises(FsbenchError, match="embedding asks for 0 keeper processes, expected at least 1"):
        server_processes(asking(embedding={"keeper": 0}))
