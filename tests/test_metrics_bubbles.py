"""The account of the windows: fabricated timelines with known waits, and a reference that counts instants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.metrics.bubbles import BUBBLE_PARTS, PARTS, Bubbles, account
from fsbench.metrics.trace import LABELS, WAIT_CLASSES, LaneOps, LaneTrace, RankTrace, RunTrace

LANES = ("shuffle", "exchange", "critical", "dense", "control", "server")
WAITS_AS = dict(zip(LANES, ("shuffle", "embedding", "embedding", "dense", "control", "embedding"), strict=True))
WITH_A_SERVER = ("server",)
"""Lanes on which ranks do not meet."""


def rank(*steps, begin=0):
    """A main thread from steps of (what, ns) or (what, ns, CPU ns); `what` is a label or a lane waited on."""
    rows, windows, now = [], [], begin
    for step in steps:
        opened = now
        for what, length, *cpu in step:
            label = LABELS.index("wait" if what in LANES else what)
            lane = LANES.index(what) if what in LANES else -1
            rows.append((now, now + length, label, cpu[0] if cpu else length, lane))
            now += length
        windows.append((opened, now))
    begins, ends = np.array(windows, np.int64).reshape(-1, 2).T
    starts, stops, labels, cpu_ns, lanes = np.array(rows, np.int64).reshape(-1, 5).T
    return RankTrace(begins, ends, starts, stops, labels.astype(np.int8), cpu_ns, lanes.astype(np.int16))


def run(*ranks, shared_clock=True, **operations):
    """A trace from ranks and, by lane, one list of (start, end) a rank."""
    lanes = {}
    for name in LANES:
        by_rank = operations.get(name, [[]] * len(ranks))
        lanes[name] = LaneTrace(WAITS_AS[name], [_ops(rows) for rows in by_rank], name not in WITH_A_SERVER)
    return RunTrace(list(ranks), lanes, LANES, shared_clock)


def _ops(rows):
    starts, ends = np.array(rows, np.int64).reshape(-1, 2).T
    return LaneOps(starts, ends, np.ones(len(rows), np.int64), np.zeros(len(rows), np.int16))


def parts_of(bubbles, rank):
    return {name: ns for name, ns in bubbles.totals_by_rank()[rank].items() if ns}


def test_labels_become_parts():
    bubbles = account(run(rank([("input", 1), ("strategy", 20), ("compute", 300), ("other", 4000)])))
    assert parts_of(bubbles, 0) == {"input": 1, "strategy": 20, "compute": 300, "other": 4000}


def test_wall_time_without_cpu_time_in_compute_is_preempted():
    bubbles = account(run(rank([("compute", 100, 70), ("compute", 50, 60), ("strategy", 10, 0)])))
    assert parts_of(bubbles, 0) == {"compute": 120, "preempted": 30, "strategy": 10}


def test_a_wait_is_straggler_until_the_last_rank_starts_and_transfer_from_there():
    trace = run(
        rank([("compute", 10), ("exchange", 50)]),
        rank([("compute", 45), ("exchange", 15)]),
        exchange=[[(10, 60)], [(45, 60)]],
    )
    bubbles = account(trace)
    assert parts_of(bubbles, 0) == {"compute": 10, "embedding_straggler": 35, "embedding_transfer": 15}
    assert parts_of(bubbles, 1) == {"compute": 45, "embedding_transfer": 15}


def test_only_the_exposed_end_of_an_operation_counts():
    trace = run(
        rank([("compute", 40), ("dense", 20)]),
        rank([("compute", 60)]),
        dense=[[(10, 60)], [(45, 60)]],
    )
    assert parts_of(account(trace), 0) == {"compute": 40, "dense_straggler": 5, "dense_transfer": 15}


def test_waiting_in_a_queue_behind_a_straggling_operation_is_straggler_time():
    """The main thread waits for the second operation while the lane is still busy with the first."""
    trace = run(
        rank([("compute", 5), ("dense", 35)]),
        rank([("compute", 40)]),
        dense=[[(0, 30), (30, 40)], [(20, 30), (30, 40)]],
    )
    assert parts_of(account(trace), 0) == {"compute": 5, "dense_straggler": 15, "dense_transfer": 20}


def test_an_operation_that_needs_no_straggler_is_not_waited_for_after_its_end():
    trace = run(
        rank([("dense", 10), ("compute", 50), ("dense", 30)]),
        rank([("compute", 90)]),
        dense=[[(0, 10), (60, 90)], [(80, 90), (90, 90)]],
    )
    assert parts_of(account(trace), 0)["dense_straggler"] == 10 + 30


def test_without_a_shared_clock_the_excess_over_the_shortest_duration_is_straggler_time():
    trace = run(
        rank([("compute", 10), ("shuffle", 50)], begin=1000),
        rank([("compute", 45), ("shuffle", 15)], begin=77),
        shuffle=[[(1010, 1060)], [(122, 137)]],
        shared_clock=False,
    )
    bubbles = account(trace)
    assert parts_of(bubbles, 0) == {"compute": 10, "shuffle_straggler": 35, "shuffle_transfer": 15}
    assert parts_of(bubbles, 1) == {"compute": 45, "shuffle_transfer": 15}


def test_lanes_of_one_class_add_up_and_do_not_mix_their_stragglers():
    trace = run(
        rank([("exchange", 10), ("critical", 10)]),
        rank([("compute", 20)]),
        exchange=[[(0, 10)], [(4, 10)]],
        critical=[[(4, 20)], [(13, 20)]],
    )
    assert parts_of(account(trace), 0) == {"embedding_straggler": 4 + 3, "embedding_transfer": 6 + 7}


@pytest.mark.parametrize("shared_clock", [True, False])
def test_what_is_waited_for_with_a_server_is_transfer_however_long_it_takes_others(shared_clock):
    trace = run(
        rank([("compute", 10), ("server", 50)]),
        rank([("compute", 55), ("server", 5)]),
        server=[[(10, 40), (40, 60)], [(55, 60)]],
        shared_clock=shared_clock,
    )
    bubbles = account(trace)
    assert parts_of(bubbles, 0) == {"compute": 10, "embedding_transfer": 50}
    assert parts_of(bubbles, 1) == {"compute": 55, "embedding_transfer": 5}


def test_shares_are_sums_over_sums_and_add_up_to_the_bubble():
    trace = run(
        rank([("compute", 10), ("dense", 20), ("input", 10), ("control", 10)]),
        rank([("compute", 40), ("strategy", 5), ("other", 5)]),
        dense=[[(10, 30)], [(25, 30)]],
        control=[[(40, 50)], [(44, 50)]],
    )
    shares = account(trace).shares()
    assert shares == {
        "bubble": 0.5,
        "bubble_straggler": 0.15,
        "bubble_embedding": 0.0,
        "bubble_dense": 0.05,
        "bubble_shuffle": 0.0,
        "bubble_strategy": 0.05,
        "bubble_input": 0.1,
        "bubble_preempted": 0.0,
        "bubble_other": 0.15,
    }


def test_reported_parts_and_compute_are_all_parts_once():
    reported = [part for parts in BUBBLE_PARTS.values() for part in parts]
    assert sorted([*reported, "compute"]) == sorted(PARTS)


def test_a_step_takes_as_long_as_its_slowest_rank():
    bubbles = account(run(rank([("compute", 5)], [("compute", 9)]), rank([("compute", 7)], [("other", 2)])))
    assert bubbles.step_ns.tolist() == [7, 9]
    assert bubbles.compute.tolist() == [[5, 9], [7, 0]]


def test_exposed_time_is_that_of_each_steps_slowest_rank():
    trace = run(
        rank([("exchange", 10)], [("exchange", 4)]),
        rank([("compute", 8)], [("compute", 5), ("exchange", 5)], begin=2),
        exchange=[[(0, 10), (10, 14)], [(0, 2), (10, 20)]],
    )
    bubbles = account(trace)
    assert bubbles.on_slowest_rank(bubbles.of("embedding_transfer")) == (10 + 5) / 2


def test_blocked_share_is_dense_waits_over_windows_straggler_or_not():
    trace = run(rank([("dense", 30)]), rank([("compute", 30)]), dense=[[(0, 30)], [(10, 30)]])
    assert account(trace).blocked_share() == 0.5


@pytest.mark.parametrize("trace", [run(), run(rank()), run(rank([]), rank([]))])
def test_nothing_measured_gives_no_shares(trace):
    bubbles = account(trace)
    assert bubbles.shares() == {}
    assert bubbles.blocked_share() is None
    assert bubbles.windows.sum() == 0


def test_a_broken_trace_is_refused():
    with pytest.raises(ValueError, match="lane dense: rank 1 issued 0 operations, rank 0 1"):
        account(run(rank([("compute", 1)]), rank([("compute", 1)]), dense=[[(0, 1)], []]))


lengths = st.integers(0, 9)
what = st.sampled_from([*(label for label in LABELS if label != "wait"), *LANES])
steps = st.lists(st.lists(st.tuples(what, lengths, lengths), max_size=6), min_size=2, max_size=2)


@st.composite
def lane_operations(draw, ranks, collective):
    """As many on every rank, or any number on each."""
    counts = st.integers(0, 4)
    numbers = [draw(counts)] * ranks if collective else [draw(counts) for _ in range(ranks)]
    by_rank = []
    for count in numbers:
        gaps = draw(st.lists(st.tuples(lengths, lengths), min_size=count, max_size=count))
        edges = np.cumsum(np.array(gaps, np.int64).ravel())
        by_rank.append(edges.reshape(-1, 2).tolist())
    return by_rank


@st.composite
def traces(draw):
    ranks = draw(st.integers(1, 3))
    threads = [rank(*draw(steps), begin=draw(lengths)) for _ in range(ranks)]
    operations = {name: draw(lane_operations(ranks, name not in WITH_A_SERVER)) for name in LANES}
    return run(*threads, shared_clock=draw(st.booleans()), **operations)


def reference(trace):
    """int64[ranks, steps, parts], one instant at a time."""
    ns = np.zeros((len(trace.ranks), len(trace.ranks[0].windows), len(PARTS)), np.int64)
    for r, thread in enumerate(trace.ranks):
        for i, (start, end) in enumerate(zip(thread.starts.tolist(), thread.ends.tolist(), strict=True)):
            for instant in range(start, end):
                (step,) = np.flatnonzero((thread.step_begin <= instant) & (instant < thread.step_end))
                ns[r, step, PARTS.index(_part_at(trace, r, i, instant))] += 1
    return ns


def _part_at(trace, r, i, instant):
    thread = trace.ranks[r]
    label = LABELS[thread.labels[i]]
    if label == "compute":
        return "compute" if instant - thread.starts[i] < thread.cpu_ns[i] else "preempted"
    if label != "wait":
        return label
    lane = trace.lanes[LANES[thread.lanes[i]]]
    straggler = any(
        start <= instant < _straggles_until(trace, lane, r, k) for k, start in enumerate(lane.ops[r].starts)
    )
    return f"{lane.waits_as}_{'straggler' if straggler else 'transfer'}"


def _straggles_until(trace, lane, r, k):
    start, end = lane.ops[r].starts[k], lane.ops[r].ends[k]
    if not lane.collective:
        return start
    if trace.shared_clock:
        return min(end, max(ops.starts[k] for ops in lane.ops))
    return start + (end - start) - min(ops.ends[k] - ops.starts[k] for ops in lane.ops)


@given(traces())
def test_every_part_equals_the_count_of_its_instants(trace):
    assert np.array_equal(account(trace).ns, reference(trace))


@given(traces())
def test_parts_sum_to_the_windows_exactly(trace):
    bubbles = account(trace)
    assert sum(bubbles.totals().values()) == sum(int(thread.windows.sum()) for thread in trace.ranks)
    shares = bubbles.shares()
    bubble = shares.pop("bubble", 0)
    assert sum(shares.values()) == pytest.approx(bubble)


def test_every_class_of_wait_has_its_parts():
    assert {part.split("_")[0] for part in PARTS if "_" in part} == set(WAIT_CLASSES)
    assert Bubbles(np.ones((1, 1, len(PARTS)), np.int64)).windows.tolist() == [[len(PARTS)]]
