"""Exposed time by what the lane was moving: known waits, and a reference that counts instants."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsbench.metrics.bubbles import PARTS, account
from fsbench.metrics.exposure import BETWEEN, exposed_by_kind
from tests.test_metrics_bubbles import LANES, rank, run, traces

KINDS = ("ids", "rows", "gradients")
TRANSFERS = tuple(part for part in PARTS if part.endswith("_transfer"))


def with_kinds(trace, kinds):
    """`kinds`: by lane, the kind of each of its operations; of ranks that had fewer, the first ones."""

    def coded(name, ops):
        return replace(
            ops, kinds=np.array([KINDS.index(kind) for kind in kinds.get(name, [])[: len(ops.starts)]], np.int16)
        )

    lanes = {name: lane._replace(ops=[coded(name, ops) for ops in lane.ops]) for name, lane in trace.lanes.items()}
    return replace(trace, lanes=lanes, kind_names=KINDS)


def exposed(trace):
    """Of rank 0, in all its steps; what is 0 left out."""
    return {kind: int(ns[0].sum()) for kind, ns in exposed_by_kind(trace).items() if ns[0].any()}


def test_a_wait_counts_for_the_operations_inside_it_and_the_time_between_them():
    trace = run(
        rank([("compute", 10), ("exchange", 50)]),
        rank([("compute", 60)]),
        exchange=[[(5, 20), (25, 30), (30, 55)], [(5, 20), (25, 30), (30, 55)]],
    )
    trace = with_kinds(trace, {"exchange": ["ids", "rows", "gradients"]})
    assert exposed(trace) == {"ids": 10, "rows": 5, "gradients": 25, BETWEEN: 5 + 5}


def test_waiting_for_a_straggler_is_not_exposed_transfer():
    trace = run(rank([("exchange", 50)]), rank([("compute", 50)]), exchange=[[(0, 50)], [(30, 50)]])
    assert exposed(with_kinds(trace, {"exchange": ["rows"]})) == {"rows": 20}


def test_a_wait_for_a_server_counts_for_what_this_ranks_own_operations_moved():
    trace = run(
        rank([("server", 50)]),
        rank([("compute", 45), ("server", 5)]),
        server=[[(0, 20), (20, 50)], [(45, 50)]],
    )
    assert exposed(with_kinds(trace, {"server": ["ids", "rows"]})) == {"ids": 20, "rows": 30}


def test_operations_of_other_lanes_do_not_count():
    trace = run(rank([("exchange", 20)]), exchange=[[(0, 20)]], critical=[[(0, 20)]])
    assert exposed(with_kinds(trace, {"exchange": ["rows"], "critical": ["gradients"]})) == {"rows": 20}


@given(traces(), st.data())
def test_kinds_are_those_of_a_count_of_instants_and_sum_to_the_transfer(trace, data):
    most = {name: max(len(ops.starts) for ops in lane.ops) for name, lane in trace.lanes.items()}
    kinds = {name: data.draw(_kinds(count)) for name, count in most.items()}
    trace = with_kinds(trace, kinds)
    ours = exposed_by_kind(trace)
    assert np.array_equal(sum(ours.values()), account(trace).of(*TRANSFERS))
    for kind, expected in _reference(trace).items():
        assert np.array_equal(ours[kind], expected), kind


def _kinds(count):
    return st.lists(st.sampled_from(KINDS), min_size=count, max_size=count)


def _reference(trace):
    ns = {kind: np.zeros((len(trace.ranks), len(trace.ranks[0].windows)), np.int64) for kind in (*KINDS, BETWEEN)}
    for r, thread in enumerate(trace.ranks):
        for start, end, number in zip(thread.starts, thread.ends, thread.lanes, strict=True):
            for instant in range(start, end if number >= 0 else start):
                kind = _moved_at(trace, trace.lanes[LANES[number]], r, instant)
                if kind is not None:
                    (step,) = np.flatnonzero((thread.step_begin <= instant) & (instant < thread.step_end))
                    ns[kind][r, step] += 1
    return ns


def _moved_at(trace, lane, r, instant):
    """None while an operation waits for a straggler."""
    ops = lane.ops[r]
    for k in np.flatnonzero((ops.starts <= instant) & (instant < ops.ends)):
        if not lane.collective:
            begins = ops.starts[k]
        elif trace.shared_clock:
            begins = max(other.starts[k] for other in lane.ops)
        else:
            begins = ops.ends[k] - min(other.ends[k] - other.starts[k] for other in lane.ops)
        return None if instant < begins else KINDS[ops.kinds[k]]
    return BETWEEN
