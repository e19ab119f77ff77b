"""Whole runs whose background thread breaks, or is at work when a signal comes: what is recorded, and that all end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fsbench.launch.heartbeat import Beat, read_beats
from fsbench.results.store import ResultSet
from tests import fakes, sessions

pytest.importorskip("torch")
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(120)]

DENSE = "dense:batch=4,inputs=6,hidden=5,layers=1"
PLUGINS = '''
    import dataclasses
    import tempfile
    import threading
    from pathlib import Path

    from fsbench_strategies.sync.shadow_ma import ShadowMA


    class Collectives:
        """Calls `before`, on the thread of the background, before each of its sums."""

        def __init__(self, inner, before):
            self._inner, self._before = inner, before

        def all_reduce(self, lane, tensor, *, kind):
            self._before()
            return self._inner.all_reduce(lane, tensor, kind=kind)


    class Watched(ShadowMA):
        def setup(self, context):
            collectives = Collectives(context.collectives, self.before_sum)
            super().setup(dataclasses.replace(context, collectives=collectives))


    class Breaking(Watched):
        """The background raises on rank 1, while that of rank 0 waits for it in a sum."""

        def before_sum(self):
            if self.context.rank == 1:
                raise ArithmeticError("the background broke")


    class Stuck(Watched):
        """In the third round rank 1 never comes to the sum. A file tells that a rank is in that round."""

        rounds = 0

        def before_sum(self):
            self.rounds += 1
            if self.rounds == 3:
                Path(tempfile.gettempdir(), f"third-round-{self.context.rank}").touch()
                if self.context.rank == 1:
                    threading.Event().wait()
'''
environment = sessions.environment


@pytest.fixture
def shadows(environment):
    """The environment of commands, with the plugins above."""
    points = {name: f"odd_shadows:{name.title()}" for name in ("breaking", "stuck")}
    site = Path(environment["PYTHONPATH"].split(os.pathsep)[0])
    fakes.install(site, "odd-shadows", {"sync": points}, {"odd_shadows.py": PLUGINS})
    return environment


def start(folder: Path, environment, *arguments: str) -> subprocess.Popen[str]:
    base = [sys.executable, "-m", "fsbench", "run", "--workload", DENSE, "--out", str(folder)]
    return subprocess.Popen([*base, *arguments], env=environment, stderr=subprocess.PIPE, text=True)


def end(session: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and standard error."""
    _, errors = session.communicate(timeout=40)
    return session.returncode, errors


def the_record(folder: Path) -> dict:
    (record,) = ResultSet.open(folder).records()
    return record


def nothing_is_left(environment) -> bool:
    return sessions.left(environment) == []


def test_what_breaks_in_one_background_is_recorded_with_its_rank_and_phase_and_not_as_a_lost_peer(tmp_path, shadows):
    # No launcher that stops the other rank before it can tell of its loss.
    session = start(tmp_path / "set", shadows, "--on", "bare", "--sync", "breaking", "--steps", "50")
    assert end(session)[0] == 1
    record = the_record(tmp_path / "set")
    assert record["status"] == "failed"
    assert record["reason"].startswith("rank 1, train ")
    assert "/50: ArithmeticError: the background broke (log: " in record["reason"]
    assert nothing_is_left(shadows)


@pytest.fixture
def stuck(tmp_path, shadows):
    """A session whose ranks train while their backgrounds are in the middle of a round; and the folder of its run."""
    session = start(tmp_path / "set", shadows, "--sync", "stuck:duty=1", "--steps", "1000000")
    rounds = lambda: list(Path(shadows["TMPDIR"]).glob("fsbench-*/third-round-*"))  # noqa: E731
    try:
        sessions.wait_until(lambda: len(rounds()) == 2)
        yield session, rounds()[0].parent
    finally:
        session.kill()
        session.wait()


def test_a_rank_that_is_stopped_while_a_round_is_on_ends_the_run_and_is_named(tmp_path, shadows, stuck):
    session, folder = stuck
    os.kill(read_beats(folder, 2)[0].pid, signal.SIGTERM)
    assert end(session)[0] == 1
    record = the_record(tmp_path / "set")
    assert record["status"] == "failed"
    assert record["reason"].startswith("rank 0, train ")
    assert "/1000000: ended by a SIGTERM that was not ours (log: " in record["reason"]
    assert nothing_is_left(shadows)


def test_a_sync_server_that_is_lost_ends_the_run_and_is_named(tmp_path, environment):
    session = start(tmp_path / "set", environment, "--sync", "shadow-easgd:duty=1,servers=2", "--steps", "1000000")
    try:
        sessions.wait_until(lambda: any(rank.done > 20 for rank, *_ in under_way(environment)))
        ((*_, server, _),) = under_way(environment)
        os.kill(server.pid, signal.SIGKILL)
        assert end(session)[0] == 1
    finally:
        session.kill()
        session.wait()
    record = the_record(tmp_path / "set")
    assert record["status"] == "failed"
    assert record["reason"].startswith("sync-server 0, serve: ")
    assert nothing_is_left(environment)


def under_way(environment) -> list[list[Beat]]:
    """The last words of the two ranks and two servers of each run that has begun to train."""
    words = [read_beats(folder, 4) for folder in Path(environment["TMPDIR"]).glob("fsbench-*")]
    return [of_run for of_run in words if None not in of_run and of_run[0].phase == "train"]


def test_a_session_that_is_stopped_while_a_round_is_on_ends_every_process_and_records_nothing_of_the_run(
    tmp_path, shadows, stuck
):
    session, _ = stuck
    session.terminate()
    exit_code, errors = end(session)
    assert exit_code == 130
    assert f"continue with --resume --out {tmp_path / 'set'}" in errors
    assert "fsbench: interrupted" in errors
    assert "Traceback" not in errors
    assert ResultSet.open(tmp_path / "set").records() == []
    assert nothing_is_left(shadows)
