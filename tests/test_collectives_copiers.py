"""`host-staged` between a GPU and pinned memory, on streams that only pretend: who waits for what, in which order."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from fsbench_strategies.collectives import copiers, staged  # noqa: E402
from fsbench_strategies.collectives.staging import Stager  # noqa: E402
from tests.fake_cuda import FakeCuda  # noqa: E402

GPU = torch.device("cuda", 0)
OUT, IN = "side-1", "side-2"


@pytest.fixture
def cuda(monkeypatch):
    # There is no memory to pin without a driver.
    monkeypatch.setattr(copiers.CopyEngines, "buffer", lambda self, size: torch.zeros(size, dtype=torch.uint8))
    return FakeCuda().install(monkeypatch)


def test_an_operand_on_a_gpu_is_marked_where_its_callers_stream_is(cuda):
    marked = copiers.mark(SimpleNamespace(device=GPU))
    assert marked.stream.name == "compute"
    assert cuda.log == [("record", "compute", marked.reached.number)]


def test_one_in_host_memory_is_ready(cuda):
    assert copiers.mark(torch.zeros(1)) is None
    assert cuda.log == []


def test_both_directions_wait_for_the_operand_and_the_result_is_kept_for_the_caller(cuda):
    engines = copiers.CopyEngines(GPU)
    ready = copiers.mark(SimpleNamespace(device=GPU))
    engines.result(torch.zeros(2), (2,), ready)
    reached = ready.reached.number
    assert cuda.log[1:] == [("wait", OUT, reached), ("wait", IN, reached), ("keep", "compute")]


@pytest.mark.parametrize(("direction", "stream"), [("to_host", OUT), ("from_host", IN)])
def test_copies_are_queued_on_their_directions_stream_and_waited_for_by_the_thread_that_asks(cuda, direction, stream):
    engines = copiers.CopyEngines(GPU)
    target, source = torch.zeros(3, dtype=torch.uint8), torch.arange(3, dtype=torch.uint8)
    ticket = getattr(engines, direction)([(target, source)])
    (copied, recorded) = cuda.log
    assert copied == ("copy", stream)
    assert recorded[:2] == ("record", stream)
    ticket.wait()
    assert cuda.log[-1] == ("synchronize", recorded[2])
    assert target.equal(source)


class TestAnOperation:
    """Gathers 8 bytes of each of two ranks in chunks of 4 through two buffers; the other rank holds the same."""

    @pytest.fixture
    def log(self, cuda, monkeypatch):
        def all_gather(outputs, operand, group):
            cuda.log.append(("wire", len(operand)))
            for output in outputs:
                output[:] = operand

        monkeypatch.setattr(staged.dist, "all_gather", all_gather)
        stager = Stager("exchange", GPU, buffers=2)
        held = torch.arange(8, dtype=torch.uint8)
        group = SimpleNamespace(size=lambda: 2)
        ready = copiers.mark(SimpleNamespace(device=GPU))
        gathered = staged.all_gather(stager, group, held, most=4, ready=ready)
        assert gathered.tolist() == [held.tolist()] * 2
        return [entry for entry in cuda.log if entry[0] != "keep"]

    def test_a_chunk_is_on_the_wire_when_it_has_left_the_gpu_and_no_sooner(self, log):
        wires = [place for place, entry in enumerate(log) if entry[0] == "wire"]
        left = [entry[2] for entry in log if entry[:2] == ("record", OUT)]
        assert [log[place - 1] for place in wires] == [("synchronize", event) for event in left]

    def test_the_next_chunk_is_already_on_its_way_out(self, log):
        first_wire = log.index(("wire", 4))
        assert [entry for entry in log[:first_wire] if entry == ("copy", OUT)] == [("copy", OUT)] * 2

    def test_the_operation_ends_when_everything_is_back_on_the_gpu(self, log):
        back = [entry[2] for entry in log if entry[:2] == ("record", IN)]
        assert log[-2:] == [("synchronize", event) for event in back]
