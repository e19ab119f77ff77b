"""The timeline of a GPU, on streams and events that only pretend: when the GPU came to a mark, told without waiting."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.axes import DENSE
from fsbench.metrics.trace import COMPUTE, OTHER, STRATEGY, WAIT

torch = pytest.importorskip("torch")

from fsbench.collect.cuda_timeline import CudaTimeline, timeline_on  # noqa: E402
from fsbench.collect.device_clock import DeviceClock  # noqa: E402
from fsbench.collect.device_ops import DeviceOps  # noqa: E402
from fsbench.collect.operations import OperationLog  # noqa: E402
from fsbench.collect.timeline import Timeline, marker_cost_ns  # noqa: E402
from fsbench.train.lanes import Issued, Lane  # noqa: E402
from tests.fake_cuda import FakeCuda  # noqa: E402

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


class Machine:
    """A host clock that moves when told, and a GPU whose clock started elsewhere and runs `drift` faster. The GPU comes
    to a point at once."""

    def __init__(self, drift=0.0):
        self.now = 10**9
        self.drift = drift
        self.cuda = FakeCuda(lambda: round(7e15 + self.now * (1 + drift)))

    def clock(self):
        """Reading it takes a microsecond."""
        self.now += 1000
        return self.now

    def synchronises(self):
        return [entry for entry in self.cuda.log if entry[0] == "synchronize"]


@pytest.fixture
def machine():
    with pytest.MonkeyPatch.context() as patch:
        made = Machine()
        made.cuda.install(patch)
        yield made


class TestClock:
    @given(
        gaps=st.lists(st.integers(0, 10**9), min_size=1, max_size=30),
        links=st.integers(1, 7),
        drift=st.floats(-1e-4, 1e-4),
    )
    def test_points_have_the_hosts_time_within_the_bound_however_the_clocks_drift(self, gaps, links, drift):
        machine = Machine(drift)
        with pytest.MonkeyPatch.context() as patch:
            machine.cuda.install(patch)
            clock = DeviceClock(GPU, machine.clock)
            came = []
            for number, gap in enumerate(gaps):
                machine.now += gap
                came.append(machine.now)
                clock.point(machine.cuda.current_stream())
                if number % links == 0:
                    clock.link()
            error = np.abs(clock.times() - came)
        # Links are measured one by one, each rounded to float32.
        assert error.max() <= clock.bound_ns + 500 * len(gaps)
        assert 0 < clock.bound_ns < 5000

    def test_a_long_run_is_as_exact_as_its_links_are_near(self, machine):
        clock = DeviceClock(GPU, machine.clock)
        came = []
        for _ in range(1000):
            machine.now += 123_456_789
            came.append(machine.now)
            clock.point(machine.cuda.current_stream())
            clock.link()
        assert np.abs(clock.times() - came).max() < 1500  # a float32 of 100 s goes in steps of 8 us

    def test_later_points_follow_those_that_were_read(self, machine):
        clock = DeviceClock(GPU, machine.clock)
        clock.point(machine.cuda.current_stream())
        first = clock.times()
        assert (clock.times() == first).all()
        machine.now += 10**6
        clock.point(machine.cuda.current_stream())
        both = clock.times()
        assert both[0] == first[0]
        assert both[1] - both[0] == pytest.approx(10**6, abs=30_000)  # the anchors' own time is between them

    def test_nothing_that_is_new_waits_for_nothing(self, machine):
        clock = DeviceClock(GPU, machine.clock)
        clock.point(machine.cuda.current_stream())
        clock.times()
        machine.cuda.log.clear()
        clock.times()
        assert machine.synchronises() == []


def step(timeline, machine, *, compute_ns=5000):
    timeline.begin_step()
    with timeline.strategy:
        machine.now += 1000
    with timeline.compute:
        machine.now += compute_ns
    timeline.end_step()


class TestTimeline:
    def test_no_step_synchronises_and_the_end_does_once(self, machine):
        timeline = CudaTimeline(GPU, clock=machine.clock)
        machine.cuda.log.clear()
        for _ in range(20):
            step(timeline, machine)
        assert machine.synchronises() == []
        timeline.trace()
        assert machine.synchronises().count(("synchronize", "device")) == 1

    def test_no_event_is_made_inside_a_window(self, machine):
        timeline = CudaTimeline(GPU, clock=machine.clock)
        for _ in range(3):
            timeline.begin_step()
            made = next(machine.cuda.numbers)
            for _ in range(200):
                with timeline.compute:
                    pass
            assert next(machine.cuda.numbers) == made + 1
            timeline.end_step()

    def test_labels_hold_between_the_points_and_tile_the_windows(self, machine):
        timeline = CudaTimeline(GPU, clock=machine.clock)
        for compute_ns in (5000, 70_000):
            step(timeline, machine, compute_ns=compute_ns)
        trace = timeline.trace()
        trace.validate(rank=0)
        assert trace.labels.tolist() == [OTHER, STRATEGY, OTHER, COMPUTE, OTHER] * 2
        computed = (trace.ends - trace.starts)[trace.labels == COMPUTE]
        assert computed == pytest.approx([6000, 71_000], abs=2)  # with the reading of the clock at the mark
        assert (trace.cpu_ns == trace.ends - trace.starts).all()
        assert timeline.clock_bound_ns > 0

    def test_marks_are_on_the_compute_stream_whatever_is_current(self, machine):
        timeline = CudaTimeline(GPU, clock=machine.clock)
        timeline.begin_step()
        machine.cuda.log.clear()
        with torch.cuda.stream(torch.cuda.Stream(GPU)), timeline.compute:
            pass
        assert {entry[1] for entry in machine.cuda.log if entry[0] == "record"} == {"compute"}

    def test_a_cpu_keeps_the_hosts_timeline(self):
        timeline = timeline_on(CPU, ["dense"])
        assert type(timeline) is Timeline
        assert timeline.clock_bound_ns is None

    def test_a_gpu_has_its_own_and_the_cost_of_its_marks(self, machine):
        timeline = timeline_on(GPU, ["dense"])
        assert type(timeline) is CudaTimeline
        assert 0 < marker_cost_ns(timeline, spans=10, steps=2) < float("inf")


class FakeWork:
    """A collective that ends `takes_ns` after it was issued, on a stream of NCCL's."""

    def __init__(self, machine, takes_ns=0):
        self._machine = machine
        self._takes_ns = takes_ns

    def wait(self):
        self._machine.now += self._takes_ns
        self._machine.cuda.log.append(("wait", self._machine.cuda.current_stream().name, "nccl"))

    def is_completed(self):
        return False


def recorded_group(machine, timeline, takes_ns=0):
    """A recorded group on NCCL, whose inner group only pretends, and its log."""
    from fsbench.collect.recorder import RecordedGroup

    inner = SimpleNamespace(allreduce=lambda tensors, opts: FakeWork(machine, takes_ns))
    group = RecordedGroup(inner, 0, 1, blocking=False)
    timeline.attend(group.log)
    return group


class TestOperations:
    def test_one_begins_on_the_issuers_stream_and_ends_on_one_that_waits_for_it(self, machine):
        timeline = CudaTimeline(GPU, ["dense"], clock=machine.clock)
        group = recorded_group(machine, timeline)
        machine.cuda.log.clear()
        group.allreduce([torch.zeros(2)], SimpleNamespace())
        (begin, waits, end) = machine.cuda.log
        assert (begin[0], begin[1]) == ("record", "compute")
        assert waits == ("wait", "side-1", "nccl")
        assert (end[0], end[1]) == ("record", "side-1")

    def test_its_times_are_the_devices(self, machine):
        timeline = CudaTimeline(GPU, ["dense"], clock=machine.clock)
        group = recorded_group(machine, timeline, takes_ns=40_000)
        for _ in range(2):
            group.allreduce([torch.zeros(2)], SimpleNamespace())
        ops = group.log.arrays(["other"])
        assert (ops.ends - ops.starts) == pytest.approx([40_000, 40_000], abs=2)
        assert len(ops.bytes_sent) == 2

    def test_what_its_log_forgets_it_forgets_too(self, machine):
        timeline = CudaTimeline(GPU, ["dense"], clock=machine.clock)
        group = recorded_group(machine, timeline)
        group.allreduce([torch.zeros(2)], SimpleNamespace())
        group.log.clear()
        assert len(group.log.arrays(["other"]).starts) == len(group.log.arrays(["other"]).ends) == 0

    def test_one_beside_the_process_group_is_on_the_current_stream(self, machine):
        timeline = CudaTimeline(GPU, ["dense"], clock=machine.clock)
        group = recorded_group(machine, timeline)
        machine.cuda.log.clear()
        with torch.cuda.stream(torch.cuda.Stream(GPU)):
            assert group.beside("all_gather", 12, lambda: None) is None
        assert [entry[:2] for entry in machine.cuda.log] == [("record", "side-2"), ("record", "side-2")]
        assert group.log.sent() == {"other": 12}

    def test_its_tensors_are_held_until_the_issuer_waits(self, machine):
        ops = DeviceOps(DeviceClock(GPU, machine.clock), GPU)
        held = object()
        ops.begin()
        work = ops.end(FakeWork(machine), held)
        assert isinstance(work, torch.distributed.Work)
        assert work._held is held
        assert not work.is_completed()
        machine.cuda.log.clear()
        assert work.wait()
        assert work._held is None
        assert machine.cuda.log == [("wait", "compute", "nccl")]

    def test_the_stream_waits_between_the_marks_of_the_wait(self, machine):
        timeline = CudaTimeline(GPU, ["dense"], clock=machine.clock)
        lane = Lane(DENSE, SimpleNamespace(log=OperationLog(range(1))), timeline)
        timeline.begin_step()
        handle = lane.submit(lambda: Issued("result", FakeWork(machine, takes_ns=9000)), kind="dense")
        machine.cuda.log.clear()
        assert handle.wait() == "result"
        assert [entry[0] for entry in machine.cuda.log] == ["record", "wait", "record"]
        timeline.end_step()
        trace = timeline.trace()
        assert (trace.ends - trace.starts)[trace.labels == WAIT] == pytest.approx([10_000], abs=2)
