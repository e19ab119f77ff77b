"""Row-sharded tables: who owns what, and updates equal to slow obvious ones and to torch's own optimizers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fsbench.axes import TableSpec  # noqa: E402
from fsbench.train.distinct import Distinct  # noqa: E402
from fsbench.train.row_exchange import ShardedTable  # noqa: E402
from fsbench.train.tables import RowPartition, TableShard  # noqa: E402

OPTIMIZERS = ("sgd", "rowwise-adagrad", "lazy-adam")


@given(rows=st.integers(1, 400), ranks=st.integers(1, 9))
def test_every_row_has_one_owner_and_one_slot(rows, ranks):
    partition = RowPartition(rows, ranks)
    owned = [partition.ids(rank) for rank in range(ranks)]
    assert torch.cat(owned).sort().values.equal(torch.arange(rows))
    assert [len(ids) for ids in owned] == [partition.size(rank) for rank in range(ranks)]
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    for rank, ids in enumerate(owned):
        assert partition.key(ids).equal(rank * partition.slots + torch.arange(len(ids)))


def test_neighbouring_rows_spread_evenly_over_ranks():
    partition = RowPartition(1_000_003, 8)
    head = partition.key(torch.arange(800)) // partition.slots
    assert torch.bincount(head, minlength=8).tolist() == pytest.approx([100] * 8, abs=25)


def shard(optimizer, rank=0, ranks=1, rows=30):
    spec = TableSpec("t", rows, 4, optimizer, lr=0.1)
    return TableShard(spec, RowPartition(rows, ranks), rank, 7, torch.float64, "cpu")


@pytest.mark.parametrize("ranks", [2, 3])
def test_initial_rows_do_not_depend_on_the_sharding(ranks):
    whole = shard("sgd")
    by_id = torch.empty_like(whole.weight)
    by_id[whole.ids] = whole.weight
    for rank in range(ranks):
        part = shard("sgd", rank, ranks)
        assert part.weight.equal(by_id[part.ids])


def slow_update(table, optimizer, state, row, gradient, step, lr=0.1):
    """The textbook rule on one row."""
    if optimizer == "sgd":
        table[row] -= lr * gradient
    elif optimizer == "rowwise-adagrad":
        state["sum"][row] += sum(float(g) ** 2 for g in gradient) / len(gradient)
        table[row] -= lr * gradient / (state["sum"][row] ** 0.5 + 1e-8)
    else:
        state["mean"][row] = 0.9 * state["mean"][row] + 0.1 * gradient
        state["variance"][row] = 0.999 * state["variance"][row] + 0.001 * gradient**2
        mean = state["mean"][row] / (1 - 0.9**step)
        variance = state["variance"][row] / (1 - 0.999**step)
        table[row] -= lr * mean / (variance**0.5 + 1e-8 / (1 - 0.999**step) ** 0.5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@given(slots=st.lists(st.integers(0, 29), max_size=12), seed=st.integers(0, 99))
def test_updates_equal_the_textbook_row_by_row(optimizer, slots, seed):
    table = shard(optimizer)
    expected = table.weight.clone()
    state = {name: tensor.clone() for name, tensor in table.state.items()}
    generator = torch.Generator().manual_seed(seed)
    for step in (1, 2, 3):
        gradients = torch.randn(len(slots), 4, dtype=torch.float64, generator=generator)
        table.apply(torch.tensor(slots, dtype=torch.int64), gradients, step, scale=0.5)
        for row in sorted(set(slots)):
            total = sum(gradients[i] for i, slot in enumerate(slots) if slot == row) * 0.5
            slow_update(expected, optimizer, state, row, total, step)
    torch.testing.assert_close(table.weight, expected, rtol=1e-12, atol=1e-14)
    untouched = [row for row in range(30) if row not in slots]
    assert table.weight[untouched].equal(shard(optimizer).weight[untouched])


def test_lazy_adam_equals_torch_sparse_adam():
    table = shard("lazy-adam")
    reference = torch.nn.Embedding(30, 4, sparse=True, dtype=torch.float64)
    with torch.no_grad():
        reference.weight.copy_(table.weight)
    optimizer = torch.optim.SparseAdam(reference.parameters(), lr=0.1)
    for step, slots in enumerate(([1, 2, 2], [2, 5], [1, 1, 29]), start=1):
        picked = torch.tensor(slots)
        optimizer.zero_grad()
        (reference(picked) ** 3).sum().backward()
        table.apply(picked, 3 * table.read(picked) ** 2, step, scale=1.0)
        optimizer.step()
    torch.testing.assert_close(table.weight, reference.weight.detach(), rtol=1e-9, atol=1e-12)


def test_a_state_of_another_optimizer_is_refused():
    with pytest.raises(ValueError, match=r"table t: the checkpoint holds .*'sum'.*optimizer lazy-adam needs"):
        shard("lazy-adam").load(shard("rowwise-adagrad").tensors())


@given(st.lists(st.lists(st.integers(0, 20), max_size=40), max_size=4))
def test_de_duplication_finds_each_id_once_and_tells_where_in_the_order_of_last_occurrence(calls):
    distinct = Distinct(21)
    for ids in calls:
        found, place = distinct(torch.tensor(ids, dtype=torch.int64))
        assert found.tolist() == list(dict.fromkeys(reversed(ids)))[::-1]
        assert found[place].tolist() == ids


@given(st.lists(st.integers(0, 99), max_size=60), st.sampled_from([1, 2, 3, 300]))
def test_a_route_asks_each_owner_once_for_each_of_its_rows(ids, ranks):
    context = SimpleNamespace(ranks=ranks, rank=0, seed=0, dtype=torch.float32, device=torch.device("cpu"))
    table = ShardedTable(TableSpec("t", 100, 4, "sgd"), context)
    route = table.route(torch.tensor(ids, dtype=torch.int64))
    owners = torch.arange(ranks).repeat_interleave(torch.tensor(route.splits))
    keys = owners * table.partition.slots + route.slots
    assert len(set(keys.tolist())) == len(keys) == len(set(ids))
    assert keys[route.spread].equal(table.partition.key(torch.tensor(ids, dtype=torch.int64)))
