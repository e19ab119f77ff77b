"""When a run is given up, who is late then, and what each rank waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fsbench.errors import FsbenchError
from fsbench.launch import process
from fsbench.launch.activity import MOST_LANES, Activity, Operation, read_activity
from fsbench.launch.heartbeat import SERVES, Beat, Heartbeat
from fsbench.launch.scene import RankScene, Scene
from fsbench.launch.system import processes_of, state_of
from fsbench.launch.watchdog import Cut, Limits, Watchdog

NOW = 100 * 10**9
RANKS = ["rank 0", "rank 1"]


def operation(lane: str, number: int, seconds: float | None) -> Operation:
    """Under way for so long; None: done."""
    since = NOW - int((seconds or 0) * 1e9)
    return Operation(lane, number, "all_gather metadata", since, under_way=seconds is not None)


def rank(*operations: Operation, phase: str = "train", done: int = 3, stopped: bool = False) -> RankScene:
    return RankScene(Beat(1, phase, done, 6), stopped, {op.lane: op for op in operations}, stacks=None)


def scene(*ranks: RankScene) -> Scene:
    return Scene(ranks, [f"rank {number}" for number in range(len(ranks))], NOW)


STUCK = operation("x", 5, 20.0)
BEFORE = operation("x", 4, None)
LATE = {
    "a rank that has not come to an operation in which another is stuck": ([rank(STUCK), rank(BEFORE)], [1]),
    "one that never had an operation on the lane": ([rank(STUCK), rank()], [1]),
    "a stopped one, whatever it is in": ([rank(STUCK), rank(STUCK, stopped=True)], [1]),
    "one that cannot leave the operation before": ([rank(STUCK), rank(operation("x", 4, 20.0))], [1]),
    "nobody, where all are in the same operation": ([rank(STUCK), rank(STUCK)], []),
    "nobody, where each waits for the other": (
        [rank(STUCK, operation("y", 1, None)), rank(BEFORE, operation("y", 2, 20.0))],
        [],
    ),
    "nobody for an operation that has only begun": ([rank(operation("x", 5, 0.1)), rank(BEFORE)], []),
    "the earlier phase, where none is stuck in an operation": ([rank(phase="rendezvous"), rank(phase="data")], [1]),
    "fewer steps of the same phase": ([rank(done=5), rank(done=2), rank(done=2)], [1, 2]),
    "nobody, where one is a step ahead": ([rank(done=3), rank(done=2)], []),
}


@pytest.mark.parametrize("case", LATE)
def test_late_is(case):
    ranks, late = LATE[case]
    assert scene(*ranks).late == late


SERVER = 2
"""The number of a server beside two ranks."""


def asked(rank: int, number: int, seconds: float | None, name: str = "receive rows") -> Operation:
    """On the lane between a rank and the server, as either end tells it."""
    since, members = NOW - int((seconds or 0) * 1e9), frozenset((rank, SERVER))
    return Operation(f"table-server-0 of rank {rank}", number, name, since, seconds is not None, members)


def idle(rank: int, number: int) -> Operation:
    return asked(rank, number, 20.0, "receive requests")


def with_server(first: RankScene, second: RankScene, *operations: Operation, stopped: bool = False) -> Scene:
    server = RankScene(Beat(1, SERVES, 40, 0), stopped, {op.lane: op for op in operations}, stacks=None)
    return Scene([first, second, server], [*RANKS, "table-server 0"], NOW)


GETS_NO_ROWS, ASKS_NOTHING = asked(0, 5, 20.0), asked(1, 8, None, "send gradients")
WITH_A_SERVER = {
    "a stopped server": (with_server(rank(GETS_NO_ROWS), rank(), asked(0, 4, None), stopped=True), [SERVER]),
    "one that does not send what a rank is stuck for, and no rank, whose lane it is not": (
        with_server(rank(GETS_NO_ROWS), rank(), asked(0, 4, None, "receive ids")),
        [SERVER],
    ),
    "the same while it has nothing to do for a rank that trains": (
        with_server(rank(GETS_NO_ROWS), rank(ASKS_NOTHING), asked(0, 4, None, "receive ids"), idle(1, 9)),
        [SERVER],
    ),
    "the same while another rank waits for the one that is stuck": (
        with_server(
            rank(GETS_NO_ROWS, operation("world", 2, None)),
            rank(ASKS_NOTHING, operation("world", 3, 15.0)),
            *(asked(0, 4, None, "receive ids"), idle(1, 9)),
        ),
        [SERVER],
    ),
    "a rank that does not send what it has announced": (
        with_server(rank(asked(0, 5, None, "send requests")), rank(), asked(0, 6, 20.0, "receive ids")),
        [0],
    ),
    "the rank that another waits for, and no server that idles meanwhile": (
        with_server(rank(STUCK), rank(BEFORE, ASKS_NOTHING), idle(0, 1), idle(1, 9)),
        [1],
    ),
    "nobody, where a server idles and its ranks train": (
        with_server(rank(asked(0, 4, None)), rank(ASKS_NOTHING), idle(0, 5), idle(1, 9)),
        [],
    ),
    "fewer steps, where a server idles": (with_server(rank(done=5), rank(done=2), idle(0, 1), idle(1, 1)), [1]),
}


@pytest.mark.parametrize("case", WITH_A_SERVER)
def test_beside_a_server_late_is(case):
    scene, late = WITH_A_SERVER[case]
    assert scene.late == late


def test_servers_are_called_by_their_names():
    stuck = with_server(rank(GETS_NO_ROWS), rank(), asked(0, 4, None), idle(1, 1))
    assert stuck.summary() == (
        "table-server 0 is late; rank 0: train 3/6, 20 s in receive rows on lane table-server-0 of rank 0; "
        "rank 1: train 3/6; table-server 0: serve"
    )
    assert "---- table-server 0: serve\n" in stuck.report()
    stopped = with_server(rank(GETS_NO_ROWS), rank(stopped=True), asked(0, 4, None), stopped=True)
    assert stopped.summary().startswith("rank 1 and table-server 0 are late; ")


def test_processes_that_do_the_same_are_told_together():
    ranks = [rank(), rank(), rank(done=2), rank(), rank(), rank()]
    assert scene(*ranks).summary() == "rank 0, rank 1: train 3/6; rank 2: train 2/6; rank 3 to rank 5: train 3/6"


def test_a_rank_that_others_wait_for_is_not_late_while_it_waits_itself():
    waiting = rank(operation("x", 4, None), operation("y", 2, 9.0))
    chain = scene(rank(operation("x", 5, 20.0)), waiting, rank(operation("x", 5, 20.0), operation("y", 1, None)))
    assert chain.late == []  # 0 and 2 wait for 1 on x, 1 waits for 2 on y
    chain = scene(rank(operation("x", 5, 20.0)), waiting, rank(operation("x", 4, None), operation("y", 1, None)))
    assert chain.late == [2]


def test_the_summary_is_one_line_and_the_report_has_every_lane():
    ranks = [
        rank(operation("shuffle", 5, 17.2), operation("dense", 9, 18.0)),
        rank(operation("shuffle", 4, None), done=2),
    ]
    line = "rank 1 is late; rank 0: train 3/6, 18 s in all_gather metadata on lane dense; rank 1: train 2/6"
    assert scene(*ranks).summary() == line
    report = scene(*ranks).report()
    assert "lane shuffle: operation 5, all_gather metadata, under way for 17.2 s" in report
    assert "lane shuffle: operation 4, all_gather metadata, done; begun for 0.0 s" in report
    assert report.count("gave no stacks") == 2


def test_the_launcher_reads_which_operations_a_rank_is_in(tmp_path):
    assert read_activity(tmp_path, 3) == {}
    activity = Activity(tmp_path, 3)
    shuffle, dense = activity.lane("shuffle"), activity.lane("dense")
    assert read_activity(tmp_path, 3) == {}
    shuffle.begin(1, "all_gather metadata")
    dense.begin(1, "all_reduce dense")
    dense.end()
    shuffle.begin(2, "all_to_all samples")
    found = read_activity(tmp_path, 3)
    assert {lane: (op.number, op.name, op.under_way) for lane, op in found.items()} == {
        "shuffle": (2, "all_to_all samples", True),
        "dense": (1, "all_reduce dense", False),
    }
    assert {op.members for op in found.values()} == {frozenset()}
    activity.lane("table-server-0 of rank 3", (3, 12)).begin(1, "send ids")
    assert read_activity(tmp_path, 3)["table-server-0 of rank 3"].members == {3, 12}


def test_a_rank_with_too_many_lanes_is_told_how_many_it_may_have(tmp_path):
    activity = Activity(tmp_path, 0)
    for number in range(MOST_LANES):
        activity.lane(f"lane {number}").begin(1, "x" * 500)
    assert len(read_activity(tmp_path, 0)) == MOST_LANES
    with pytest.raises(FsbenchError, match=f"lane 'more': a rank has at most {MOST_LANES} lanes"):
        activity.lane("more")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TestWatchdog:
    @pytest.fixture
    def clock(self):
        return Clock()

    @pytest.fixture
    def beats(self, tmp_path):
        return [Heartbeat(tmp_path, rank) for rank in range(2)]

    def test_no_rank_that_moves_lets_the_run_live_up_to_its_time_limit(self, tmp_path, beats, clock):
        dog = Watchdog(tmp_path, RANKS, Limits(run_s=100, stall_s=10), clock)
        for second in range(0, 101, 5):
            clock.now = second
            beats[second // 5 % 2].beat("train", second, 1000)
            assert dog.look() is None
        clock.now = 101
        assert (dog.look().kind, dog.look().limit_s) == ("time", 100)

    def test_a_run_is_stalled_when_no_rank_has_moved_for_longer_than_the_limit(self, tmp_path, beats, clock):
        dog = Watchdog(tmp_path, RANKS, Limits(run_s=100, stall_s=10), clock)
        assert dog.look() is None
        clock.now = 10
        beats[0].beat("start")  # the same again is no movement
        assert dog.look() is None
        clock.now = 10.5
        cut = dog.look()
        assert (cut.kind, cut.limit_s, len(cut.scene.ranks)) == ("stall", 10, 2)

    def test_ranks_that_never_start_are_stalled_too(self, tmp_path, clock):
        dog = Watchdog(tmp_path, RANKS, Limits(run_s=100, stall_s=10), clock)
        assert dog.look() is None
        clock.now = 11
        assert dog.look().scene.summary() == "rank 0, rank 1: not started"

    def test_a_look_after_a_long_pause_counts_what_happened_meanwhile(self, tmp_path, beats, clock):
        dog = Watchdog(tmp_path, RANKS, Limits(run_s=1000, stall_s=10), clock)
        dog.look()
        clock.now = 500  # fsbench itself was stopped by Ctrl-Z
        beats[0].beat("train", 400, 1000)
        assert dog.look() is None

    def test_a_rank_whose_process_is_gone_is_lost_unless_it_was_done(self, tmp_path, clock):
        for rank, phase in enumerate(("train", "done")):
            subprocess.run(
                [sys.executable, "-c", BEAT.format(folder=str(tmp_path), rank=rank, phase=phase)], check=True
            )
        cut = Watchdog(tmp_path, RANKS, Limits(100, 10), clock).look()
        assert (cut.kind, cut.lost) == ("lost", [0])


BEAT = """
from pathlib import Path
from fsbench.launch.heartbeat import Heartbeat
Heartbeat(Path({folder!r}), {rank}).beat({phase!r})
"""


def test_a_process_is_running_stopped_or_gone_and_a_zombie_is_gone():
    child = subprocess.Popen(["sleep", "1000"])
    assert state_of(child.pid) == "running"
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert state_of(child.pid) == "stopped"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert state_of(child.pid) == "gone"  # nobody has waited for it yet
    child.wait()
    assert state_of(child.pid) == "gone"


STUBBORN = [sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"]


@pytest.mark.timeout(30)
def test_a_launcher_that_does_not_stop_is_killed_at_once_when_there_is_no_more_time(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_TERM_S", 10_000.0)
    seen = []

    def interrupt(beats):
        if state_of_child(tmp_path) == "sleeping":
            seen.append(beats)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        process.run_to_end(STUBBORN, {}, tmp_path, ["rank 0"], Limits(100, 100), interrupt, hurry=lambda: True)
    assert seen == [[None]]


class KilledLauncher:
    """It is seen to be dead only when it is asked the second time."""

    returncode = None

    def poll(self):
        before, self.returncode = self.returncode, -signal.SIGKILL
        return before


class Bereft:
    """Of a rank, which its launcher took along."""

    def look(self):
        return Cut("lost", lost=[0])


def test_the_ranks_of_a_launcher_that_was_killed_are_not_lost():
    assert process._watch(KilledLauncher(), Bereft(), lambda beats: None) is None


def state_of_child(folder: Path) -> str:
    """`sleeping` once the launcher of this folder ignores SIGTERM."""
    statuses = [Path(f"/proc/{pid}/status").read_text().splitlines() for pid in processes_of(folder)]
    masks = [int(line.split()[1], 16) for status in statuses for line in status if line.startswith("SigIgn")]
    return "sleeping" if any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks) else "starting"
