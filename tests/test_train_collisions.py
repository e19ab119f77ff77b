"""The collision rate is that of the global batches, however they lie on the ranks."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

BATCHES = [[1, 2, 3, 3, 4], [3, 4, 9, 1], [], [9], [9, 9]]
RATE = 4 / 9  # {1, 3, 4} of {1, 2, 3, 4}, none of {1, 3, 4, 9}, none of none, {9} of {9}


def rate_of(counts):
    again, followed = counts.sum(0).tolist()
    return again / followed if followed else None


def rate(rank, ranks, tables=("items",), batches=BATCHES):
    """With the rows of each batch dealt to the ranks in turn."""
    import torch

    from fsbench.train.collisions import global_collisions

    part = [torch.tensor(rows[rank::ranks], dtype=torch.int64) for rows in batches]
    return rate_of(global_collisions([dict.fromkeys(tables, rows) for rows in part]))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_rate_does_not_depend_on_the_number_of_ranks(ranks, count):
    assert ranks.run(rate, count) == [RATE] * count


def test_two_tables_with_the_same_rows_have_the_rate_of_one(ranks):
    assert ranks.run(rate, 2, ("items", "users")) == [RATE] * 2


@pytest.mark.parametrize(("tables", "batches"), [((), BATCHES), (("items",), []), (("items",), [[1]])])
def test_there_is_no_rate_without_a_row_that_is_followed_by_a_step(ranks, tables, batches):
    assert ranks.run(rate, 2, tables, batches) == [None] * 2


def rate_of_training(rank, ranks, workload, steps):
    from fsbench.train.collisions import global_collisions
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer
    from tests import support

    trainer = support.open_cell(rank, ranks, workload, sharding="cost-aware")
    driver = Driver(trainer, 0, steps)
    driver.run()
    close_trainer(trainer)
    return rate_of(global_collisions(driver.ids))


def test_training_the_sparse_workload_has_the_rate_of_its_knob(ranks):
    workload = "sparse:batch=8,block=16,collision=0.3,items=60000,max_len=40,dim=8,heads=2,layers=1,negatives=60"
    assert ranks.run(rate_of_training, 2, workload, 12) == [pytest.approx(0.3, rel=0.1)] * 2
