"""Times that can be worked out by hand, to the nanosecond, and what holds for any plan."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsbench.axes import CRITICAL, DENSE, EXCHANGE
from fsbench.errors import FsbenchError
from fsbench.metrics.bubbles import PARTS
from fsbench.sim.machine import Machine
from fsbench.sim.plan import MAIN, Collective, Operation, Script, Wait
from fsbench.sim.topology import Topology
from tests import plans
from tests.plans import TWO, bubbles, ends, machine, run, send


def parts(executed, rank: int) -> dict[str, int]:
    """Nanoseconds of a rank by part, those that are there."""
    ns = bubbles(executed).ns[rank].sum(axis=0).tolist()
    return {part: amount for part, amount in zip(PARTS, ns, strict=True) if amount}


def test_the_fast_of_two_ranks_waits_for_the_slow_one_and_both_for_the_bytes():
    def step(script: Script) -> None:
        script.compute([100, 300])
        script.wait(send(script, EXCHANGE, 1000))

    done = run(step)
    assert parts(done, 0) == {"compute": 100, "embedding_straggler": 200, "embedding_transfer": 1000}
    assert parts(done, 1) == {"compute": 300, "embedding_transfer": 1000}


def test_a_transfer_under_longer_compute_costs_nothing():
    def step(script: Script) -> None:
        sent = send(script, EXCHANGE, 1000)
        script.compute(5000)
        script.wait(sent)

    assert parts(run(step), 0) == {"compute": 5000}


def test_a_transfer_that_is_waited_for_at_once_costs_all_of_its_time():
    def step(script: Script) -> None:
        script.wait(send(script, EXCHANGE, 1000))
        script.compute(5000)

    assert parts(run(step), 1) == {"embedding_transfer": 1000, "compute": 5000}


def test_operations_of_a_lane_run_one_after_another_with_its_own_work_between_them():
    def step(script: Script) -> None:
        send(script, EXCHANGE, 1000)
        script.work(EXCHANGE, 70)
        script.wait(send(script, EXCHANGE, 500))

    assert ends(run(step), EXCHANGE.name) == [[1000] * 2, [1070] * 2, [1570] * 2]


def test_an_operation_comes_after_what_it_is_told_to_on_another_lane():
    def step(script: Script) -> None:
        first = send(script, EXCHANGE, 1000)
        script.wait(send(script, CRITICAL, 500, after=[first]))

    assert ends(run(step), CRITICAL.name) == [[1500] * 2]


def test_transfers_share_a_link_in_equal_parts_while_both_use_it():
    def step(script: Script) -> None:
        send(script, EXCHANGE, 1000)
        script.compute(400)
        send(script, CRITICAL, 1000)

    done = run(step)
    # The first has 600 left when the second comes, which takes both to 400 + 2 * 600; then the second has 400 left.
    assert ends(done, EXCHANGE.name) == [[1600] * 2]
    assert ends(done, CRITICAL.name) == [[2000] * 2]


def test_transfers_on_different_links_do_not_meet():
    pair = Topology(4, 2)
    inside, between = np.zeros((4, 4), np.int64), np.zeros((4, 4), np.int64)
    inside[[0, 1, 2, 3], [1, 0, 3, 2]] = 2000  # at 2 bytes a nanosecond
    between[[0, 2, 1, 3], [2, 0, 3, 1]] = 1000

    def step(script: Script) -> None:
        script.issue(EXCHANGE, "all_to_all", pair.all_to_all(inside), kind="rows")
        script.issue(CRITICAL, "all_to_all", pair.all_to_all(between), kind="rows")

    done = run(step, machine(pair))
    assert ends(done, EXCHANGE.name) == ends(done, CRITICAL.name) == [[1000] * 4]


def test_compute_runs_slower_beside_a_collective_on_multiprocessors_and_as_long_as_that_one_moves():
    def step(script: Script) -> None:
        script.compute(100)
        send(script, EXCHANGE, 300)
        script.compute([1000, 400])

    # From 100 to 400 at 2/3 of the speed: 200 done, of which rank 1 then lacks 200 and rank 0 800.
    assert ends(run(step, machine(slowdown={"sm": 0.5})))[1] == [1200, 600]


def test_compute_does_not_notice_what_the_host_drives():
    def step(script: Script) -> None:
        send(script, EXCHANGE, 300)
        script.compute(1000)

    done = run(step, machine(slowdown={"sm": 0.5}), device="cpu")
    assert ends(done)[0] == [1000, 1000]


def test_work_that_is_no_compute_is_never_slowed_down():
    def step(script: Script) -> None:
        send(script, EXCHANGE, 300)
        script.strategy(1000)

    assert ends(run(step, machine(slowdown={"sm": 0.5})))[0] == [1000, 1000]


def test_a_hop_costs_the_latency_of_its_link_before_the_first_byte_moves():
    rates = {**plans.RATES, "rail": plans.Rate(1e9, latency_ns=250)}

    def step(script: Script) -> None:
        script.wait(send(script, EXCHANGE, 1000))

    assert ends(run(step, machine(links=rates)), EXCHANGE.name) == [[1250] * 2]


def test_copies_through_host_memory_overlap_the_wire_but_for_the_first_and_the_last():
    def step(script: Script) -> None:
        send(script, EXCHANGE, 1000, copied=400, alone=1)
        send(script, EXCHANGE, 1000, copied=400)
        script.wait(send(script, EXCHANGE, 1000, copied=400, alone=1))

    assert ends(run(step, device="cpu"), EXCHANGE.name) == [[1400] * 2, [2400] * 2, [3800] * 2]


def test_a_rank_of_half_the_speed_takes_twice_as_long():
    done = run(lambda script: script.compute(100), machine(speeds=np.array([1.0, 0.5])))
    assert ends(done)[0] == [100, 200]


def test_jitter_is_the_same_for_the_same_seed_and_has_a_mean_of_one():
    def times(seed: int) -> np.ndarray:
        done = run(lambda script: script.compute(10**6), machine(jitter=0.1, seed=seed), steps=400)
        return bubbles(done).compute

    assert np.array_equal(times(1), times(1))
    assert not np.array_equal(times(1), times(2))
    assert times(1).mean() == pytest.approx(10**6, rel=0.02)
    assert times(1).std() == pytest.approx(10**5, rel=0.1)


def test_the_next_step_begins_on_a_rank_when_its_last_one_is_over_there():
    done = run(lambda script: script.compute([100, 300]), steps=3)
    assert bubbles(done).windows.tolist() == [[100] * 3, [300] * 3]


def looped(pause_ns: float, steps: int, compute: int = 1000) -> list[int]:
    """When the rounds of a loop end, each 300 on the wire, beside steps of compute."""
    begun: list[bool] = []

    def step(script: Script) -> None:
        script.compute(compute)
        if not begun:
            begun.append(True)
            script.loop(DENSE, lambda: send(script, DENSE, 300), lambda took: pause_ns)

    done = run(step, steps=steps)
    rounds = [operation for operation in done.threads[DENSE.name] if isinstance(operation, Collective)]
    return [int(done.times[operation].end[0]) for operation in rounds]


def test_a_loop_goes_round_and_round_from_where_it_was_started_until_the_last_step_is_over():
    assert looped(pause_ns=0, steps=2) == [1300, 1600, 1900]


def test_a_loop_pauses_between_its_rounds():
    assert looped(pause_ns=400, steps=3) == [1300, 2000, 2700]


def test_a_loop_is_told_what_its_last_round_took():
    told: list[list[int]] = []

    def step(script: Script) -> None:
        script.loop(DENSE, lambda: send(script, DENSE, 300), lambda took: told.append(took.tolist()) or 10**6)
        script.compute(1000)

    run(step)
    assert told == [[300, 300]]


def test_a_loop_without_a_collective_is_refused():
    with pytest.raises(FsbenchError, match="lane dense has no collective"):
        run(lambda script: script.loop(DENSE, lambda: script.work(DENSE, 10), lambda took: 0))


def test_what_waits_for_something_that_is_never_done_is_an_error():
    def step(script: Script) -> None:
        never = Wait(EXCHANGE.name, ())  # nobody was told to do it
        script.wait(never)

    with pytest.raises(FsbenchError, match="does not go on: main wait"):
        run(step)


def test_a_plan_without_exchange_is_through_at_once():
    assert bubbles(run(lambda script: script.compute([1, 2]), steps=5)).step_ns.tolist() == [2] * 5


@st.composite
def any_plan(draw) -> tuple[Machine, object, int]:
    """Some ranks, some steps, and in each some work, transfers and waits in any order."""
    topology = draw(st.sampled_from([Topology(1, 1), TWO, Topology(4, 2)]))
    actions = draw(st.lists(st.sampled_from(["compute", "strategy", "send", "reduce", "work", "wait"]), max_size=12))
    seed = draw(st.integers(0, 99))
    slowdown = {"sm": draw(st.sampled_from([0.0, 0.3]))}
    random = np.random.default_rng(seed)

    def step(script: Script) -> None:
        issued: list[Operation] = []
        for action in actions:
            lane = plans.LANES[random.integers(3)]
            if action in ("compute", "strategy"):
                getattr(script, action)(random.integers(0, 500, topology.ranks))
            elif action == "work":
                issued.append(script.work(lane, random.integers(0, 50, topology.ranks), after=issued[-1:]))
            elif action == "wait":
                for operation in issued[-1:]:
                    script.wait(operation)
            elif action == "send":
                between = random.integers(0, 300, (topology.ranks, topology.ranks))
                traffic = topology.all_to_all(between)
                issued.append(script.issue(lane, "all_to_all", traffic, kind="rows", after=issued[-1:]))
            else:
                issued.append(script.issue(lane, "all_reduce", topology.all_reduce(200), kind="dense"))

    return machine(topology, slowdown=slowdown, jitter=0.1, seed=seed), step, draw(st.integers(1, 4))


@settings(deadline=None, max_examples=60)
@given(any_plan())
def test_windows_are_tiled_and_no_thread_does_two_things_at_once(plan):
    on, step, steps = plan
    done = run(step, on, steps=steps)
    account = bubbles(done)  # checks every window
    assert account.windows.shape == (on.topology.ranks, steps)
    for operations in done.threads.values():
        times = [done.times[operation] for operation in operations]
        for earlier, later in itertools.pairwise(times):
            assert (later.start >= earlier.end).all()
        assert all((each.end >= each.start).all() for each in times)


@settings(deadline=None, max_examples=60)
@given(any_plan())
def test_no_link_carries_more_than_its_rate(plan):
    on, step, steps = plan
    done = run(step, on, steps=steps)
    lanes = [operations for thread, operations in done.threads.items() if thread != MAIN]
    transfers = [operation for operations in lanes for operation in operations if isinstance(operation, Collective)]
    if not transfers:
        return
    begins = np.array([done.times[each].start.max() for each in transfers])
    finishes = np.array([done.times[each].end.max() for each in transfers])
    for link in ("host", "rail", "across"):
        needed = np.array([on.demand(each).get(link, 0.0) for each in transfers])
        for begin in begins:
            # What lies whole between two instants fits between them, but for the rounding of each.
            for finish in finishes:
                within = (begins >= begin) & (finishes <= finish)
                assert needed[within].sum() <= max(0, finish - begin) + len(transfers)
