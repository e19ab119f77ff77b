"""From what a run's processes left to its status and one line of reason."""

from __future__ import annotations

import signal

import pytest

from fsbench.launch.explain import exit_codes, explain, how_ended
from fsbench.launch.handover import RankError
from fsbench.launch.heartbeat import Beat
from fsbench.launch.process import Ended
from fsbench.launch.watchdog import Cut

TRAINS = Beat(77, "train", 3, 6)
DONE = Beat(77, "done", 0, 0)
TABLE = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_03:04:05
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 77)
  error_file: <N/A>
"""


def ended(*beats: Beat | None, lost: tuple[int, ...] = (), exit_code: int = 1) -> Ended:
    beats = beats or (TRAINS, TRAINS)
    names = [f"rank {rank}" for rank in range(len(beats))]
    return Ended(exit_code, names, beats, 1.0, Cut("lost", lost=lost) if lost else None)


def said(rank: int, message: str, kind: str = "failed", at: int = 0) -> RankError:
    return RankError(rank, kind, message, "train 3/6", at)


def stopped(rank: int, at: int = 0) -> RankError:
    return said(rank, "SIGTERM", "stopped", at)


CASES = [
    (ended(), [said(1, "ValueError: no\nmore")], "rank 1, train 3/6: ValueError: no"),
    (ended(), [said(1, "ValueError: no"), stopped(0)], "rank 1, train 3/6: ValueError: no"),
    # who lost a peer is not to blame, whoever spoke first
    (ended(), [said(0, "RuntimeError: Connection closed by peer")], "rank 1, train 3/6: ended without a word"),
    (ended(lost=(0,)), [], "rank 0, train 3/6: ended without a word"),
    # rank 0 was killed by us, because it could not be told to stop
    (ended(lost=(1,)), [stopped(1)], "rank 1, train 3/6: ended by a SIGTERM that was not ours"),
    (ended(lost=(0, 1)), [stopped(0)], "rank 1, train 3/6: ended without a word"),
    (ended(), [stopped(1, at=1), stopped(0, at=2)], "rank 1, train 3/6: ended by a SIGTERM that was not ours"),
    (ended(TRAINS, DONE), [stopped(0)], "rank 0, train 3/6: ended by a SIGTERM that was not ours"),
    # both lost each other: the link is gone
    (
        ended(),
        [said(0, "RuntimeError: Connection reset by peer"), said(1, "RuntimeError: Broken pipe")],
        "rank 0, train 3/6: RuntimeError: Connection reset by peer",
    ),
    (
        ended(None, None),
        [],
        "ended with exit code 1 and no error; rank 0: not started, rank 1: not started: nothing was printed",
    ),
]


@pytest.mark.parametrize(("how", "errors", "reason"), CASES)
def test_the_first_rank_to_blame_is_named_with_its_phase(how, errors, reason):
    assert explain(how, errors) == ("failed", reason)


SERVING = Beat(78, "serve", 40, 0)
WITH_A_SERVER = [
    ((), [RankError(1, "failed", "ValueError: no", "serve", 0)], "table-server 0, serve: ValueError: no"),
    ((1,), [said(0, "RuntimeError: Connection closed by peer")], "table-server 0, serve: ended without a word"),
    (
        (0,),
        [RankError(1, "failed", "RuntimeError: Broken pipe", "serve", 0)],
        "rank 0, train 3/6: ended without a word",
    ),
    (
        (),
        [RankError(1, "stopped", "SIGTERM", "serve", 0), stopped(0, 1)],
        "table-server 0, serve: ended by a SIGTERM that was not ours",
    ),
]


@pytest.mark.parametrize(("lost", "errors", "reason"), WITH_A_SERVER)
def test_servers_are_to_blame_by_their_names_as_ranks_are(lost, errors, reason):
    how = Ended(1, ["rank 0", "table-server 0"], (TRAINS, SERVING), 1.0, Cut("lost", lost=lost) if lost else None)
    assert explain(how, errors) == ("failed", reason)


def test_a_launcher_that_fails_before_any_rank_starts_is_quoted():
    status, reason = explain(ended(None), [], "Traceback\n  File x\nDistNetworkError: port 4711: address in use\n\n")
    assert (status, reason) == (
        "failed",
        "ended with exit code 1 and no error; rank 0: not started: DistNetworkError: port 4711: address in use",
    )


def test_a_launcher_that_was_killed_took_its_ranks_along_and_they_are_not_to_blame():
    status, reason = explain(ended(exit_code=-signal.SIGKILL), [stopped(0)])
    words = "rank 0: train 3/6, rank 1: train 3/6"
    assert (status, reason) == (
        "failed",
        f"the launcher of the ranks was killed by SIGKILL (out of memory, or a limit of the system?); {words}",
    )


def test_the_exit_code_comes_out_of_the_table_of_torchs_launcher():
    assert exit_codes(TABLE) == {1: -9}
    with_server = Ended(1, ["rank 0", "table-server 0"], (TRAINS, SERVING), 1.0)
    assert explain(with_server, [said(0, "RuntimeError: Connection closed by peer")], TABLE)[1] == (
        "table-server 0, serve: killed by SIGKILL (out of memory, or a limit of the system?)"
    )
    status, reason = explain(ended(), [said(0, "RuntimeError: Connection closed by peer")], TABLE)
    assert (status, reason) == (
        "failed",
        "rank 1, train 3/6: killed by SIGKILL (out of memory, or a limit of the system?)",
    )


def test_unsupported_and_out_of_memory_are_statuses_of_their_own():
    assert explain(ended(), [said(0, "needs a GPU", "unsupported")]) == ("unsupported", "needs a GPU")
    assert explain(ended(), [said(0, "MemoryError", "oom")]) == ("oom", "rank 0, train 3/6: MemoryError")


@pytest.mark.parametrize(
    ("exit_code", "text"),
    [
        (None, "ended without a word"),
        (0, "ended without a word"),
        (7, "ended without a word, exit code 7"),
        (-signal.SIGSEGV, "killed by SIGSEGV"),
        (-signal.SIGKILL, "killed by SIGKILL (out of memory, or a limit of the system?)"),
        (-63, "killed by signal 63"),
    ],
)
def test_what_is_said_of_a_rank_that_left_no_word(exit_code, text):
    assert how_ended(exit_code) == text
