"""A plugin is imported where it can hurt nobody: whatever it does, there is a verdict, and nothing of it is left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fsbench.plugins import find_plugin, find_plugins
from fsbench.probe import probe, probe_all
from tests import support
from tests.fakes import install

SOUND = '''
from fsbench.axes import Sharding

class Mine(Sharding):
    """Sound."""

    def assign(self, batch): ...
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`plugin(source)`: an installed sharding strategy whose module has that source."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def announce(source: str):
        install(tmp_path, "third-party", {"sharding": {"mine": "probed_module:Mine"}}, {"probed_module.py": source})
        return find_plugin("sharding", "mine")

    return announce


def test_a_sound_plugin_has_no_fault_and_is_not_imported_here(plugin):
    done = probe(plugin(SOUND))
    assert (done.fault, done.heavy, done.printed) == (None, (), "")
    assert "probed_module" not in sys.modules


def test_threads_that_the_module_starts_are_named(plugin):
    busy = "import threading\nthreading.Thread(target=threading.Event().wait, name='busy').start()\n"
    assert probe(plugin(busy + SOUND)).threads == ("busy",)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import nowhere_found", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_found'"),
        ("raise SystemExit(0)", "cannot be loaded: SystemExit: 0"),
        ("import os; os._exit(0)", "importing it ended the process, exit code 0"),
        ("import os; os._exit(3)", "importing it ended the process, exit code 3"),
        ("import ctypes; ctypes.string_at(0)", "importing it ended with SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "importing it ended with SIGKILL"),
        ("import sys; sys.stderr.write('hello'); Mine = 3", "probed_module:Mine is not a subclass of fsbench.axes.S"),
        ("import sys; sys.stdout = None; import nowhere_found", "No module named 'nowhere_found'"),
        ("import atexit; atexit.register(print, 'bye'); import nowhere_found", "No module named 'nowhere_found'"),
    ],
)
def test_a_broken_plugin_is_told_with_its_distribution_and_version(plugin, source: str, fault: str):
    found = probe(plugin(source)).fault
    assert found.startswith("sharding strategy mine (third-party 1.0)")
    assert fault in found


def test_a_plugin_that_never_finishes_importing_is_given_up_at_the_limit(plugin):
    endless = plugin("import threading\nthreading.Event().wait()")
    assert probe(endless, limit_s=1).fault == ("sharding strategy mine (third-party 1.0): not imported after 1 s")


def test_threads_and_processes_that_the_import_started_hold_nothing_up(plugin, tmp_path: Path):
    started = f"""
import subprocess, threading
child = subprocess.Popen(["sleep", "86396"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
threading.Thread(target=threading.Event().wait).start()
"""
    assert probe(plugin(SOUND + started)).fault is None
    assert support.is_gone(int((tmp_path / "pid").read_text()))


def test_what_it_prints_is_kept_apart(plugin):
    done = probe(plugin("print('hello')\n" + SOUND))
    assert (done.fault, done.printed) == (None, "hello\n")


def test_a_heavy_import_is_noticed(plugin, tmp_path: Path):
    (tmp_path / "torch.py").write_text("")
    assert probe(plugin("import torch\n" + SOUND)).heavy == ("torch",)


def test_two_plugins_of_one_name_are_a_fault_that_names_both(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "first", {"sync": {"mine": "a:A"}})
    install(tmp_path, "second", {"sync": {"mine": "b:B"}}, version="2.0")
    mine = [plugin for plugin in find_plugins("sync") if plugin.name == "mine"]
    faults = {done.fault for done in probe_all(mine).values()}
    assert faults == {
        "sync strategy 'mine' is offered by first 1.0 (a:A) and second 2.0 (b:B); uninstall or rename one of them"
    }
