"""A rank's own work in exchanging rows with 256 owners: de-duplicate, split, merge; beside a loop over the owners.

`pytest tests/bench/bench_exchange.py --benchmark-only`: compare within a group.
"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from fsbench.axes import TableSpec
from fsbench.train.distinct import Distinct
from fsbench.train.row_exchange import Asked, ShardedTable
from fsbench_strategies.embedding.classes import Bits, Met, RowClasses, alternate, count_set

OWNERS = 256
IDS = 1_000_000
ROWS = 2_000_000
DIM = 16


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def table():
    context = SimpleNamespace(ranks=OWNERS, rank=0, seed=0, dtype=torch.float32, device=torch.device("cpu"))
    return ShardedTable(TableSpec("items", ROWS, DIM, "sgd", 1e-3), context)


@pytest.fixture(scope="module")
def ids():
    """Zipf-like: popular rows many times, as histories have them."""
    uniform = torch.rand(IDS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (ROWS**uniform).long() % ROWS


@pytest.fixture(scope="module")
def met(table, ids):
    """A batch at its owner, a tenth of whose rows the batch before has too; every rank asks for what this one asks."""
    route = table.route(ids)
    shared = torch.rand(len(route.slots), generator=torch.Generator().manual_seed(1)) < 0.1
    asked = Asked(route.slots.long(), route.splits, max(route.splits))
    return Met(1, route, asked, Bits(shared, shared), needed=Bits(shared, shared))


def loop_route(table, ids):
    owners, spread = table.partition.key(ids) // table.partition.slots, torch.empty_like(ids)
    parts, splits, first = [], [], 0
    for owner in range(OWNERS):
        mine = (owners == owner).nonzero().flatten()
        slots, inverse = torch.unique(table.partition.key(ids[mine]) % table.partition.slots, return_inverse=True)
        parts.append(slots.int())
        splits.append(len(slots))
        spread[mine] = inverse + first
        first += len(slots)
    return torch.cat(parts), splits, spread


@pytest.mark.benchmark(group="de-duplicate and group by owner")
def test_route(benchmark, table, ids):
    benchmark(table.route, ids)


@pytest.mark.benchmark(group="de-duplicate and group by owner")
def test_route_by_a_loop_over_owners(benchmark, table, ids):
    slots, splits, spread = benchmark.pedantic(loop_route, (table, ids), rounds=3)
    route = table.route(ids)
    assert splits == route.splits
    assert slots[spread].equal(route.slots[route.spread])


def split(met, gradients):
    """Gradients by class, and how many rows of each class every owner gets."""
    urgent, splits = met.needed.wanted, met.route.splits
    return (
        met.select(gradients, urgent),
        met.select(gradients, ~urgent),
        count_set(urgent, splits),
        count_set(~urgent, splits),
    )


def loop_split(met, gradients):
    urgent, rest, urgent_splits, rest_splits = [], [], [], []
    for bits, places in zip(met.needed.wanted.split(met.route.splits), met.place.split(met.route.splits), strict=True):
        urgent.append(gradients[places[bits]])
        rest.append(gradients[places[~bits]])
        urgent_splits.append(len(urgent[-1]))
        rest_splits.append(len(rest[-1]))
    return torch.cat(urgent), torch.cat(rest), urgent_splits, rest_splits


@pytest.mark.benchmark(group="split gradients by class")
@pytest.mark.parametrize("method", [split, loop_split])
def test_split(benchmark, met, method):
    gradients = torch.rand(len(met.route.slots), DIM)
    urgent, rest, *splits = benchmark(method, met, gradients)
    expected = split(met, gradients)
    assert urgent.equal(expected[0])
    assert rest.equal(expected[1])
    assert splits == list(expected[2:])


@pytest.mark.benchmark(group="merge rows of both classes, spread to the IDs")
def test_merge(benchmark, met):
    shared = torch.rand(int(met.shared.wanted.sum()), DIM)
    early = torch.rand(len(met.route.slots) - len(shared), DIM)
    merged = benchmark(lambda: torch.cat([shared, early]).index_select(0, met.spread))
    assert len(merged) == IDS


@pytest.mark.benchmark(group="merge rows of both classes, spread to the IDs")
def test_spread_alone_as_plain_does(benchmark, met):
    rows = torch.rand(len(met.route.slots), DIM)
    benchmark(lambda: rows.index_select(0, met.route.spread))


@pytest.mark.benchmark(group="class bits of two batches for 256 ranks")
def test_alternate(benchmark, met):
    splits = met.route.splits
    kinds, pairs = benchmark(alternate, splits, splits[::-1])
    assert (int(kinds.sum()), sum(pairs)) == (sum(splits), 2 * sum(splits))


STEP_IDS = 25_000
"""Of one rank in one step of workload `sparse`."""


def per_id(benchmark, what, ids):
    benchmark.extra_info["ns_per_id"] = round(benchmark.stats.stats.min / len(ids) * 1e9, 1)
    print(f"{what}: {benchmark.extra_info['ns_per_id']} ns an ID at best, {len(ids):,} IDs")


@pytest.mark.benchmark(group="nanoseconds an ID")
@pytest.mark.parametrize("count", [STEP_IDS, IDS])
@pytest.mark.parametrize("method", ["stamps", "sort"])
def test_de_duplication(benchmark, capsys, ids, method, count):
    stamps = Distinct(ROWS)
    some = ids[:count]
    found, place = benchmark(stamps if method == "stamps" else partial(torch.unique, return_inverse=True), some)
    assert found[place].equal(some)
    with capsys.disabled():
        per_id(benchmark, f"de-duplication by {method}", some)


@pytest.mark.benchmark(group="nanoseconds an ID")
def test_class_split_on_the_owner(benchmark, capsys):
    """Both classes of a batch: stamp its slots, look who was stamped by the batch before, and the other way round."""
    generator = torch.Generator().manual_seed(0)
    before, now = (torch.randint(ROWS // 2, (STEP_IDS,), generator=generator) for _ in range(2))
    stamps = RowClasses(SimpleNamespace(shard=SimpleNamespace(ids=range(ROWS // 2))))

    def met_before():
        stamps.last_step.fill_(-1)
        stamps.last_step[before] = 0

    shared, needed = benchmark.pedantic(stamps.split, (1, now, 0, before), setup=met_before, rounds=50)
    assert shared.equal(torch.isin(now, before))
    assert needed.equal(torch.isin(before, now))
    with capsys.disabled():
        per_id(benchmark, "class split, both batches", torch.cat([before, now]))
