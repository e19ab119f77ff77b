"""Before the first exchanges, ranks that do not mean the same are stopped with both sides named."""

from __future__ import annotations

import pytest

from tests import support

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(90)]


def issue(rank, ranks, what):
    """The error of an operation that ranks do not mean alike, or the operations and their bytes if it went well."""
    import torch
    import torch.distributed as dist

    from fsbench.axes import DENSE
    from fsbench.errors import FsbenchError
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks)
    lane, last = trainer.context.lanes[DENSE.name], rank == ranks - 1
    dtype = torch.float64 if last and what == "dtype" else torch.float32
    width = 3 if last and what in ("width", "shape") else 2

    def exchange():
        expected = [1] * ranks
        if last and what == "splits":
            expected[0] = 2
        rows = 0 if last and what in ("dtype", "width") else 1  # an empty rank has types and shapes too
        sent = torch.zeros(rows * ranks, width, dtype=dtype)
        if rows == 0:
            sent, sends = torch.zeros(0, width, dtype=dtype), [0] * ranks
        else:
            sends = [1] * ranks
        received = torch.zeros(sum(expected), width, dtype=dtype)
        dist.all_to_all_single(received, sent, expected, sends, group=lane.group)

    def reduce():
        dist.all_reduce(torch.zeros(4, width, dtype=dtype), group=lane.group)

    job = reduce if what == "shape" or (last and what == "operation") else exchange
    kind = "gradients" if last and what == "kind" else "rows"
    try:
        lane.submit(job, kind=kind).wait()
        message = "no error"
    except FsbenchError as error:
        message = str(error)
    issued = lane.log.operations()
    close_trainer(trainer)
    return message, issued


HERE = "ranks do not issue the same operation: rank 0 "
MISMATCHES = {
    "dtype": HERE + "all_to_all rows float32 [*, 2], rank 2 all_to_all rows float64 [*, 2]",
    "width": HERE + "all_to_all rows float32 [*, 2], rank 2 all_to_all rows float32 [*, 3]",
    "shape": HERE + "all_reduce rows float32 [4, 2], rank 2 all_reduce rows float32 [4, 3]",
    "kind": HERE + "all_to_all rows float32 [*, 2], rank 2 all_to_all gradients float32 [*, 2]",
    "operation": HERE + "all_to_all rows float32 [*, 2], rank 2 all_reduce rows float32 [4, 2]",
    "splits": "all_to_all rows float32 [*, 2]: rank 0 sends 1 rows to rank 2, which expects 2",
}


@pytest.mark.parametrize("what", MISMATCHES)
def test_a_mismatch_is_an_error_on_every_rank_before_anything_is_exchanged(ranks, what):
    assert ranks.run(issue, 3, what) == [(f"lane dense: {MISMATCHES[what]}", {})] * 3


def test_what_fits_is_exchanged(ranks):
    assert ranks.run(issue, 3, "nothing") == [("no error", {"all_to_all rows": 1})] * 3


def count_questions(rank, ranks):
    """How often the ranks compared what they mean, after each of some operations."""
    import torch
    import torch.distributed as dist

    from fsbench.axes import DENSE
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks)
    lane, counts = trainer.context.lanes[DENSE.name], []
    lane.log.host = range(rank, rank + 1)
    for kind in ("dense", "dense", "dense", "rows", "dense", "rows", "rows"):
        before = lane.log.crossing()
        lane.submit(lambda: dist.all_reduce(torch.zeros(4), group=lane.group), kind=kind).wait()
        counts.append(lane.log.crossing()[1] - before[1] - 1)
    close_trainer(trainer)
    return counts


def test_only_the_first_two_operations_of_each_kind_are_compared_and_counted_as_traffic(ranks):
    assert ranks.run(count_questions, 2) == [[1, 1, 0, 1, 0, 1, 0]] * 2
    assert ranks.run(count_questions, 1) == [[0] * 7]
