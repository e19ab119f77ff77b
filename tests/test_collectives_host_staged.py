"""`host-staged` moves the bits that `backend` moves, whatever is cut where, and says what it leaves to the backend."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import fsbench
from fsbench.errors import UserError
from fsbench.options import Spec
from fsbench.plugins import create
from tests import support
from tests.exchanges import CASES, DTYPES, SPLITS, exchange, random_bits, same_bits, train_with, uneven

distributed = [pytest.mark.distributed, pytest.mark.timeout(90)]


def with_reference(rank, ranks, spec="host-staged"):
    """A trainer, its collectives, and `backend` on the same lanes."""
    trainer = support.open_cell(rank, ranks, collectives=spec)
    backend = create("collectives", Spec.parse("backend"))
    backend.setup(trainer.context)
    return trainer, trainer.strategies.collectives, backend


def exchange_all(rank, ranks, spec, cases):
    """Which of the cases (splits, row, dtype) do not arrive as by `backend`."""
    from fsbench.train.trainer import close_trainer

    trainer, strategy, backend = with_reference(rank, ranks, spec)
    lane = trainer.context.lanes["exchange"]
    different = []
    for seed, (name, row, dtype) in enumerate(cases):
        splits = SPLITS[name](ranks, seed)
        send = random_bits(splits[rank].sum(), row, dtype, seed * ranks + rank)
        ours, theirs = (exchange(one, lane, rank, splits, send) for one in (strategy, backend))
        if not same_bits(ours.wait(), theirs.wait()):
            different.append((name, row, dtype))
    close_trainer(trainer)
    return different


def exchange_megabytes(rank, ranks):
    """16 MB from rank 0 to the others, 1 byte back: whether it arrived, and in how many chunks."""
    from fsbench.train.trainer import close_trainer

    trainer, strategy, backend = with_reference(rank, ranks)
    lane = trainer.context.lanes["exchange"]
    splits = np.ones((ranks, ranks), np.int64)
    splits[0] = 16 * 10**6
    send = random_bits(splits[rank].sum(), (), "uint8", rank)
    lane.log.clear()
    ours = exchange(strategy, lane, rank, splits, send).wait()
    chunks = lane.log.operations()["all_to_all rows"]
    theirs = exchange(backend, lane, rank, splits, send).wait()
    close_trainer(trainer)
    return same_bits(ours, theirs), chunks


def exchange_a_transposed_view(rank, ranks):
    import torch

    from fsbench.train.trainer import close_trainer

    trainer, strategy, backend = with_reference(rank, ranks, "host-staged:chunk=8")
    lane = trainer.context.lanes["exchange"]
    send = torch.arange(12.0).view(3, 4).t()
    splits = np.full((2, 2), 2)
    ours, theirs = (exchange(one, lane, rank, splits, send).wait() for one in (strategy, backend))
    close_trainer(trainer)
    return same_bits(ours, theirs)


def four_ranks_in_one_process(rank, ranks, spec, cases):
    """What `exchange_all` returns, for four ranks with a gloo group each; the pool has fewer processes."""
    from concurrent.futures import ThreadPoolExecutor

    import torch
    import torch.distributed as dist

    from fsbench.axes import EXCHANGE, RankContext
    from fsbench.collect.gloo import DuplexGloo
    from fsbench.collect.recorder import RecordedGroup
    from fsbench.collect.timeline import Timeline
    from fsbench.train.lanes import ThreadedLane

    count, store = 4, dist.HashStore()

    def open_rank(number):
        gloo = DuplexGloo(store, number, count, support.LIMIT)
        lane = ThreadedLane(EXCHANGE, RecordedGroup(gloo, number, count, blocking=True), Timeline(["exchange"]))
        strategy = create("collectives", Spec.parse(spec))
        strategy.setup(RankContext(number, count, torch.device("cpu"), None, 0, {}, lane.timeline, strategy))
        return lane, strategy

    with ThreadPoolExecutor(count) as pool:
        lanes, strategies = zip(*pool.map(open_rank, range(count)), strict=True)
    different = []
    for seed, (name, row, dtype) in enumerate(cases):
        splits = SPLITS[name](count, seed)
        sent = [random_bits(splits[r].sum(), row, dtype, seed * count + r) for r in range(count)]
        handles = [exchange(strategies[r], lanes[r], r, splits, sent[r]) for r in range(count)]
        blocks = [tensor.split(row.tolist()) for tensor, row in zip(sent, splits, strict=True)]
        expected = [torch.cat([block[r] for block in blocks]) for r in range(count)]
        if not all(same_bits(handle.wait(), right) for handle, right in zip(handles, expected, strict=True)):
            different.append((name, row, dtype))
    for lane, strategy in zip(lanes, strategies, strict=True):
        strategy.close()
        lane.close()
    return different


class TestExchange:
    pytestmark = distributed

    @pytest.mark.parametrize("options", ["chunk=4MiB", "chunk=60,buffers=3", "chunk=17,buffers=1"])
    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_any_splits_of_any_dtype_arrive_as_by_the_backend(self, ranks, count, options):
        assert ranks.run(exchange_all, count, f"host-staged:{options}", CASES[count::7]) == [[]] * count

    def test_every_dtype_arrives_in_chunks_of_one_byte(self, ranks):
        cases = [("uneven", (), dtype) for dtype in DTYPES]
        assert ranks.run(exchange_all, 2, "host-staged:chunk=1", cases) == [[], []]

    def test_four_ranks_receive_what_the_others_sent_them(self, ranks):
        assert ranks.run(four_ranks_in_one_process, 1, "host-staged:chunk=60", CASES[::7]) == [[]]

    @pytest.mark.parametrize(("count", "chunks"), [(2, 4), (3, 8)])
    def test_megabytes_arrive_in_the_same_number_of_chunks_on_every_rank(self, ranks, count, chunks):
        assert ranks.run(exchange_megabytes, count) == [(True, chunks)] * count

    def test_rows_that_are_not_contiguous_arrive(self, ranks):
        assert ranks.run(exchange_a_transposed_view, 2) == [True, True]


def gather_all(rank, ranks, spec):
    """Which shapes and dtypes are not gathered as the ranks held them, and by `backend` where gloo knows the dtype."""
    import torch

    from fsbench.train.trainer import close_trainer

    trainer, strategy, backend = with_reference(rank, ranks, spec)
    lane = trainer.context.lanes["exchange"]
    different = []
    shapes = ((), (1,), (5,), (0, 3), (2, 3), (4, 1, 3))
    for seed, (shape, dtype) in enumerate((s, d) for s in shapes for d in DTYPES):
        held = [random_bits(1, shape, dtype, seed * ranks + r)[0] for r in range(ranks)]
        gathered = strategy.all_gather(lane, held[rank], kind="state").wait()
        known = dtype != "int16" and held[rank].numel() > 0
        reference = backend.all_gather(lane, held[rank], kind="state").wait() if known else torch.stack(held)
        if not same_bits(gathered, torch.stack(held)) or not same_bits(gathered, reference):
            different.append((shape, dtype))
    close_trainer(trainer)
    return different


@pytest.mark.distributed
@pytest.mark.parametrize(("count", "chunk"), [(1, 5), (2, 5), (3, 4096), (3, 5)])
def test_an_all_gather_equals_the_backends(ranks, count, chunk):
    assert ranks.run(gather_all, count, f"host-staged:chunk={chunk}") == [[]] * count


def record_operations(rank, ranks):
    """Operations and bytes by name of each strategy, the reduced tensors, and what the strategy says of itself."""
    import torch

    from fsbench.train.trainer import close_trainer

    trainer, strategy, backend = with_reference(rank, ranks, "host-staged:chunk=40")
    lane = trainer.context.lanes["dense"]
    found = []
    for one in (strategy, backend):
        lane.log.clear()
        tensor = torch.arange(30.0) / 7 + rank
        one.all_to_all(lane, tensor, [12, 18], [[12, 12], [18, 18]][rank], largest_split=18, kind="rows").wait()
        one.all_gather(lane, tensor, kind="state").wait()
        one.all_reduce(lane, tensor, kind="dense").wait()
        ops = lane.log.arrays(["dense", "rows", "state"])
        sent = np.bincount(ops.kinds, ops.bytes_sent).tolist()
        found.append((lane.log.operations(), sent, tensor.tolist()))
    evidence = strategy.evidence()
    close_trainer(trainer)
    return *found, evidence


class TestRecord:
    """What goes on the wire is recorded once, under its own kind; what the backend does is called the backend's."""

    pytestmark = distributed

    def test_the_bytes_are_those_of_the_backend_in_more_operations(self, ranks):
        for (ours, sent, _), (theirs, sent_by_backend, _), _ in ranks.run(record_operations, 2):
            assert sent == sent_by_backend
            assert ours == {"all_to_all rows": 2, "all_gather state": 3, "all_reduce dense": 1}
            assert theirs == dict.fromkeys(ours, 1)

    def test_an_all_reduce_is_the_backends_and_the_evidence_says_so(self, ranks):
        for rank, ((_, _, sums), (_, _, reference), evidence) in enumerate(ranks.run(record_operations, 2)):
            assert sums == reference
            out_and_in = [4 * 18 + 4 * 12, 4 * 12 + 4 * 18][rank] + 4 * 30 * 3
            assert evidence == {
                "through_host": ["all_gather", "all_to_all"],
                "by_backend": ["all_reduce"],
                "copies_by": ["thread"],
                "chunks": 5,
                "staged_bytes": out_and_in,
                "buffer_bytes": 2 * (64 + 128),
            }


def waits_of_the_main_thread(rank, ranks):
    from fsbench.train.trainer import close_trainer

    trainer, strategy, _ = with_reference(rank, ranks)
    timeline = trainer.context.timeline
    splits = np.full((ranks, ranks), 3)
    timeline.begin_step()
    exchange(strategy, trainer.context.lanes["exchange"], rank, splits, random_bits(3 * ranks, (), "int8", 0)).wait()
    timeline.end_step()
    trace = timeline.trace()
    close_trainer(trainer)
    return [timeline.lanes[lane] for lane in trace.lanes.tolist() if lane >= 0]


@pytest.mark.distributed
def test_a_wait_of_the_main_thread_is_one_on_the_lane(ranks):
    assert ranks.run(waits_of_the_main_thread, 2) == [["exchange"]] * 2


def crossed_lanes(rank, ranks):
    """Operations on three lanes, the lanes in another order on every rank; results, and the kinds in their order."""
    from fsbench.train.trainer import close_trainer

    trainer, strategy, _ = with_reference(rank, ranks, "host-staged:chunk=16")
    names = ["exchange", "dense", "shuffle"]
    for name in names:
        trainer.context.lanes[name].log.clear()
    wrong, handles = 0, []
    for operation in range(8):
        splits = uneven(ranks, operation) + 1
        for name in names[rank % 3 :] + names[: rank % 3]:
            lane = trainer.context.lanes[name]
            send = random_bits(splits[rank].sum(), (), "int64", operation) + rank
            handles.append((splits, operation, exchange(strategy, lane, rank, splits, send, kind=f"{operation}")))
    for splits, operation, handle in reversed(handles):
        sent = [random_bits(splits[r].sum(), (), "int64", operation) + r for r in range(ranks)]
        expected = np.concatenate([sent[r].split(splits[r].tolist())[rank].numpy() for r in range(ranks)])
        wrong += not np.array_equal(handle.wait().numpy(), expected)
    kinds = [[name.split()[1] for name in trainer.context.lanes[lane].log.operations()] for lane in names]
    starts = [trainer.context.lanes[lane].log.arrays([f"{i}" for i in range(8)]).kinds.tolist() for lane in names]
    close_trainer(trainer)
    return wrong, kinds, [start == sorted(start) for start in starts]


@pytest.mark.distributed
def test_operations_of_a_lane_keep_their_order_while_lanes_keep_none_among_them(ranks):
    assert ranks.run(crossed_lanes, 3) == [(0, [[f"{i}" for i in range(8)]] * 3, [True] * 3)] * 3


class Unwritable:
    """A target of a copy that fails."""

    def copy_(self, *_, **__):
        raise ZeroDivisionError("in a copy")


def fail_at(rank, ranks, stage):
    """The error of an exchange whose third copy in, use of the wire or copy out fails, and whether the next arrives."""
    from fsbench.collect.gloo import DuplexGloo
    from fsbench.train.trainer import close_trainer
    from fsbench_strategies.collectives.copiers import CopyThread

    trainer, strategy, backend = with_reference(rank, ranks, "host-staged:chunk=8")
    lane = trainer.context.lanes["exchange"]
    owner, name = {
        "copy in": (CopyThread, "to_host"),
        "wire": (DuplexGloo, "alltoall_base"),
        "copy out": (CopyThread, "from_host"),
    }[stage]
    works, calls = getattr(owner, name), []

    def third_fails(self, *arguments):
        calls.append(arguments)
        if len(calls) != 3:
            return works(self, *arguments)
        if stage == "wire":
            raise ZeroDivisionError("on the wire")
        return works(self, [(Unwritable(), None)])

    splits, send = np.full((ranks, ranks), 6), random_bits(6 * ranks, (), "int64", rank)
    setattr(owner, name, third_fails)
    try:
        exchange(strategy, lane, rank, splits, send).wait()
        message = "no error"
    except ZeroDivisionError as error:
        message = str(error)
    finally:
        setattr(owner, name, works)
    ours, theirs = (exchange(one, lane, rank, splits, send).wait() for one in (strategy, backend))
    close_trainer(trainer)
    return message, same_bits(ours, theirs)


def wrong_splits(rank, ranks):
    """Messages of exchanges that no rank can take part in as they are asked for."""
    from fsbench.errors import FsbenchError
    from fsbench.train.trainer import close_trainer

    trainer, strategy, _ = with_reference(rank, ranks)
    lane, send = trainer.context.lanes["exchange"], random_bits(5, (), "int8", 0)
    messages = []
    for splits, largest in (([2, 2], 2), ([2, 3], 2)):
        handle = strategy.all_to_all(lane, send, splits, splits, largest_split=largest, kind="rows")
        with pytest.raises(FsbenchError) as error:
            handle.wait()
        messages.append(str(error.value))
    close_trainer(trainer)
    return messages


class TestErrors:
    pytestmark = distributed

    @pytest.mark.parametrize(
        ("stage", "message"), [("copy in", "in a copy"), ("wire", "on the wire"), ("copy out", "in a copy")]
    )
    def test_an_error_of_any_stage_is_raised_by_the_wait_and_the_lane_goes_on(self, ranks, stage, message):
        assert ranks.run(fail_at, 2, stage) == [(message, True)] * 2

    def test_splits_that_do_not_fit_are_errors_before_anything_moves(self, ranks):
        assert (
            ranks.run(wrong_splits, 2)
            == [
                [
                    "all_to_all: the splits send 4 rows of 5",
                    "all_to_all: largest_split is 2, yet a split has 3 rows",
                ]
            ]
            * 2
        )


def threads_and_buffers(rank, ranks):
    """Names of the copying threads while lanes work and after the close, and the bytes of buffers then."""
    from fsbench.train.trainer import close_trainer

    def copying():
        return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("staging-"))

    trainer, strategy, _ = with_reference(rank, ranks, "host-staged:chunk=8")
    splits, send = np.full((ranks, ranks), 6), random_bits(6 * ranks, (), "int64", rank)
    handles = [exchange(strategy, trainer.context.lanes[n], rank, splits, send) for n in ("dense", "exchange")]
    for handle in handles:
        handle.wait()
    during = copying()
    held = strategy.evidence()["buffer_bytes"]
    close_trainer(trainer)
    return during, held > 0, copying(), strategy.evidence()["buffer_bytes"]


@pytest.mark.distributed
def test_after_the_close_every_thread_and_buffer_is_gone(ranks):
    during = ["staging-dense_0", "staging-exchange_0"]
    assert ranks.run(threads_and_buffers, 2) == [(during, True, [], 0)] * 2


@pytest.mark.distributed
@pytest.mark.parametrize(("count", "embedding"), [(2, "plain"), (3, "prioritized:check=true")])
def test_training_has_the_loss_curve_of_the_backend_bit_for_bit(ranks, count, embedding):
    reference = train_with(ranks, count, "cpu", embedding, "backend")
    assert train_with(ranks, count, "cpu", embedding, "host-staged:chunk=256") == reference
    assert len(reference[0][0]) == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [("chunk=0", "chunk must be at least 1 byte"), ("buffers=0", "buffers must be at least 1")],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UserError) as error:
        create("collectives", Spec.parse(f"host-staged:{options}"))
    assert str(error.value) == f"collectives strategy host-staged (fsbench {fsbench.__version__}): {message}"


def open_for_a_gpu(rank, ranks):
    import torch

    from fsbench.axes import EXCHANGE
    from fsbench.collect.timeline import Timeline
    from fsbench.train.lanes import open_lanes

    timeline = Timeline(["control", "shuffle", "exchange"])
    on_host = create("collectives", Spec.parse("host-staged")).on_host
    lanes = open_lanes([EXCHANGE], timeline, torch.device("cuda"), support.LIMIT, on_host)
    for lane in lanes.values():
        lane.close()
    return {name: (lane.group.getBackendName(), type(lane).__name__) for name, lane in lanes.items()}


@pytest.mark.distributed
def test_lanes_that_are_staged_run_on_gloo_with_a_thread_on_a_gpu_too(ranks):
    gloo = ("fsbench-gloo", "ThreadedLane")
    assert ranks.run(open_for_a_gpu, 1) == [{"control": gloo, "shuffle": gloo, "exchange": gloo}]


def test_a_lane_on_nccl_is_refused_and_not_carried_by_the_backend_instead():
    import torch

    from fsbench.axes import DENSE
    from fsbench.collect import recorder
    from fsbench.collect.timeline import Timeline
    from fsbench.errors import FsbenchError
    from fsbench.train.lanes import Lane

    strategy = create("collectives", Spec.parse("host-staged"))
    strategy.setup(SimpleNamespace(ranks=2))
    group = SimpleNamespace(getBackendName=lambda: recorder.NCCL, log=recorder.OperationLog(range(1)))
    handle = strategy.all_gather(Lane(DENSE, group, Timeline(["dense"])), torch.zeros(3), kind="state")
    with pytest.raises(FsbenchError) as error:
        handle.wait()
    assert str(error.value) == (
        "collectives host-staged: lane dense runs on NCCL, which moves nothing in host memory; "
        "valid: lanes declared with host=True or of class control, embedding, shuffle"
    )
