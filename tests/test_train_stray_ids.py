"""IDs that no row has are an error on every rank, before they are exchanged: whatever the strategies."""

from __future__ import annotations

import pytest

from tests import support

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(90)]

BAD_STEP = 2


def train_with_a_stray(rank, ranks, stray, sharding, embedding, sync="allreduce"):
    """The error that training ends with, at which step, and how often IDs were exchanged or sent to a server."""
    from fsbench.errors import FsbenchError
    from fsbench.train.driver import Driver
    from tests import scripted

    class Stray(scripted.Scripted):
        """Sample 1 of rank 1 asks for a row of its own in step `BAD_STEP`."""

        def load(self, step, rank, ranks):
            samples = super().load(step, rank, ranks)
            if (step, rank) == (BAD_STEP, 1):
                column = samples.columns["items"]
                column.values[column.offsets[1] + 1] = stray
            return samples

    axes = {"sharding": sharding, "embedding": embedding, "sync": sync}
    with support.opened_cell(rank, ranks, Stray("disjoint", 2, "sgd"), **axes) as trainer:
        driver, message = Driver(trainer, 0, 4), "no error"
        try:
            driver.run()
        except FsbenchError as error:
            message = str(error)
        counts = [lane.log.operations() for lane in trainer.context.lanes.values()]
    exchanged = sum(count.get(name, 0) for count in counts for name in ("all_to_all ids", "send ids"))
    return message, driver.step, exchanged


@pytest.mark.parametrize("stray", [-1, 60, 2**40])
@pytest.mark.parametrize("sharding", ["naive", "cost-aware"])
def test_every_rank_names_table_row_and_sample_before_any_id_is_exchanged(ranks, stray, sharding):
    sample = BAD_STEP * 2 * 3 + 3 + 1
    message = (
        f"step 2: table t0 has no row {stray}, which sample {sample}, loaded by rank 1, asks for; expected 0 to 59"
    )
    counts_and_ids, tables = 2, 2
    exchanged = BAD_STEP * tables * counts_and_ids
    found = ranks.run(train_with_a_stray, 2, stray, sharding, "plain")
    assert found == [(message, BAD_STEP, exchanged)] * 2


def test_a_strategy_that_looks_ahead_never_sees_it(ranks):
    for message, step, _ in ranks.run(train_with_a_stray, 2, 60, "naive", "prioritized"):
        assert "table t0 has no row 60, which sample 16" in message
        assert step == BAD_STEP - 1


STRAY = "step 2: table t0 has no row 60, which sample 16, loaded by rank 1, asks for; expected 0 to 59"


def test_no_server_is_asked_for_it(ranks):
    assert ranks.run(train_with_a_stray, 2, 60, "naive", "parameter-server") == [(STRAY, BAD_STEP, BAD_STEP)] * 2


def test_where_ranks_load_apart_it_is_an_error_of_the_rank_that_loads_it_alone(ranks):
    found = ranks.run(train_with_a_stray, 2, 60, "naive", "parameter-server", "none")
    assert found == [("no error", 4, 4), (STRAY, BAD_STEP, BAD_STEP)]


def test_where_no_sample_asks_for_it_alone_the_row_and_the_rank_are_named(ranks):
    import numpy as np

    torch = pytest.importorskip("torch")
    from fsbench.axes import TableSpec
    from fsbench.errors import FsbenchError
    from fsbench.samples import Samples
    from fsbench.train.stray_ids import find_stray, refuse_strays
    from fsbench.workload import Batch

    samples = Samples(np.arange(3), np.ones(3, np.int64), {})
    tables = [TableSpec("t", 5, 4)]

    def build(of):
        return Batch(of, {"t": torch.tensor([4, 5] if len(of) == 3 else [4])}, {})

    stray = find_stray(samples, build(samples), tables, build)
    with pytest.raises(FsbenchError, match="table t has no row 5, which a sample, loaded by rank 0, asks for"):
        refuse_strays(0, [(0, stray.tolist())], tables)
    none = Batch(samples, {"t": torch.empty(0, dtype=torch.int64)}, {})
    assert find_stray(samples, none, tables, build).tolist() == [-1, -1, -1]


def train_with_an_unknown_table(rank, ranks):
    from fsbench.errors import FsbenchError
    from fsbench.train.driver import Driver
    from tests import scripted

    class Unknown(scripted.Scripted):
        def build_batch(self, samples, dtype):
            batch = super().build_batch(samples, dtype)
            batch.ids["t9"] = batch.ids["t0"]
            return batch

    with support.opened_cell(rank, ranks, Unknown("disjoint", 2, "sgd")) as trainer:
        try:
            Driver(trainer, 0, 2).run()
        except FsbenchError as error:
            return str(error)


def test_ids_of_a_table_that_the_workload_has_not_are_refused(ranks):
    message = "a batch has IDs of table t9, which is not among the workload's: t0, t1"
    assert ranks.run(train_with_an_unknown_table, 2) == [message] * 2
