"""Tables on servers: on one rank the bits of `plain`; on more no update is lost, and no rank waits for another."""

from __future__ import annotations

import numpy as np
import pytest

from tests import support
from tests.scripted import OPTIMIZERS, assert_same_bits, train_scripted
from tests.test_embedding_strategies import ages

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


@pytest.mark.parametrize(("servers", "dtype"), [(1, "float32"), (2, "float64")])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("script", ["one_row", "sparse_samples"])
def test_one_rank_is_bit_equal_to_plain(ranks, script, optimizer, dtype, servers):
    """Repeated IDs, samples without any and empty batches among them."""
    settings = {"script": script, "tables": 2, "optimizer": optimizer, "steps": 8, "dtype": dtype}
    (plain,) = ranks.run(train, 1, "plain", settings)
    (ours,) = ranks.run(train, 1, f"parameter-server:servers={servers}", settings)
    assert_same_bits(ours, plain)


def train(rank, ranks, embedding, settings):
    return train_scripted(rank, ranks, embedding, **settings)


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize(
    ("count", "servers", "script"), [(2, 1, "drifting"), (2, 3, "sparse_samples"), (3, 2, "drifting")]
)
def test_every_update_of_every_rank_arrives_once(ranks, count, script, servers, prefetch):
    """The order in which they do is not known: gradients here do not depend on the rows."""
    embedding = f"parameter-server:servers={servers},prefetch={prefetch}"
    steps = 9
    for initial, final in ranks.run(train_linear, count, embedding, script, steps):
        np.testing.assert_allclose(final, initial + all_updates(count, script, steps), rtol=1e-12, atol=1e-14)


def train_linear(rank, ranks, embedding, script, steps):
    """Table t0 before and after; no rank waits for another between."""
    from fsbench.train.driver import Driver
    from tests.scripted import Linear

    with support.opened_cell(rank, ranks, Linear(script, 1, "sgd"), embedding=embedding, sync="none") as trainer:
        tables = trainer.strategies.embedding
        initial = tables.state_dict()["t0"]["weight"].numpy()
        Driver(trainer, 0, steps).run()
        return initial, tables.state_dict()["t0"]["weight"].numpy()


def all_updates(ranks, script, steps):
    """[rows, dim]: each ID of a batch has a gradient of ones, divided by the number of IDs in the batch."""
    from tests.scripted import Linear

    workload = Linear(script, 1, "sgd")
    (table,) = workload.tables()
    moved = np.zeros((table.rows, table.dim))
    for step in range(steps):
        for rank in range(ranks):
            ids = workload.load(step, rank, ranks).columns["items"].values
            for row in ids:
                moved[row] -= table.lr / len(ids)
    return moved


@pytest.mark.parametrize("servers", [1, 2])
def test_a_rank_trains_all_its_steps_while_another_stands_still_whose_rows_then_lack_them_all(ranks, servers):
    ahead, behind = ranks.run(stand_still, 2, f"parameter-server:servers={servers}", 10)
    assert (ahead["steps"], ahead["stalest"]) == (10, 0)
    assert (behind["steps"], behind["stalest"]) == (3, 10)


def stand_still(rank, ranks, embedding, steps):
    """Rank 1 stands still in its first step, between lookup and update, from before rank 0's first until after its
    last."""
    from fsbench.train.channels import meeting_point
    from fsbench.train.driver import Driver
    from tests.scripted import Linear

    store = meeting_point()
    with support.opened_cell(rank, ranks, Linear("same", 1, "sgd"), embedding=embedding, sync="none") as trainer:
        tables = trainer.strategies.embedding

        def stand(*_):
            if store.add("rank 1 has its rows", 1) == 1:
                store.wait(["rank 0 has trained"], support.LIMIT)

        if rank == 1:
            trainer.model.register_forward_pre_hook(stand)
            driver = Driver(trainer, 0, 3)
            driver.run()
        else:
            store.wait(["rank 1 has its rows"], support.LIMIT)
            driver = Driver(trainer, 0, steps)
            driver.run()
            store.set("rank 0 has trained", "")
        return {"steps": driver.step, "stalest": tables.stalest()}


@pytest.mark.parametrize("prefetch", [0, 1])
def test_rows_pulled_ahead_lack_the_ranks_own_last_update_and_others_none(ranks, prefetch):
    """Where no other rank has its rows: each sample has its own."""
    embedding = f"parameter-server:servers=2,prefetch={prefetch}"
    assert ages(embedding, ranks, "own") == [(0, 0)] + [(prefetch, prefetch)] * 19
    assert ranks.run(stalest_of, 1, embedding) == [prefetch]


def stalest_of(rank, ranks, embedding):
    from fsbench.train.driver import Driver
    from tests.scripted import Scripted

    with support.opened_cell(rank, ranks, Scripted("same", 1, "sgd"), embedding=embedding) as trainer:
        Driver(trainer, 0, 6).run()
        return trainer.strategies.embedding.stalest()


PAIRS = [("parameter-server:servers=3", "plain"), ("plain", "parameter-server:servers=2,prefetch=1")]


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_plain_saves_it_loads_and_the_other_way_round(ranks, source, target, optimizer):
    for saved, loaded, of_rank_0 in ranks.run(hand_over, 2, source, target, optimizer):
        assert saved.keys() == loaded.keys() == of_rank_0.keys()
        for name, values in saved.items():
            assert np.array_equal(values, loaded[name]), name
            assert np.array_equal(values, of_rank_0[name]), name
            assert np.abs(values).sum() > 0


def flat(state):
    return {f"{table}.{name}": values.numpy() for table, parts in state.items() for name, values in parts.items()}


def hand_over(rank, ranks, source, target, optimizer):
    """What `source` has after some steps, what `target` has after loading that, and what rank 0 saved."""
    import torch.distributed as dist

    from fsbench.train.driver import Driver
    from tests.scripted import Scripted

    with support.opened_cell(rank, ranks, Scripted("drifting", 2, optimizer), embedding=source) as trainer:
        Driver(trainer, 0, 5).run()
        saved = trainer.strategies.embedding.state_dict()
    with support.opened_cell(rank, ranks, Scripted("drifting", 2, optimizer), embedding=target) as trainer:
        trainer.strategies.embedding.load_state_dict(saved)
        loaded = flat(trainer.strategies.embedding.state_dict())
    told = [flat(saved)]
    dist.broadcast_object_list(told, src=0)
    return flat(saved), loaded, told[0]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_one_rank_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(ranks, tmp_path, source, target):
    source, target = (name.replace(",prefetch=1", "") for name in (source, target))
    settings = {"script": "returning", "tables": 2, "optimizer": "lazy-adam", "steps": 12}
    (unbroken,) = ranks.run(train, 1, "plain", settings)
    (handed_over,) = ranks.run(train, 1, source, {**settings, "stop_at": 5, "folder": tmp_path, "then": target})
    assert_same_bits(handed_over, unbroken)


def test_the_state_of_another_optimizer_is_refused_in_a_line_on_every_rank(ranks):
    line = "table t0: the checkpoint holds ['weight'], optimizer rowwise-adagrad needs ['sum', 'weight']"
    assert ranks.run(load_wrong_state, 2) == [line] * 2


def load_wrong_state(rank, ranks):
    import torch

    from tests.scripted import DIM, ROWS, Scripted

    workload = Scripted("same", 1, "rowwise-adagrad")
    with support.opened_cell(rank, ranks, workload, embedding="parameter-server") as trainer:
        try:
            trainer.strategies.embedding.load_state_dict({"t0": {"weight": torch.zeros(ROWS, DIM)}})
        except ValueError as error:
            return str(error)
    return "no error"


@pytest.mark.parametrize("servers", [1, 3])
def test_a_table_that_no_id_of_a_batch_asks_for_is_left_alone(ranks, servers):
    for before, first, second in ranks.run(ask_for_one_table, 1, f"parameter-server:servers={servers}"):
        changed = [name for name in before if not np.array_equal(before[name], first[name])]
        assert changed == ["t1.weight", "t1.mean", "t1.variance"]
        assert np.flatnonzero((before["t1.weight"] != first["t1.weight"]).any(1)).tolist() == [3, 5]
        for name, values in first.items():
            assert np.array_equal(values, second[name]), name


def ask_for_one_table(rank, ranks, embedding):
    """All tables: at first, after a batch with IDs of the second one, and after one with none at all."""
    import torch

    from fsbench.axes import TargetCounts
    from tests.scripted import Scripted

    with support.opened_cell(rank, ranks, Scripted("same", 2, "lazy-adam"), embedding=embedding) as trainer:
        tables = trainer.strategies.embedding
        states = [flat(tables.state_dict())]
        for step, ids in enumerate(({"t1": torch.tensor([5, 3, 3])}, {})):
            for rows in tables.lookup(step, ids).values():
                rows.sum().backward()
            tables.update(step, TargetCounts(3, 3))
            states.append(flat(tables.state_dict()))
    return states


def test_without_tables_no_server_is_asked_anything(ranks):
    assert ranks.run(train_without_tables, 2) == [({}, {}, 0, {})] * 2


def train_without_tables(rank, ranks):
    """Rows, tables, staleness, and operations with the server."""
    from fsbench.axes import TargetCounts
    from tests.scripted import Scripted

    with support.opened_cell(rank, ranks, Scripted("same", 0, "sgd"), embedding="parameter-server") as trainer:
        tables = trainer.strategies.embedding
        rows = tables.lookup(0, {})
        tables.update(0, TargetCounts(0, 0))
        tables.flush()
        asked = trainer.context.lanes["table-server-0"].log.operations()
        return rows, tables.state_dict(), tables.stalest(), asked


@pytest.mark.parametrize("options", ["servers=0", "servers=65", "prefetch=2"])
def test_options_that_make_no_sense_are_refused(options):
    from fsbench.errors import UserError

    with pytest.raises(UserError, match=options.replace("=", " is ")):
        support.strategies(embedding=f"parameter-server:{options}")
