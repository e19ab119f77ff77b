"""The timeline of a real GPU against the profiler's, and what it costs. Needs one CUDA device; `make gpu-check`."""

from __future__ import annotations

import time

import pytest

from fsbench.metrics.trace import COMPUTE

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

STEPS = 20


@pytest.fixture(scope="module")
def work():
    """A step of some ten milliseconds of kernels, which keeps the GPU busy without a gap."""
    a = torch.randn(4096, 4096, device="cuda")

    def run():
        for _ in range(4):
            torch.mm(a, a)

    run()
    torch.cuda.synchronize()
    return run


def train(timeline, work):
    for _ in range(STEPS):
        timeline.begin_step()
        with timeline.compute:
            work()
        timeline.end_step()


def test_windows_and_compute_are_within_2_percent_of_the_profilers(work):
    from fsbench.collect.cuda_timeline import CudaTimeline
    from fsbench.collect.profiled import profiled

    timeline = CudaTimeline(torch.device("cuda", 0))
    kernels = [event for event in profiled(lambda: train(timeline, work)) if event.get("cat") == "kernel"]
    trace = timeline.trace()
    trace.validate(rank=0)
    first, last = min(kernel["ts"] for kernel in kernels), max(kernel["ts"] + kernel["dur"] for kernel in kernels)
    windows_us = (trace.step_end[-1] - trace.step_begin[0]) / 1e3
    computed_us = (trace.ends - trace.starts)[trace.labels == COMPUTE].sum() / 1e3
    print(f"windows {windows_us:.0f} us, profiler {last - first:.0f} us, bound {timeline.clock_bound_ns / 1e3:.1f} us")
    assert windows_us == pytest.approx(last - first, rel=0.02)
    assert computed_us == pytest.approx(sum(kernel["dur"] for kernel in kernels), rel=0.02)


def test_marks_cost_less_than_1_percent_of_the_step(work):
    from fsbench.collect.cuda_timeline import CudaTimeline, timeline_on

    def seconds(timeline):
        start = time.perf_counter()
        train(timeline, work)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    marked, plain = [], []
    for _ in range(7):
        plain.append(seconds(timeline_on(torch.device("cpu"), [])))
        marked.append(seconds(CudaTimeline(torch.device("cuda", 0))))
    ratio = min(marked) / min(plain)
    print(f"with marks on the stream {ratio:.4f} times the time without")
    assert ratio < 1.01
