"""The range of an operation reaches the profiler's trace, and costs nothing where none runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fsbench.metrics.movers import Operations, moved

torch = pytest.importorskip("torch")

from fsbench.collect import recorder  # noqa: E402
from fsbench.collect.profiled import profiled  # noqa: E402


def group():
    """One on NCCL, which only pretends."""
    inner = SimpleNamespace(allreduce=lambda tensors, opts: None)
    made = recorder.RecordedGroup(inner, 0, 1, blocking=False)
    made.log.lane = "dense"
    return made


def test_an_operation_under_the_profiler_is_a_range_of_its_name_and_lane():
    reduce = group().allreduce
    events = profiled(lambda: reduce([torch.zeros(2)], SimpleNamespace()))
    assert {operations: seen.count for operations, seen in moved(events).items()} == {
        Operations("dense", "all_reduce"): 1
    }


def test_without_a_profiler_no_range_is_opened(monkeypatch):
    monkeypatch.setattr(torch.profiler, "record_function", None)
    group().allreduce([torch.zeros(2)], SimpleNamespace())
