"""The pool of ranks: what a task may do without hurting the next one, and what is told of one that fails."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

pytest.importorskip("torch")

from fsbench.testing.pool import RankPool, TaskFailed
from tests import support

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def pool():
    """One of its own: these tasks ruin it."""
    own = RankPool()
    yield own
    own.close()


def process_id(rank, ranks):
    return rank, ranks, os.getpid()


def raise_on(rank, ranks, bad):
    if rank == bad:
        raise ValueError("this rank\nis bad")
    import torch.distributed as dist

    dist.barrier()


def die(rank, ranks):
    os._exit(7)


def hang_with_a_child(rank, ranks, folder):
    (folder / str(rank)).write_text(str(subprocess.Popen(["sleep", "86397"]).pid))
    threading.Event().wait()


def ignore_everything(rank, ranks):
    import ctypes

    ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock


def test_results_come_by_rank_and_processes_are_used_again(pool):
    first, second = pool.run(process_id, 3), pool.run(process_id, 2)
    assert [(rank, ranks) for rank, ranks, _ in first] == [(0, 3), (1, 3), (2, 3)]
    assert [pid for *_, pid in second] == [pid for *_, pid in first[:2]]


def test_the_rank_that_failed_first_is_named_with_its_traceback_and_in_a_line(pool):
    with pytest.raises(TaskFailed) as failed:
        pool.run(raise_on, 3, 2)
    assert "Traceback" in str(failed.value)
    assert failed.value.line.startswith("rank 2 of 3: ValueError: this rank is bad in raise_on (test_testing_pool.py:")


def test_a_rank_that_dies_is_named_with_its_exit_code(pool):
    with pytest.raises(TaskFailed, match=r"rank 0 of 1: the process died, exit code 7"):
        pool.run(die, 1)


def test_at_the_limit_ranks_say_where_they_are_and_are_killed_with_all_they_started(pool, tmp_path):
    with pytest.raises(TaskFailed) as failed:
        pool.run(hang_with_a_child, 2, tmp_path, limit_s=3)
    assert "not done after 3 s: rank 0: MainThread in hang_with_a_child (test_testing_pool.py:" in str(failed.value)
    started = [int((tmp_path / rank).read_text()) for rank in ("0", "1")]
    assert all(support.is_gone(pid) for pid in started)


def test_a_rank_that_cannot_even_answer_is_killed_too(pool):
    with pytest.raises(TaskFailed, match="rank 0: no answer"):
        pool.run(ignore_everything, 1, limit_s=1)


def test_after_a_failure_the_next_task_finds_fresh_ranks(pool):
    before = {pid for *_, pid in pool.run(process_id, 2)}
    with pytest.raises(TaskFailed):
        pool.run(die, 2)
    assert before.isdisjoint(pid for *_, pid in pool.run(process_id, 2))


def test_closing_leaves_no_process_and_no_folder():
    own = RankPool()
    pids = [pid for *_, pid in own.run(process_id, 3)]
    folder = own._folder
    own.close()
    assert all(support.is_gone(pid) for pid in pids)
    assert not folder.exists()
