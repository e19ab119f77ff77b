"""Versions, options, steps and data that differ between ranks are named before anything else is exchanged."""

from __future__ import annotations

import pytest

from fsbench.launch.handover import Order
from fsbench.options import Spec
from tests import support

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(90)

CELL = {
    "workload": support.TINY_LONG,
    "cluster": "local",
    "sharding": "cost-aware",
    "embedding": "plain",
    "collectives": "-",
    "sync": "none",
}


def order(**changes) -> Order:
    cell = {**CELL, **{key: value for key, value in changes.items() if key in CELL}}
    return Order(cell, changes.get("seed", 1), changes.get("steps", 8), 60.0, None)


def facts_of(asked: Order) -> dict[str, str]:
    import torch

    from fsbench.axes import AXES
    from fsbench.plugins import create
    from fsbench.train import agreement
    from fsbench.train.trainer import Strategies

    workload = create("workloads", Spec.parse(asked.cell["workload"]))
    workload.prepare(None, asked.seed)
    strategies = Strategies(**{axis: create(axis, asked.strategy(axis)) for axis in AXES})
    return dict(agreement.facts(asked, workload, strategies, torch.device("cpu")))


def test_facts_name_versions_origins_options_and_data():
    facts = facts_of(order())
    assert facts["fsbench"] == "0.1.0"
    assert facts["torch"] == torch.__version__
    assert facts["sharding cost-aware"].startswith("fsbench 0.1.0, options ")
    assert facts["collectives backend"].startswith(
        "fsbench 0.1.0, "
    )  # what serves the loader where the axis is ignored
    assert facts["steps"] == "8"
    assert "shuffle" in facts["lanes"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"steps": 9}, "steps"),
        ({"seed": 2}, "seed"),
        ({"sharding": "naive"}, "sharding cost-aware"),
        ({"workload": support.with_options(support.TINY_LONG, lr=0.5)}, f"workload {Spec.parse(support.TINY_LONG)}"),
        ({"workload": support.with_options(support.TINY_LONG, items=60)}, "data"),
    ],
)
def test_what_an_order_changes_shows_in_the_facts(change, name):
    here, there = facts_of(order()), facts_of(order(**change))
    assert here[name] != there.get(name)


def compare(rank, ranks, own):
    from fsbench.errors import FsbenchError
    from fsbench.train.agreement import require_agreement

    try:
        require_agreement(own[rank])
    except FsbenchError as error:
        return str(error)
    return None


BASE = {"fsbench": "0.1.0", "steps": "8"}


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("own", "message"),
    [
        ([BASE, BASE, BASE], None),
        ([BASE, {**BASE, "fsbench": "0.2.0"}, BASE], "rank 1 has fsbench 0.2.0, rank 0 0.1.0"),
        (
            [BASE, BASE, {"fsbench": "1", "steps": "9"}],
            "rank 2 has fsbench 1, rank 0 0.1.0; rank 2 has steps 9, rank 0 8",
        ),
        ([BASE, BASE, {**BASE, "sync odd": "odd 3"}], "rank 2 has sync odd odd 3, rank 0 none"),
    ],
)
def test_ranks_that_differ_are_named_with_both_values_on_every_rank(ranks, own, message):
    expected = message and f"ranks do not agree: {message}"
    assert ranks.run(compare, 3, own) == [expected] * 3


def test_a_server_that_differs_is_named_with_both_values():
    from fsbench.errors import FsbenchError
    from fsbench.roles import ServerProcess
    from fsbench.train.agreement import require_same, tell_facts

    store, servers = torch.distributed.HashStore(), [ServerProcess("embedding", "keeper", place, 2) for place in (0, 1)]
    for server in servers:
        tell_facts(BASE, store, server)
    require_same(BASE, store, servers)
    tell_facts({**BASE, "fsbench": "0.2.0"}, store, servers[1])
    with pytest.raises(FsbenchError) as error:
        require_same(BASE, store, servers)
    assert str(error.value) == "ranks and servers do not agree: keeper 1 has fsbench 0.2.0, rank 0 0.1.0"
