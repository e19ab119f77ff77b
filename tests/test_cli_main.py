"""The command as a whole: help, version, and failures that fit one line."""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import click
import pytest

import fsbench as package
from fsbench.cli import main as command
from fsbench.errors import Unsupported, UserError
from tests.fakes import Outcome, run_command

DASH_M = (sys.executable, "-m", "fsbench")


@pytest.fixture
def fsbench(capsys: pytest.CaptureFixture[str]):
    return partial(run_command, capsys)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Makes `fsbench show` raise what it is given."""

    def install(error: BaseException) -> None:
        def fail() -> None:
            raise error

        monkeypatch.setattr(command.LazyGroup, "get_command", lambda *_: click.Command("show", callback=fail))

    return install


def test_alone_it_prints_its_help_with_every_command(fsbench):
    outcome = fsbench()
    assert outcome.exit_code == 0
    assert all(name in outcome.out for name in command.COMMANDS)


@pytest.mark.parametrize("name", command.COMMANDS)
def test_every_command_has_help(fsbench, name: str):
    outcome = fsbench(name, "--help")
    assert (outcome.exit_code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: fsbench {name}")


def test_version(fsbench):
    assert fsbench("--version") == Outcome(0, f"fsbench, version {package.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lst"], "unknown command 'lst'; did you mean list? valid: calibrate, compare, contention, data, list, "),
        (["--bogus"], "--bogus"),
        (["show"], "Missing argument 'RESULT'"),
        (["run", "--bogus"], "--bogus"),
        (["run", "--steps", "many"], "'many' is not a valid integer"),
        (["data", "ftch"], "ftch"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(fsbench, arguments: list[str], message: str):
    outcome = fsbench(*arguments)
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert outcome.err.startswith("fsbench: error: ")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "exit_code"), [(UserError("two\nlines  of it"), 2), (Unsupported("two\nlines of it"), 1)]
)
def test_a_failure_made_for_users_is_one_line_with_its_exit_code(fsbench, failing, error, exit_code: int):
    failing(error)
    assert fsbench("show") == Outcome(exit_code, "", "fsbench: error: two lines of it\n")


def test_a_bug_keeps_its_traceback(capsys, failing):
    failing(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        command.main(["show"])


def test_an_interrupt_is_exit_code_130(fsbench, failing):
    failing(KeyboardInterrupt())
    outcome = fsbench("show")
    assert (outcome.exit_code, outcome.err.strip()) == (130, "fsbench: interrupted")


def test_a_warning_is_one_line(fsbench, monkeypatch):
    def warn() -> None:
        warnings.warn("something\nodd", stacklevel=1)

    monkeypatch.setattr(command.LazyGroup, "get_command", lambda *_: click.Command("show", callback=warn))
    assert fsbench("show") == Outcome(0, "", "fsbench: warning: something odd\n")


@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["show", "nowhere"], ["plugins", "--help"]])
def test_what_only_reads_imports_neither_torch_nor_numpy(arguments: list[str]):
    code = """
import sys
from fsbench.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    print("loaded:", sorted({"torch", "numpy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path):
    process = subprocess.Popen([*DASH_M, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()
