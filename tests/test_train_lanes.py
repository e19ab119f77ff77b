"""Lanes, the recorder behind them, and `backend` on top: order, errors, bytes, and exchanges in pieces."""

from __future__ import annotations

import pytest

from tests import support

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(90)]


def jobs_run_in_order(rank, ranks):
    from fsbench.axes import EXCHANGE
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks)
    lane = trainer.context.lanes[EXCHANGE.name]
    ran = []
    handles = [lane.submit(lambda i=i: ran.append(i) or i, kind="test") for i in range(50)]
    results = [handle.wait() for handle in handles]
    nested = lane.submit(lambda: lane.submit(lambda: "inner", kind="test").wait(), kind="test").wait()
    close_trainer(trainer)
    return ran, results, nested


def test_jobs_of_a_lane_run_in_the_order_they_were_submitted(ranks):
    ran, results, nested = ranks.run(jobs_run_in_order, 1)[0]
    assert ran == results == list(range(50))
    assert nested == "inner"


def job_fails(rank, ranks):
    from fsbench.axes import EXCHANGE
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks)
    lane = trainer.context.lanes[EXCHANGE.name]

    def broken():
        raise ZeroDivisionError("in the lane")

    failed, after = lane.submit(broken, kind="test"), lane.submit(lambda: "fine", kind="test")
    try:
        failed.wait()
        message = "no error"
    except ZeroDivisionError as error:
        message = str(error)
    result = after.wait()
    close_trainer(trainer)
    return message, result


def test_an_error_of_a_job_is_raised_by_its_wait_and_the_lane_goes_on(ranks):
    assert ranks.run(job_fails, 1)[0] == ("in the lane", "fine")


def exchange_uneven(rank, ranks, piece, dtype, seed):
    """All-to-all of random uneven splits through `backend`; returns whether it matches what every rank sent."""
    import torch

    from fsbench.axes import EXCHANGE
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, collectives=f"backend:piece={piece}")
    lane = trainer.context.lanes[EXCHANGE.name]
    generator = torch.Generator().manual_seed(seed)
    splits = torch.randint(0, 9, (ranks, ranks), generator=generator)
    splits[seed % ranks] = 0
    sent = [
        torch.randint(0, 100, (int(splits[source].sum()), 3), generator=generator).to(getattr(torch, dtype))
        for source in range(ranks)
    ]
    received = trainer.strategies.collectives.all_to_all(
        lane,
        sent[rank],
        splits[rank].tolist(),
        splits[:, rank].tolist(),
        largest_split=int(splits.max()),
        kind="rows",
    ).wait()
    expected = torch.cat([sent[source].split(splits[source].tolist())[rank] for source in range(ranks)])
    close_trainer(trainer)
    return received.equal(expected), lane.log.operations().get("all_to_all rows", 0), int(splits.max())


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
def test_an_exchange_in_pieces_equals_a_whole_one(ranks, count, dtype):
    for seed in range(3):
        whole = ranks.run(exchange_uneven, count, "1MiB", dtype, seed)
        pieces = ranks.run(exchange_uneven, count, "24", dtype, seed)
        assert all(equal for equal, _, _ in whole + pieces)
        assert {operations for _, operations, _ in whole} == {1}
        rows_a_piece = max(1, 24 // (3 * {"float32": 4, "int64": 8, "bfloat16": 2}[dtype]))
        assert {operations for _, operations, _ in pieces} == {max(1, -(-pieces[0][2] // rows_a_piece))}


def record_operations(rank, ranks):
    import torch
    import torch.distributed as dist

    from fsbench.axes import DENSE
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks)
    lane = trainer.context.lanes[DENSE.name]
    collectives = trainer.strategies.collectives
    lane.log.clear()
    tensor = torch.arange(6.0)
    splits = [1, 2, 3][:ranks]
    collectives.all_to_all(
        lane, tensor[: sum(splits)], splits, [splits[rank]] * ranks, largest_split=3, kind="rows"
    ).wait()
    gathered = collectives.all_gather(lane, tensor + rank, kind="state").wait()
    collectives.all_reduce(lane, tensor, kind="dense").wait()
    lane.submit(lambda: dist.broadcast(tensor, src=0, group=lane.group), kind="dense").wait()
    ops = lane.log.arrays(["dense", "rows", "state"])
    close_trainer(trainer)
    return ops, lane.log.operations(), gathered.tolist(), tensor.tolist()


def crossing_bytes(rank: int, ranks: int) -> tuple[int, int]:
    """Ranks 0 and 1 on one host, rank 2 on another."""
    import torch
    import torch.distributed as dist

    from fsbench.axes import DENSE
    from fsbench.collect.matching import CHECKED
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks)
    lane, collectives = trainer.context.lanes[DENSE.name], trainer.strategies.collectives
    for _ in range(CHECKED + 1):  # the first ones are announced before they are issued, which crosses the link too
        lane.log.clear()
        lane.log.host = range(2) if rank < 2 else range(2, 3)
        collectives.all_to_all(lane, torch.zeros(6), [1, 2, 3], [rank + 1] * ranks, largest_split=3, kind="rows").wait()
        collectives.all_reduce(lane, torch.zeros(30), kind="dense").wait()
        lane.submit(lambda: dist.broadcast(torch.zeros(5), src=0, group=lane.group), kind="dense").wait()
    crossing = lane.log.crossing()
    close_trainer(trainer)
    return crossing


def test_what_goes_to_a_rank_of_the_same_host_crosses_no_link(ranks):
    ring, broadcast = 2 * 4 * 30 * 2 // 3, 4 * 5
    assert ranks.run(crossing_bytes, 3) == [
        (4 * 3 + ring + broadcast, 3),  # the ring leaves a host once, from any of its ranks
        (4 * 3, 3),
        (4 * (1 + 2) + ring, 3),
    ]


def test_the_recorder_counts_operations_bytes_and_times_of_every_rank(ranks):
    for rank, (ops, operations, gathered, reduced) in enumerate(ranks.run(record_operations, 3)):
        sent_to_others = 4 * (6 - [1, 2, 3][rank])
        broadcast = 24 * 2 if rank == 0 else 0
        assert ops.bytes_sent.tolist() == [sent_to_others, 24 * 2, 2 * 24 * 2 // 3, broadcast]
        assert ops.kinds.tolist() == [1, 2, 0, 0]
        assert operations == {
            "all_to_all rows": 1,
            "all_gather state": 1,
            "all_reduce dense": 1,
            "broadcast dense": 1,
        }
        assert (ops.ends >= ops.starts).all()
        assert (ops.starts[1:] >= ops.ends[:-1]).all()
        assert gathered == [[i + source for i in range(6)] for source in range(3)]
        assert reduced == [3.0 * i for i in range(6)]


class LosesSamples(support.AllOnOne):
    def assign(self, batch):
        return super().assign(batch)[:-1]


class InventsRanks(support.AllOnOne):
    def assign(self, batch):
        return super().assign(batch) + batch.ranks


def wrong_assignment(rank, ranks, kind):
    from fsbench.errors import FsbenchError
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, sharding_object=kind(0))
    try:
        Driver(trainer, 0, 1).run()
    except FsbenchError as error:
        return str(error)
    finally:
        close_trainer(trainer)
    return "no error"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (LosesSamples, "sharding LosesSamples, step 0: assign returned shape (7,) for 8 samples"),
        (InventsRanks, "sharding InventsRanks, step 0: assign returned ranks 2 to 2; valid: 0 to 1"),
    ],
)
def test_a_wrong_assignment_is_an_error_before_anything_is_exchanged(ranks, kind, message):
    assert ranks.run(wrong_assignment, 2, kind) == [message, message]


class Disagrees(support.AllOnOne):
    """Every rank answers for itself."""

    def assign(self, batch):
        return super().assign(batch) * 0 + self.context.rank


class Fractional(support.AllOnOne):
    def assign(self, batch):
        return super().assign(batch).astype(float)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Disagrees, "sharding Disagrees, step 0: assign gave ranks [1, 2] another answer than rank 0"),
        (Fractional, "sharding Fractional, step 0: assign returned float64; expected int64 ranks"),
    ],
)
def test_ranks_that_do_not_agree_on_an_assignment_stop_before_a_sample_moves(ranks, kind, message):
    assert all(found.startswith(message) for found in ranks.run(wrong_assignment, 3, kind))


def issue_on_a_lent_lane(rank, ranks):
    """What a library does: asynchronous operations of its own on the lane's group, from the main thread."""
    import threading

    import torch
    import torch.distributed as dist

    from fsbench.axes import EXCHANGE
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks)
    lane, timeline = trainer.context.lanes[EXCHANGE.name], trainer.context.timeline
    lane.log.clear()
    may_go = threading.Event()
    timeline.begin_step()
    blocker = lane.submit(may_go.wait, kind="rows")
    received = torch.zeros(ranks)
    with lane.lent("ids") as group:
        work = dist.all_to_all_single(received, torch.full((ranks,), float(rank)), group=group, async_op=True)
        with lane.lent("state"):
            total = torch.ones(1)
            second = dist.all_reduce(total, group=group, async_op=True)
    waited = blocker._done.is_set(), received.tolist()
    may_go.set()
    work.wait()
    second.wait()
    timeline.end_step()
    trace = timeline.trace()
    on_lane = {timeline.lanes[number] for number in trace.lanes.tolist() if number >= 0}
    close_trainer(trainer)
    kind_outside = lane.log.kind
    return (
        waited,
        isinstance(work, dist.Work),
        received.tolist(),
        total.item(),
        lane.log.sequence(),
        on_lane,
        kind_outside,
    )


def test_operations_that_a_library_issues_take_their_turn_in_the_lane_and_are_waited_for_as_jobs_are(ranks):
    for waited, is_work, received, total, sequence, on_lane, kind_outside in ranks.run(issue_on_a_lent_lane, 2):
        assert waited == (False, [0.0, 0.0])
        assert is_work
        assert received == [0.0, 1.0]
        assert total == 2
        assert [operation[:2] for operation in sequence] == [("all_to_all", "ids"), ("all_reduce", "state")]
        assert on_lane == {"exchange"}
        assert kind_outside == "other"


def lend_and_fail(rank, ranks):
    import torch
    import torch.distributed as dist

    from fsbench.axes import EXCHANGE
    from fsbench.errors import FsbenchError
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks)
    lane = trainer.context.lanes[EXCHANGE.name]
    with lane.lent("ids") as group:
        work = dist.all_reduce(torch.zeros(2 + rank), group=group, async_op=True)
    try:
        work.wait()
        message = "no error"
    except FsbenchError as error:
        message = str(error)
    close_trainer(trainer)
    return message


def test_an_error_of_such_an_operation_is_raised_by_its_wait(ranks):
    assert (
        ranks.run(lend_and_fail, 2)
        == [
            "lane exchange: ranks do not issue the same operation: "
            "rank 0 all_reduce ids float32 [2], rank 1 all_reduce ids float32 [3]"
        ]
        * 2
    )
