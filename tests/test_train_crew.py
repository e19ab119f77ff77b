"""Turns: one worker speaks at a time, and in a standstill nobody else trains."""

from __future__ import annotations

import contextlib
import threading

import pytest

pytest.importorskip("torch")

from fsbench.collect.timeline import Timeline, Timelines
from fsbench.metrics.trace import WAIT
from fsbench.train.crew import Turns


class FakeLane:
    name = "dense"

    def __init__(self, timeline) -> None:
        self.timeline = timeline


def race(workers: int, steps: int, every: int):
    """Workers that train and take turns; every so many turns of all is a standstill. Returns how many turns there were,
    how many standstills, and what was seen of others in them."""
    turns, lane = Turns(), FakeLane(Timeline(["dense"]))
    training, speaking = [False] * workers, [False] * workers
    taken, stood, seen = [], [], []

    def work(own: int) -> None:
        for _ in range(steps):
            training[own] = True
            training[own] = False
            with turns.turn():
                speaking[own] = True
                taken.append(own)
                if len(taken) % every == 0:
                    with turns.standstill(lane):
                        stood.append(own)
                        seen.append((sum(training), sum(speaking)))
                speaking[own] = False
        turns.end()

    turns.begin(workers)
    threads = [threading.Thread(target=work, args=(own,)) for own in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return len(taken), len(stood), set(seen)


@pytest.mark.parametrize(("workers", "every"), [(1, 1), (2, 1), (3, 1), (4, 3)])
def test_in_a_standstill_nobody_trains_and_nobody_else_has_a_turn(workers, every):
    steps = 200
    taken, stood, seen = race(workers, steps, every)
    assert taken == workers * steps
    assert stood == workers * steps // every
    assert seen == {(0, 1)}


def test_a_standstill_waits_for_a_step_that_is_under_way_and_not_for_a_worker_that_has_ended():
    turns, lane = Turns(), FakeLane(Timeline(["dense"]))
    under_way, entered, events = threading.Event(), threading.Event(), []
    turns.begin(3)
    turns.end()  # one has trained all its steps

    def step() -> None:
        under_way.wait()
        events.append("step")
        with turns.turn():
            events.append("turn")
        turns.end()

    def stand() -> None:
        with turns.turn():
            entered.set()
            with turns.standstill(lane):
                events.append("standstill")
        turns.end()

    threads = [threading.Thread(target=target) for target in (step, stand)]
    for thread in threads:
        thread.start()
    entered.wait()
    under_way.set()
    for thread in threads:
        thread.join(30)
    assert events == ["step", "standstill", "turn"]


def test_who_came_for_a_turn_before_the_standstill_waits_on_its_lane_from_then_on():
    turns, waits, speaking, waiting = Turns(), [], threading.Event(), threading.Event()

    class Seen:
        def wait(self, lane):
            waits.append((lane, threading.current_thread().name))
            waiting.set()
            return contextlib.nullcontext()

    def speak() -> None:
        with turns.turn():
            speaking.set()
            while turns._training:
                pass  # the other trains until it comes for its turn
            with turns.standstill(FakeLane(Seen())):
                assert waiting.wait(30)
        turns.end()

    turns.begin(2)
    thread = threading.Thread(target=speak)
    thread.start()
    speaking.wait()
    with turns.turn():
        pass
    turns.end()
    thread.join(30)
    assert set(waits) == {("dense", threading.current_thread().name)}


def test_a_wait_on_a_lane_that_workers_share_is_in_the_timeline_of_the_thread_that_waits():
    first, second = Timeline(["dense"]), Timeline(["dense"])
    shared = Timelines([first, second])

    def wait() -> None:
        second.adopt()
        second.begin_step()
        with shared.wait("dense"):
            pass
        second.end_step()

    first.begin_step()
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(30)
    stranger = threading.Thread(target=lambda: shared.wait("dense").__enter__())
    stranger.start()
    stranger.join(30)
    first.end_step()
    assert WAIT not in first.trace().labels
    assert second.trace().labels.tolist().count(WAIT) == 1
