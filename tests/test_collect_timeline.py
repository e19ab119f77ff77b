"""The timeline: one label an instant, windows tiled exactly, nothing recorded where nothing should be."""

from __future__ import annotations

import itertools
import threading

from hypothesis import given
from hypothesis import strategies as st

from fsbench.collect.timeline import Timeline, marker_cost_ns
from fsbench.metrics.trace import COMPUTE, INPUT, OTHER, STRATEGY, WAIT


def ticking(start: int = 100, tick: int = 10):
    """A clock that moves by one tick at each look."""
    return itertools.count(start, tick).__next__


def make_timeline():
    return Timeline(["shuffle", "exchange"], clock=ticking(), cpu_clock=ticking(0, 7))


def test_the_innermost_span_owns_the_instant():
    timeline = make_timeline()
    timeline.begin_step()
    with timeline.strategy, timeline.wait("exchange"):
        pass
    with timeline.compute:
        pass
    timeline.end_step()
    trace = timeline.trace()
    trace.validate(rank=0)
    assert trace.labels.tolist() == [OTHER, STRATEGY, WAIT, STRATEGY, OTHER, COMPUTE, OTHER]
    assert trace.lanes.tolist() == [-1, -1, 1, -1, -1, -1, -1]
    assert (trace.ends - trace.starts).tolist() == [10] * 7
    assert trace.cpu_ns.tolist() == [7] * 7


def test_spans_outside_a_step_leave_no_mark():
    timeline = make_timeline()
    with timeline.compute:
        pass
    timeline.begin_step()
    timeline.end_step()
    with timeline.strategy:
        pass
    assert timeline.trace().labels.tolist() == [OTHER]


def test_spans_on_other_threads_leave_no_mark():
    timeline = make_timeline()
    timeline.begin_step()

    def work():
        with timeline.strategy:
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    timeline.end_step()
    assert timeline.trace().labels.tolist() == [OTHER]


def test_an_exception_inside_a_span_closes_it():
    timeline = make_timeline()
    timeline.begin_step()
    try:
        with timeline.input:
            raise KeyError
    except KeyError:
        pass
    timeline.end_step()
    assert timeline.trace().labels.tolist() == [OTHER, INPUT, OTHER]


def test_compute_of_the_last_step_is_known_at_once():
    timeline = make_timeline()
    for spans in (3, 1):
        timeline.begin_step()
        for _ in range(spans):
            with timeline.compute:
                pass
        timeline.end_step()
        assert timeline.last_compute_ns == 10 * spans


labels = st.sampled_from(["compute", "strategy", "input", "shuffle", "exchange"])
nested = st.recursive(st.just([]), lambda inner: st.lists(st.tuples(labels, inner), max_size=4), max_leaves=12)


@given(steps=st.lists(nested, max_size=4))
def test_any_nesting_tiles_the_windows(steps):
    timeline = make_timeline()

    def visit(spans):
        for label, inner in spans:
            span = timeline.wait(label) if label in timeline.lanes else getattr(timeline, label)
            with span:
                visit(inner)

    for spans in steps:
        timeline.begin_step()
        visit(spans)
        timeline.end_step()
    trace = timeline.trace()
    trace.validate(rank=0)
    assert len(trace.windows) == len(steps)
    assert (trace.ends - trace.starts).sum() == trace.windows.sum()


def test_the_cost_of_a_mark_is_measured():
    assert 0 < marker_cost_ns(Timeline(), spans=10, steps=2) < float("inf")
