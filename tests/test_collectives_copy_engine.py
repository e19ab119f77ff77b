"""`copy-engine` without a GPU: what it needs, what it asks of NCCL, which bytes its copies move and in which order."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest

import fsbench
from fsbench.axes import CONTROL, EXCHANGE, NcclOptions
from fsbench.errors import FsbenchError, Unsupported, UserError
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench_strategies.collectives import needs
from fsbench_strategies.collectives.needs import Found, of_copy_engines, of_sm_limit
from tests.exchanges import CASES, SPLITS, random_bits, same_bits

torch = pytest.importorskip("torch")

from fsbench_strategies.collectives import engines, exchange, symmetric  # noqa: E402
from tests.fake_cuda import FakeCuda  # noqa: E402

READY = Found("2.13.0", 13000, 8, (2, 29, 7), zero_cta=True)
BY = {"nccl": engines.ByNccl, "peers": engines.ByPeers}


def found(**changes):
    return Found(**{**vars(READY), **changes})


class TestWhatItNeeds:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"driver": 0}, "needs a GPU, whose copy engines move the bytes; found no CUDA driver; on a CPU take"),
            ({"gpus": 0}, "needs a GPU, whose copy engines move the bytes; torch 2.13.0 sees none"),
            ({"torch": "2.9.1+cu128"}, "needs torch 2.11 or newer, found 2.9.1+cu128"),
            ({"driver": 12040}, "needs CUDA driver 12.5 or newer, found 12.4"),
            ({"nccl": (2, 27, 5)}, "needs NCCL 2.28 or newer, found 2.27.5"),
            ({"nccl": None}, "needs NCCL, torch 2.13.0 has none"),
            ({"zero_cta": False}, "needs a torch that knows NCCL's zero-CTA policy; torch 2.13.0 does not"),
        ],
    )
    def test_the_first_thing_that_is_missing_is_named(self, changes, reason):
        assert of_copy_engines(found(**changes), by_nccl=True).startswith(reason)

    def test_where_nothing_is_missing_it_runs(self):
        assert of_copy_engines(READY, by_nccl=True) is None
        assert of_copy_engines(found(torch="2.11.0", driver=12050, nccl=(2, 28, 9)), by_nccl=True) is None

    def test_copies_between_peers_need_nothing_of_nccl_or_its_driver(self):
        assert of_copy_engines(found(nccl=(2, 27, 5), zero_cta=False, driver=12040), by_nccl=False) is None

    def test_a_limit_on_multiprocessors_needs_some(self):
        assert of_sm_limit(READY) is None
        assert of_sm_limit(found(driver=0)).startswith("sm_limit needs a GPU, whose multiprocessors NCCL takes; ")
        assert of_sm_limit(found(nccl=None)) == "needs NCCL, torch 2.13.0 has none"

    @pytest.mark.parametrize("spec", ["copy-engine", "copy-engine:by=peers", "backend:sm_limit=4"])
    def test_a_strategy_asks_for_it_and_says_on_a_cpu_what_to_take_instead(self, monkeypatch, spec):
        strategy = create("collectives", Spec.parse(spec))
        monkeypatch.setattr(needs, "look", lambda: Found("2.13.0+cpu"))
        assert strategy.requirements().endswith("found no CUDA driver; on a CPU take backend or host-staged")
        monkeypatch.setattr(needs, "look", lambda: READY)
        assert strategy.requirements() is None

    def test_backend_alone_needs_nothing(self, monkeypatch):
        monkeypatch.setattr(needs, "look", lambda: Found())
        assert create("collectives", Spec.parse("backend")).requirements() is None

    @pytest.mark.parametrize("spec", ["copy-engine", "backend:sm_limit=4"])
    def test_a_rank_without_a_gpu_of_its_own_is_unsupported(self, spec):
        strategy = create("collectives", Spec.parse(spec))
        with pytest.raises(Unsupported, match="needs a GPU for each rank"):
            strategy.setup(SimpleNamespace(device=torch.device("cpu")))

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("backend:sm_limit=0", "sm_limit must be at least 1"),
            ("copy-engine:by=magic", "option by=magic: expected one of nccl, peers"),
        ],
    )
    def test_options_that_make_no_sense_are_refused(self, spec, message):
        with pytest.raises(UserError) as error:
            create("collectives", Spec.parse(spec))
        name = spec.partition(":")[0]
        assert str(error.value) == f"collectives strategy {name} (fsbench {fsbench.__version__}): {message}"


class TestWhatIsAskedOfNccl:
    @pytest.mark.parametrize(
        ("spec", "options"),
        [
            ("backend", NcclOptions()),
            ("backend:sm_limit=4", NcclOptions(sm_limit=4)),
            ("copy-engine", NcclOptions(zero_cta=True)),
            ("copy-engine:by=peers", NcclOptions()),
            ("host-staged", NcclOptions()),
        ],
    )
    def test_each_strategy_says_how_its_groups_are_made(self, spec, options):
        assert create("collectives", Spec.parse(spec)).nccl() == options

    @pytest.mark.parametrize(
        ("wanted", "config"),
        [
            (NcclOptions(), {}),
            (NcclOptions(sm_limit=4), {"max_ctas": 4}),
            (NcclOptions(zero_cta=True), {"cta_policy": 2}),
        ],
    )
    def test_it_reaches_the_config_of_the_communicator(self, monkeypatch, wanted, config):
        from fsbench.collect import recorder

        made = SimpleNamespace(config=SimpleNamespace())
        nccl = SimpleNamespace(Options=lambda: made, NCCL_CTA_POLICY_ZERO=2)
        monkeypatch.setattr(recorder._c10d, "ProcessGroupNCCL", nccl, raising=False)
        options = recorder.nccl_options(wanted, timedelta(seconds=9))
        assert vars(options.config) == config
        assert options._timeout == timedelta(seconds=9)

    def test_symmetric_memory_finds_the_communicator_in_a_group_whose_operations_are_still_recorded(self, monkeypatch):
        """With gloo in the place of NCCL, which needs a GPU."""
        import torch.distributed as dist

        from fsbench.collect import recorder

        class InPlaceOfNccl:
            Options = SimpleNamespace

            def __new__(cls, store, rank, size, options):
                return dist.ProcessGroupGloo(store, rank, size, options._timeout)

        monkeypatch.setattr(recorder._c10d, "ProcessGroupNCCL", InPlaceOfNccl, raising=False)
        where = SimpleNamespace(store=dist.HashStore(), group_rank=0, group_size=1, timeout=timedelta(seconds=9))
        group = recorder._nccl(where, NcclOptions())
        assert isinstance(group._get_backend(torch.device("cuda")), dist.ProcessGroupGloo)
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group, async_op=True).wait()
        assert group.log.operations() == {"all_reduce other": 1}
        assert tensor.tolist() == [1, 1]

    def test_a_lanes_group_is_introduced_to_symmetric_memory_and_has_a_communicator_then(self, monkeypatch):
        import torch.distributed._symmetric_memory as symm

        calls = []
        told = SimpleNamespace(set_group_info=lambda name, rank, size, store: calls.append((name, rank, size, store)))
        monkeypatch.setattr(symm, "_SymmetricMemory", told)
        monkeypatch.setattr(symm, "get_backend", lambda device: "CUDA")
        monkeypatch.setattr(symm, "set_backend", lambda name: calls.append(name))
        monkeypatch.setattr(symmetric._c10d, "_get_process_group_store", lambda group: "store")
        monkeypatch.setattr(symmetric.dist, "PrefixStore", lambda prefix, store: (prefix, store))
        monkeypatch.setattr(symmetric.dist, "all_reduce", lambda tensor, group: calls.append("all_reduce"))
        group = SimpleNamespace(group_name="7", rank=lambda: 1, size=lambda: 2)
        assert symmetric.introduce(group, torch.device("cpu"), "NCCL") is symm
        assert calls == ["NCCL", ("7", 1, 2, ("symmetric/7", "store")), "all_reduce"]
        calls.clear()
        symmetric.introduce(group, torch.device("cpu"), "CUDA")
        assert "CUDA" not in calls


class FakeWorld:
    """Ranks as threads: symmetric memory that all of them reach, NCCL's equal exchanges, and a log of each rank."""

    def __init__(self, monkeypatch, ranks):
        self.ranks = ranks
        self.barrier = threading.Barrier(ranks, timeout=10)
        self.memory = [[] for _ in range(ranks)]
        self.posted = {}
        self.recorded = [[] for _ in range(ranks)]
        self.cuda = FakeCuda().install(monkeypatch)
        monkeypatch.setattr(exchange, "equal", self.all_to_all)
        monkeypatch.setattr(exchange, "gathered", self.all_gather)

    def group(self, rank):
        def beside(name, bytes_sent, issue):
            self.recorded[rank].append((name, bytes_sent))
            return issue()

        return SimpleNamespace(rank=lambda: rank, size=lambda: self.ranks, group_name="lane", beside=beside)

    def symm(self, rank):
        def empty(size, dtype, device):
            return torch.full((size,), 0xEE, dtype=dtype)

        def rendezvous(memory, name):
            self.memory[rank].append(memory)
            number = len(self.memory[rank]) - 1
            self.barrier.wait()
            return SimpleNamespace(
                barrier=lambda channel: self.meet_on_stream(),
                get_buffer=lambda peer, sizes, dtype, storage_offset: self.memory[peer][number][
                    storage_offset : storage_offset + sizes[0]
                ],
            )

        return SimpleNamespace(empty=empty, rendezvous=rendezvous)

    def meet_on_stream(self):
        self.cuda.log.append(("barrier", self.cuda.current_stream().name))
        self.barrier.wait()

    def meet(self, rank, sent):
        self.posted[rank] = sent.clone()
        self.barrier.wait()
        everyone = [self.posted[other] for other in range(self.ranks)]
        self.barrier.wait()
        return everyone

    def all_to_all(self, group, received, sent):
        assert len(received) == len(sent), "equal splits have equal sizes"
        everyone = [tensor.view(self.ranks, -1)[group.rank()] for tensor in self.meet(group.rank(), sent)]
        received.view(self.ranks, -1).copy_(torch.stack(everyone))
        return SimpleNamespace(wait=lambda: self.cuda.log.append(("collective", self.cuda.current_stream().name)))

    def all_gather(self, group, received, sent):
        received.view(self.ranks, -1).copy_(torch.stack(self.meet(group.rank(), sent)))
        return SimpleNamespace(wait=lambda: self.cuda.log.append(("collective", self.cuda.current_stream().name)))

    def run(self, by, job):
        """`job(engine, rank)` on every rank."""

        def on(rank):
            return job(BY[by](self.symm(rank), self.group(rank), torch.device("cpu")), rank)

        with ThreadPoolExecutor(self.ranks) as pool:
            return list(pool.map(on, range(self.ranks)))


@pytest.fixture
def world(monkeypatch):
    return lambda ranks: FakeWorld(monkeypatch, ranks)


def finished(issued):
    issued.work.wait()
    return issued.result


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("ranks", [1, 3])
class TestBytes:
    def test_any_splits_of_any_dtype_arrive(self, world, by, ranks):
        """One after another through the same buffers, which hold what was there before."""

        def job(engine, rank):
            wrong = []
            for seed, (name, row, dtype) in enumerate(CASES[::5]):
                splits = SPLITS[name](ranks, seed)
                sent = [random_bits(splits[r].sum(), row, dtype, seed * ranks + r) for r in range(ranks)]
                expected = torch.cat([sent[r].split(splits[r].tolist())[rank] for r in range(ranks)])
                there, back = splits[rank].tolist(), splits[:, rank].tolist()
                got = finished(engine.all_to_all(sent[rank], there, back, int(splits.max())))
                if not same_bits(got, expected):
                    wrong.append((name, row, dtype))
            return wrong

        assert world(ranks).run(by, job) == [[]] * ranks

    def test_tensors_of_one_shape_are_gathered(self, world, by, ranks):
        def job(engine, rank):
            wrong = []
            for shape in ((), (5,), (0, 3), (2, 3)):
                held = [random_bits(1, shape, "float32", r)[0] for r in range(ranks)]
                if not same_bits(finished(engine.all_gather(held[rank])), torch.stack(held)):
                    wrong.append(shape)
            return wrong

        assert world(ranks).run(by, job) == [[]] * ranks


class TestWaste:
    """Rank 0 sends 1 row to rank 1 and gets 3."""

    SPLITS = ((2, 1), (3, 2))

    def exchange(self, world, by):
        def job(engine, rank):
            there, back = self.SPLITS[rank], [self.SPLITS[0][rank], self.SPLITS[1][rank]]
            finished(engine.all_to_all(torch.zeros(sum(there), dtype=torch.int32), there, back, 3))
            return engine.moved_bytes, engine.padded_bytes

        return world.run(by, job)

    def test_nccl_pads_to_the_largest_split_and_the_waste_is_counted(self, world):
        assert self.exchange(world(2), "nccl") == [(12, 8), (12, 0)]

    def test_peers_copy_what_was_asked_for_and_the_recorder_is_told(self, world):
        two = world(2)
        assert self.exchange(two, "peers") == [(4, 0), (12, 0)]
        assert two.recorded == [[("all_to_all", 4)], [("all_to_all", 12)]]


class TestOrder:
    """On one rank: the side stream waits for the caller, does everything in its own order, and the caller waits for it
    on its own stream. Nobody waits on the host."""

    def log(self, world, by, operation):
        one = world(1)
        one.run(by, operation)
        return one.cuda.log

    @pytest.mark.parametrize("by", BY)
    def test_the_copies_stand_between_what_the_caller_queued_and_what_it_reads(self, world, by):
        def operation(engine, rank):
            finished(engine.all_to_all(torch.zeros(4), [4], [4], 4))

        log = self.log(world, by, operation)
        assert log[:2] == [("record", "compute", 0), ("wait", "side-1", 0)]
        inside = [entry for entry in log[2:-3] if entry[0] != "keep"]
        assert {entry[1] for entry in inside[:-1]} == {"side-1"}
        assert inside[-1] == ("record", "side-1", 1)
        assert log[-2:] == [("wait", "compute", 1), ("keep", "compute")]
        assert [entry for entry in log if entry[0] == "synchronize"] == []

    def test_nccl_runs_between_the_copies_in_and_out_of_the_slots(self, world):
        def operation(engine, rank):
            finished(engine.all_gather(torch.zeros(4)))

        steps = [entry for entry in self.log(world, "nccl", operation) if entry[0] in ("copy", "collective")]
        # The second copy is the stand-in's own: what NCCL would do.
        assert steps == [("copy", "side-1"), ("copy", "side-1"), ("collective", "side-1"), ("copy", "side-1")]

    def test_peers_meet_when_their_slots_are_filled_and_again_when_all_are_read(self, world):
        def operation(engine, rank):
            finished(engine.all_gather(torch.zeros(4)))

        steps = [entry[0] for entry in self.log(world, "peers", operation) if entry[0] in ("copy", "barrier")]
        assert steps == ["copy", "copy", "barrier", "barrier"]

    @pytest.mark.parametrize("by", BY)
    def test_memory_of_the_caller_is_kept_for_the_side_stream_and_the_result_for_the_caller(self, world, by):
        def operation(engine, rank):
            finished(engine.all_to_all(torch.zeros(4), [4], [4], 4))

        kept = [entry[1] for entry in self.log(world, by, operation) if entry[0] == "keep"]
        assert kept == ["side-1", "compute"]


class TestBuffers:
    def test_they_grow_to_powers_of_two_together_and_outgrown_ones_are_kept(self):
        met = []
        symm = SimpleNamespace(
            empty=lambda size, dtype, device: torch.zeros(size, dtype=dtype),
            rendezvous=lambda memory, name: met.append(len(memory)),
        )
        buffer = symmetric.SymmetricBuffer(symm, SimpleNamespace(group_name="lane"), torch.device("cpu"))
        assert [len(buffer.take(size)[0]) for size in (3, 4, 2, 9, 16, 1)] == [3, 4, 2, 9, 16, 1]
        assert met == [4, 16]
        assert buffer.bytes == 20


class TestTheStrategy:
    @pytest.fixture
    def strategy(self, monkeypatch):
        strategy = create("collectives", Spec.parse("copy-engine"))
        strategy.setup(SimpleNamespace(device=torch.device("cuda"), ranks=1))
        return strategy

    def lane(self, spec):
        from fsbench.collect.operations import OperationLog
        from fsbench.collect.timeline import Timeline
        from fsbench.train.lanes import Lane

        group = SimpleNamespace(log=OperationLog(range(1)), group_name="lane", rank=lambda: 0, size=lambda: 1)
        return Lane(spec, group, Timeline([spec.name]))

    def test_lanes_of_the_host_stay_with_gloo(self, strategy, monkeypatch):
        monkeypatch.setattr(exchange, "all_gather", lambda group, tensor: "by the backend")
        assert strategy.all_gather(self.lane(CONTROL), torch.zeros(2), kind="metadata").wait() == "by the backend"

    def test_sums_stay_with_the_backend_and_the_evidence_says_so(self, strategy, monkeypatch):
        monkeypatch.setattr(exchange, "all_reduce", lambda group, tensor: "by the backend")
        assert strategy.all_reduce(self.lane(EXCHANGE), torch.zeros(2), kind="dense").wait() == "by the backend"
        assert strategy.evidence() == {
            "asked": {"all_to_all": "copy engines", "all_gather": "copy engines", "all_reduce": "multiprocessors"},
            "by": "nccl",
            "moved_bytes": 0,
            "padded_share": None,
            "buffer_bytes": 0,
        }

    def test_without_symmetric_memory_the_run_fails_and_says_which_lane(self, strategy, monkeypatch):
        def refuse(group, device, backend):
            raise RuntimeError("no P2P between GPU 0 and 1")

        monkeypatch.setattr(symmetric, "introduce", refuse)
        with pytest.raises(FsbenchError) as error:
            strategy.all_gather(self.lane(EXCHANGE), torch.zeros(2), kind="rows").wait()
        assert str(error.value) == (
            "collectives copy-engine: no symmetric memory for lane exchange: no P2P between GPU 0 and 1"
        )
