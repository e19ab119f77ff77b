"""`fsbench list`: what is installed, read without importing it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import fsbench as package
from fsbench import probe
from tests.fakes import Outcome, install, run_command


@pytest.fixture
def fsbench(capsys: pytest.CaptureFixture[str]):
    return partial(run_command, capsys)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def rows(text: str) -> list[list[str]]:
    """The cells of each line but the heading; two spaces or more part them."""
    return [[part.strip() for part in line.split("  ") if part.strip()] for line in text.splitlines()[1:]]


def test_every_axis_is_listed_in_the_order_of_a_step_then_workloads_and_clusters(fsbench):
    outcome = fsbench("list")
    axes = list(dict.fromkeys(row[0] for row in rows(outcome.out)))
    assert axes == ["sharding", "embedding", "collectives", "sync", "workloads", "clusters"]
    assert (outcome.exit_code, outcome.err) == (0, "")


def test_a_plugin_is_shown_with_summary_and_origin_even_if_it_cannot_be_imported(fsbench, site: Path):
    source = 'import nowhere_found\n\n\nclass Mine:\n    """Does it all."""\n'
    install(site, "third-party", {"sync": {"mine": "listed_only:Mine"}}, {"listed_only.py": source}, "2.1")
    assert ["sync", "mine", "Does it all.", "third-party 2.1"] in rows(fsbench("list").out)


def test_what_would_steer_a_terminal_is_shown_as_its_escape(fsbench, site: Path):
    source = 'class Mine:\n    "Shiny \x1b]0;title\x07"\n'
    install(site, "third-party", {"sync": {"mine": "steering:Mine"}}, {"steering.py": source})
    assert fsbench("list", "sync").out.replace("\n", "").isprintable()


def test_one_axis_can_be_asked_for(fsbench):
    assert {row[0] for row in rows(fsbench("list", "sharding").out)} == {"sharding"}


def test_an_unknown_axis_is_refused_with_the_nearest(fsbench):
    assert fsbench("list", "shardin") == Outcome(
        2,
        "",
        "fsbench: error: unknown axis 'shardin'; did you mean sharding?"
        " valid: clusters, collectives, embedding, sharding, sync, workloads\n",
    )


def test_check_tells_the_sound_from_the_broken_and_exits_1(fsbench, site: Path):
    plugins = {name: f"{name}_module:Mine" for name in ("absent", "crashing", "twisted")}
    modules = {
        "crashing_module.py": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "twisted_module.py": "class Mine: pass",
    }
    install(site, "third-party", {"sharding": plugins}, modules)
    outcome = fsbench("list", "sharding", "--check")
    checks = {row[1]: row[-1] for row in rows(outcome.out)}
    assert outcome.exit_code == 1
    assert checks["naive"] == "ok"
    assert checks["absent"].endswith("ModuleNotFoundError: No module named 'absent_module'")
    assert checks["crashing"] == (
        "error: sharding strategy crashing (third-party 1.0): importing it ended with SIGKILL"
    )
    assert checks["twisted"].endswith("is not a subclass of fsbench.axes.Sharding")


def test_check_gives_up_on_a_plugin_that_never_finishes_importing(fsbench, site: Path, monkeypatch):
    monkeypatch.setattr(probe, "LIMIT_S", 1)
    endless = "import threading\nthreading.Event().wait()"
    install(site, "third-party", {"sync": {"mine": "endless:M"}}, {"endless.py": endless})
    outcome = fsbench("list", "sync", "--check")
    fault = "error: sync strategy mine (third-party 1.0): not imported after 1 s"
    assert ["third-party 1.0", fault] in [row[-2:] for row in rows(outcome.out)]


def test_check_shows_the_error_of_a_plugin_that_prints_leaves_or_cannot_be_asked_for(fsbench, site: Path):
    modules = {
        "chatty.py": "import atexit\nprint('a  b')\natexit.register(print, 'bye')\nimport nowhere_found",
        "leaving.py": "import os; os._exit(0)",
    }
    names = {"chatty": "chatty:M", "leaving": "leaving:M", "all": "chatty:M", "a:b": "chatty:M"}
    install(site, "third-party", {"sync": names}, modules)
    install(site, "another", {"sync": {"leaving": "x:Y"}})
    outcome = fsbench("list", "sync", "--check")
    checks = {(row[1], row[-2]): row[-1] for row in rows(outcome.out)}
    assert outcome.exit_code == 1
    assert checks["allreduce", f"fsbench {package.__version__}"] == "ok"
    assert checks["chatty", "third-party 1.0"].endswith("No module named 'nowhere_found'")
    assert "'all' means every plugin on the command line" in checks["all", "third-party 1.0"]
    assert "a name has letters, digits" in checks["a:b", "third-party 1.0"]
    clash = checks["leaving", "third-party 1.0"]
    assert clash == checks["leaving", "another 1.0"]
    assert "is offered by another 1.0 (x:Y) and third-party 1.0 (leaving:M)" in clash


def test_check_does_not_take_an_early_exit_for_a_good_one(fsbench, site: Path):
    install(
        site, "third-party", {"sync": {"leaving": "leaves_at_once:M"}}, {"leaves_at_once.py": "import os; os._exit(0)"}
    )
    outcome = fsbench("list", "sync", "--check")
    assert "leaving (third-party 1.0): importing it ended the process, exit code 0" in outcome.out
    assert outcome.exit_code == 1


def test_check_of_sound_plugins_exits_0(fsbench):
    assert fsbench("list", "clusters", "--check").exit_code == 0
