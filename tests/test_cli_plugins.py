"""`fsbench plugins check`: one line a check, and exit codes that a script can go by."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from fsbench.testing import verdicts
from tests.fakes import install, install_acme, run_command
from tests.sessions import wait_until

pytest.importorskip("torch")

from fsbench.testing import suite


@pytest.fixture
def fsbench(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install_acme(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return partial(run_command, capsys)


def passes(case) -> None:
    """Nothing can be wrong."""


def fails(case) -> None:
    """Something is always wrong."""
    raise verdicts.Fault("it is wrong")


def skips(case) -> None:
    """Nothing is claimed."""
    raise verdicts.Skip("it is not claimed")


def explodes(case) -> None:
    """Nothing can be asked."""
    raise ZeroDivisionError("no answer")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch):
    """`checks(...)`: all checks there are from now on."""
    return lambda *checks: monkeypatch.setattr(suite, "checks_of", lambda axis: checks)


def test_each_check_is_a_line_and_one_that_fails_makes_exit_code_1(fsbench, checks):
    checks(passes, fails, skips, explodes)
    outcome = fsbench("plugins", "check", "shadow:alpha=0.25")
    assert (outcome.exit_code, outcome.err) == (1, "")
    *lines, broken, summary = outcome.out.splitlines()
    assert lines == [
        "sync strategy shadow (acme 1.0):",
        "PASS  passes: Nothing can be wrong.",
        "FAIL  fails: it is wrong",
        "SKIP  skips: it is not claimed",
    ]
    assert broken.startswith("FAIL  explodes: ZeroDivisionError: no answer in explodes (test_cli_plugins.py:")
    assert summary == "1 passed, 2 failed, 1 skipped"


def test_a_check_that_is_skipped_is_no_failure(fsbench, checks):
    checks(passes, skips)
    assert fsbench("plugins", "check", "shadow").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("shadw", "unknown strategy 'shadw'; did you mean shadow"),
        ("shadow shardin", "no checks for 'shardin': they are of strategies; did you mean sharding?"),
        ("shadow sharding", "unknown sharding strategy 'shadow'"),
        ("toy", "workload toy (acme 1.0) is no strategy; checks are of sharding strategy, "),
        ("shadow:alfa=1", "sync strategy shadow (acme 1.0) has no option 'alfa'; did you mean alpha?"),
        ("shadow:alpha=much", "sync strategy shadow (acme 1.0): option alpha=much: expected a number"),
        ("shadow:alpha", "'alpha' is not KEY=VALUE"),
        ("", "Missing argument 'NAME'"),
    ],
)
def test_bad_input_is_a_line_and_exit_code_2(fsbench, checks, arguments: str, message: str):
    checks(passes)
    outcome = fsbench("plugins", "check", *arguments.split())
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"fsbench: error: {message}") or message in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_name_that_several_axes_have_needs_the_axis(fsbench, checks, tmp_path: Path):
    checks(passes)
    install(tmp_path, "other", {"embedding": {"shadow": "acme_plugins:Solo"}})
    outcome = fsbench("plugins", "check", "shadow")
    assert outcome.exit_code == 2
    assert outcome.err == (
        "fsbench: error: 'shadow' is embedding strategy shadow (other 1.0) and sync strategy shadow (acme 1.0);"
        " say which is meant: embedding or sync\n"
    )
    assert fsbench("plugins", "check", "shadow", "sync").exit_code == 0


def test_a_strategy_that_does_not_import_fails_that_check_and_skips_the_others(fsbench, tmp_path: Path):
    install(tmp_path, "third-party", {"sync": {"mine": "nowhere_found:Mine"}})
    outcome = fsbench("plugins", "check", "mine")
    lines = outcome.out.splitlines()
    assert outcome.exit_code == 1
    assert lines[1].startswith("FAIL  imports: sync strategy mine (third-party 1.0) cannot be loaded: ModuleNotFound")
    assert all(line.startswith("SKIP  ") and line.endswith("see `imports`") for line in lines[2:-1])


def test_a_strategy_that_cannot_run_here_is_skipped_with_its_reason(fsbench):
    outcome = fsbench("plugins", "check", "quantum")
    *checks, rest, _ = outcome.out.splitlines()[1:]
    assert rest == "SKIP  all others: it cannot run here: needs a quantum computer, found none"
    assert {line.partition("  ")[0] for line in checks} == {"PASS"}
    assert outcome.exit_code == 1


@pytest.mark.parametrize("command", [("plugins", "check"), ("run", "--dry-run", "--workload", "long-cpu", "--sync")])
def test_a_thread_that_a_module_starts_keeps_no_command_from_ending(tmp_path: Path, command):
    source = """
import threading
from fsbench_strategies.sync.allreduce import AllReduce
threading.Thread(target=threading.Event().wait, name="busy").start()
class Mine(AllReduce): "Busy."
    """
    install(tmp_path, "third-party", {"sync": {"busy": "busy_module:Mine"}}, {"busy_module.py": source})
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "fsbench", *command, "busy"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == (1 if "check" in command else 0)
    assert "threads of a plugin still running: busy" in done.stderr
    assert ("its module starts threads: busy" in done.stdout) == ("check" in command)


@pytest.mark.distributed
@pytest.mark.slow
def test_a_check_that_is_killed_leaves_nothing(tmp_path: Path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "fsbench", "plugins", "check", "naive"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout
        for line in started.stdout:
            if "partition" in line:
                break
        started.kill()
    wait_until(lambda: list(tmp_path.iterdir()) == [], limit_s=30)


@pytest.mark.distributed
@pytest.mark.slow
def test_the_command_checks_a_sound_strategy_in_processes_of_its_own():
    command = [sys.executable, "-m", "fsbench", "plugins", "check", "naive"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith(" passed, 0 failed, 1 skipped")
