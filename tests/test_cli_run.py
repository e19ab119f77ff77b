"""`fsbench run`: what is refused before anything starts, what is run, what is left out, and the exit code."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

import fsbench as package
from fsbench import probe
from fsbench.matrix import Cell
from fsbench.results.store import ResultSet, held
from tests.fakes import FakeSession, cell, install, install_acme, run_command

TOY = cell(workload="toy")
COST_AWARE = cell(workload="toy", sharding="cost-aware")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with the plugins of `install_acme`."""
    install_acme(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site"


@pytest.fixture
def fsbench(capsys: pytest.CaptureFixture[str], site: Path):
    return partial(run_command, capsys)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch):
    """`session(failing)`: from then on `fsbench run` records runs without running anything."""
    monkeypatch.setattr(importlib.util, "find_spec", _finds_torch(importlib.util.find_spec))

    def start(*failing: Cell) -> FakeSession:
        fake = FakeSession(failing)
        monkeypatch.setattr("fsbench.launch.session.run_session", fake)
        return fake

    return start


def _finds_torch(find_spec):
    return lambda name, *rest: find_spec("sys" if name == "torch" else name, *rest)


def statuses(folder: Path) -> list[tuple[str, str]]:
    return [(record["cell"]["sharding"], record["status"]) for record in ResultSet.open(folder).records()]


def dry_cells(out: str) -> list[list[str]]:
    return [line.split()[1:] for line in out.split("\n\n")[1].splitlines()[2:]]


DRY_RUN = """\
cells: 2, repeats: 3, runs: 6

  cell  workload    cluster        sharding    embedding    collectives    sync
------  ----------  -------------  ----------  -----------  -------------  ---------
     1  ml-100k     local:ranks=2  naive       plain        backend        allreduce
     2  ml-100k     local:ranks=2  cost-aware  plain        backend        allreduce

cluster        what it is                          here
-------------  ----------------------------------  ------
local:ranks=2  2 local ranks, 1 torch thread each  runs

axis         strategy    uses         lanes     lookahead    exact    here
-----------  ----------  -----------  --------  -----------  -------  ------
sharding     naive       nothing      none      1            yes      runs
sharding     cost-aware  nothing      none      1            yes      runs
embedding    plain       collectives  exchange  0            yes      runs
collectives  backend     nothing      none      0            yes      runs
sync         allreduce   collectives  dense     0            yes      runs

Every strategy runs with every other, and no axis is ignored.
"""


def test_a_dry_run_prints_the_cells_and_what_their_strategies_state_of_themselves(fsbench):
    outcome = fsbench("run", "--sharding", "naive", "--sharding", "cost-aware", "--repeats", "3", "--dry-run")
    assert (outcome.exit_code, outcome.out, outcome.err) == (0, DRY_RUN, "")


def test_all_means_every_installed_one_with_the_default_first(fsbench):
    out = fsbench("run", "--collectives", "all", "--dry-run").out
    assert [row[4] for row in dry_cells(out)] == ["backend", "copy-engine", "host-staged"]
    out = fsbench("run", "--sharding", "all", "--dry-run").out
    shardings = [row[2] for row in dry_cells(out)]
    assert shardings == ["naive", *sorted(shardings[1:])]
    assert {"cost-aware", "quantum"} < set(shardings)


def test_two_spellings_of_one_strategy_are_one_cell(fsbench):
    given = ["shadow", "shadow:alpha=0.50", "shadow:alpha=0.5", "shadow:alpha=0.7"]
    out = fsbench("run", *(word for text in given for word in ("--sync", text)), "--dry-run").out
    assert [row[5] for row in dry_cells(out)] == ["shadow", "shadow:alpha=0.7"]


def test_an_axis_that_no_strategy_of_the_cell_uses_is_shown_as_a_dash(fsbench):
    out = fsbench("run", "--embedding", "solo", "--sync", "shadow", "--dry-run").out
    assert dry_cells(out) == [["ml-100k", "local:ranks=2", "naive", "solo", "-", "shadow"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--sharding cost-awre", "unknown sharding strategy 'cost-awre'; did you mean cost-aware?"),
        ("--sync shadow:alfa=1", "sync strategy shadow (acme 1.0) has no option 'alfa'; did you mean alpha?"),
        ("--sync shadow:alpha=much", "sync strategy shadow (acme 1.0): option alpha=much: expected a number"),
        ("--sync shadow:alpha", "'alpha' is not KEY=VALUE"),
        ("--workload ml-1m", "unknown workload 'ml-1m'; did you mean"),
        ("--on lokal", "unknown cluster 'lokal'; did you mean local?"),
        ("--on local:ranks=0", f"cluster local (fsbench {package.__version__}): ranks=0: at least 1"),
        ("--set repeets=3", "--set: unknown key 'repeets'; did you mean repeats or steps? valid: "),
        ("--set repeats", "--set 'repeats' is not KEY=VALUE"),
        ("--set steps=few", "--set: option steps=few: expected a whole number"),
        ("--set seed=nan", "--set: option seed=nan: expected a whole number"),
        ("--steps 0", "--steps: steps=0: expected 1 or more"),
        ("--repeats -2", "--repeats: repeats=-2: expected 1 or more"),
        ("--set time_limit_s=0", "--set: time_limit_s=0: expected 1 or more"),
        ("--steps 3 --set steps=4", "steps is given twice: 4 and 3"),
        ("--sync shadow --set sync=allreduce", "sync is given twice: allreduce and shadow"),
        (
            "--set sync=shadow:alfa=1",
            "--set: sync strategy shadow (acme 1.0) has no option 'alfa'; did you mean alpha?",
        ),
        ("--set sync=allreduce,shadow", "--set: 'allreduce,shadow' is not NAME or NAME:KEY=VALUE,..."),
        ("--set sync=[allreduce]", '--set sync=[allreduce]: expected NAME or a TOML list: ["NAME", "NAME:KEY=VALUE"]'),
        ("--set sync=[]", "--set: sync is an empty list; leave it out to take allreduce"),
        ('--set sync=["shadow","shadow"]', "--set: sync has shadow twice"),
        ("--resume", "--resume continues the result set in --out DIR; name it"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_before_anything_starts(fsbench, session, arguments, message):
    fake = session()
    outcome = fsbench("run", *arguments.split())
    assert (outcome.exit_code, outcome.out, fake.ran) == (2, "", [])
    assert outcome.err.startswith("fsbench: error: ")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_broken_plugin_stops_only_the_runs_that_ask_for_it(fsbench, site: Path):
    install(site, "third-party", {"sharding": {"broken": "nowhere_found:X"}})
    assert fsbench("run", "--sharding", "naive", "--dry-run").exit_code == 0
    outcome = fsbench("run", "--sharding", "broken", "--dry-run")
    assert outcome.exit_code == 2
    assert "third-party 1.0" in outcome.err


def test_more_ranks_than_samples_is_refused_with_both_numbers(fsbench, session, tmp_path: Path):
    fake = session()
    outcome = fsbench("run", "--workload", "toy", "--on", "local:ranks=6", "--out", str(tmp_path / "out"))
    assert outcome.exit_code == 2
    assert outcome.err == (
        "fsbench: error: more ranks than samples: 6 ranks of 2 samples take 12 a step on local:ranks=6,"
        " and toy has 10: enough for 5 ranks\n"
    )
    assert fake.ran == []
    assert not (tmp_path / "out").exists()


def test_training_without_torch_tells_how_to_get_it(fsbench, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    outcome = fsbench("run", "--workload", "toy")
    assert outcome.exit_code == 2
    assert outcome.err.endswith("pip install 'fsbench[cpu]'\n")


def run_toy(fsbench, out: Path, *more: str):
    arguments = ("--workload", "toy", "--sharding", "naive", "--sharding", "cost-aware", "--out", str(out))
    return fsbench("run", *arguments, *more)


def test_a_run_ends_with_the_table_and_the_folder(fsbench, session, tmp_path: Path):
    session()
    outcome = run_toy(fsbench, tmp_path / "out")
    assert outcome.exit_code == 0
    assert outcome.out.startswith("2 cells, 2 runs, measured on CPU")
    assert outcome.out.endswith(f"\nresults: {tmp_path / 'out'}\n")


def test_a_run_leaves_its_provenance(fsbench, session, tmp_path: Path):
    session()
    run_toy(fsbench, tmp_path / "out", "--steps", "3")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["data"] == {"toy": {"data_sha256": "c0ffee"}}
    assert manifest["settings"]["steps"] == 3
    assert {"kind": "workloads", "name": "toy", "distribution": "acme", "version": "1.0"} in manifest["plugins"]
    assert manifest["command"][-4:] == ["--out", "<path>", "--steps", "3"]


def test_a_failed_run_is_exit_code_1_and_the_others_still_run(fsbench, session, tmp_path: Path):
    session(TOY)
    assert run_toy(fsbench, tmp_path / "out").exit_code == 1
    assert sorted(statuses(tmp_path / "out")) == [("cost-aware", "ok"), ("naive", "failed")]


def test_an_existing_result_set_is_not_written_over(fsbench, session, tmp_path: Path):
    session()
    run_toy(fsbench, tmp_path / "out")
    outcome = run_toy(fsbench, tmp_path / "out")
    assert outcome.exit_code == 2
    assert "already holds a result set; add --resume" in outcome.err


def test_a_place_that_cannot_be_written_is_refused(fsbench, session, tmp_path: Path):
    fake = session()
    (tmp_path / "file").write_text("")
    outcome = run_toy(fsbench, tmp_path / "file" / "out")
    assert (outcome.exit_code, fake.ran) == (2, [])
    assert outcome.err.startswith("fsbench: error: cannot write results to ")


def test_resuming_runs_only_what_is_not_ok(fsbench, session, tmp_path: Path):
    session(COST_AWARE)
    run_toy(fsbench, tmp_path / "out")
    again = session()
    outcome = run_toy(fsbench, tmp_path / "out", "--resume", "--repeats", "2")
    assert outcome.exit_code == 0
    assert {(run.cell, run.repeat) for run in again.ran} == {(COST_AWARE, 1), (TOY, 2), (COST_AWARE, 2)}
    assert {status for _, status in statuses(tmp_path / "out")} == {"ok"}


def test_resuming_with_other_steps_is_refused(fsbench, session, tmp_path: Path):
    session()
    run_toy(fsbench, tmp_path / "out", "--steps", "3")
    outcome = run_toy(fsbench, tmp_path / "out", "--resume", "--steps", "4")
    assert outcome.exit_code == 2
    assert "was run with 3 steps, not 4" in outcome.err


def test_resuming_on_other_data_is_refused(fsbench, session, tmp_path: Path):
    session()
    run_toy(fsbench, tmp_path / "out")
    path = tmp_path / "out" / "manifest.json"
    path.write_text(path.read_text().replace("c0ffee", "decaf"))
    outcome = run_toy(fsbench, tmp_path / "out", "--resume")
    assert outcome.exit_code == 2
    assert "was run on other data of toy" in outcome.err


def test_resuming_nothing_is_refused(fsbench, session, tmp_path: Path):
    session()
    outcome = run_toy(fsbench, tmp_path / "out", "--resume")
    assert outcome.exit_code == 2
    assert "is no result set" in outcome.err


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_a_set_that_another_process_writes_is_refused_and_left_as_it_is(fsbench, session, tmp_path: Path, resume):
    session(TOY)
    run_toy(fsbench, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    fake = session()
    # Another open file is to the kernel what another process is.
    with held(tmp_path / "out"):
        outcome = run_toy(fsbench, tmp_path / "out", *resume)
    assert (outcome.exit_code, outcome.out, fake.ran) == (2, "", [])
    assert outcome.err == (
        f"fsbench: error: {tmp_path / 'out'} is being written by process {os.getpid()};"
        " wait for it, end it, or name another --out\n"
    )
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_set_is_held_as_long_as_it_is_written_and_no_longer(fsbench, monkeypatch, session, tmp_path: Path):
    session()

    def try_to_hold(*_: object) -> None:
        with held(tmp_path / "out"):
            pass

    monkeypatch.setattr("fsbench.launch.session.run_session", try_to_hold)
    assert f"is being written by process {os.getpid()}" in run_toy(fsbench, tmp_path / "out").err
    try_to_hold()


def test_resuming_a_damaged_set_runs_what_cannot_be_read_and_keeps_its_bytes(fsbench, session, tmp_path: Path):
    session()
    run_toy(fsbench, tmp_path / "out", "--repeats", "2")
    path = tmp_path / "out" / "runs.jsonl"
    first, *rest, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"\xff" + first + b"".join(rest) + last[:50])
    again = session()
    outcome = run_toy(fsbench, tmp_path / "out", "--repeats", "2", "--resume")
    assert outcome.exit_code == 0
    assert [line.partition(": left out")[0] for line in outcome.err.splitlines()] == [
        f"fsbench: warning: {path}:4: a torn last line was moved to runs.jsonl.damaged",
        f"fsbench: warning: {path}:1",
    ]
    assert {run.run_id for run in again.ran} == {json.loads(line)["run_id"] for line in (first, last)}
    assert path.read_bytes().startswith(b"\xff" + first + b"".join(rest))
    assert Path(f"{path}.damaged").read_bytes() == last[:50] + b"\n"


def test_a_set_without_a_manifest_to_compare_with_is_not_resumed(fsbench, session, tmp_path: Path):
    session(TOY)
    run_toy(fsbench, tmp_path / "out")
    (tmp_path / "out" / "manifest.json").write_text("{")
    fake = session()
    outcome = run_toy(fsbench, tmp_path / "out", "--resume")
    assert (outcome.exit_code, fake.ran) == (2, [])
    assert "whether more runs would compare, nobody can tell; name another --out" in outcome.err


@pytest.mark.parametrize(("asked", "exit_code"), [("quantum", 1), ("all", 0)])
def test_what_cannot_run_here_is_recorded_and_fails_only_if_it_was_named(
    fsbench, session, tmp_path: Path, asked: str, exit_code: int
):
    fake = session()
    outcome = fsbench("run", "--workload", "toy", "--sharding", asked, "--out", str(tmp_path / "out"))
    assert outcome.exit_code == exit_code
    assert ("quantum", "unsupported") in statuses(tmp_path / "out")
    assert "quantum" not in {run.cell.sharding for run in fake.ran}
    assert "sharding strategy quantum (acme 1.0): needs a quantum computer, found none" in outcome.out


def test_a_named_axis_that_makes_no_difference_is_unsupported(fsbench, session, tmp_path: Path):
    fake = session()
    strategies = ("--embedding", "solo", "--sync", "shadow", "--collectives", "backend")
    outcome = fsbench("run", "--workload", "toy", *strategies, "--out", str(tmp_path / "out"))
    assert (outcome.exit_code, fake.ran) == (1, [])
    assert "no strategy of this cell uses collectives" in outcome.out


def test_an_interrupted_run_tells_how_to_go_on(fsbench, monkeypatch, session, tmp_path: Path):
    session()

    def interrupted(runs: Sequence, *_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("fsbench.launch.session.run_session", interrupted)
    outcome = run_toy(fsbench, tmp_path / "out")
    assert outcome.exit_code == 130
    assert f"continue with --resume --out {tmp_path / 'out'}" in outcome.err


ODD = """
    from fsbench.axes import Sharding
    from fsbench.launch.local import Local


    class Alone(Local):
        serves = False


    class Odd(Sharding):
        def assign(self, batch):
            return batch.source


    class Served(Odd):
        def roles(self):
            return {"sync-server": 2}


    class Unsure(Odd):
        def requirements(self):
            raise OSError("cannot probe")


    class Undressed(Odd):
        class Options:
            pass
"""


@pytest.fixture
def odd(tmp_path, monkeypatch):
    names = {name: f"odd_ones:{name.title()}" for name in ("served", "unsure", "undressed")}
    names["absent"] = "odd_ones_that_are_not_there:Absent"
    install(tmp_path, "odd-ones", {"sharding": names, "clusters": {"alone": "odd_ones:Alone"}}, {"odd_ones.py": ODD})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_ones", raising=False)


def test_a_strategy_that_needs_servers_is_unsupported_on_a_cluster_that_starts_none(odd, fsbench, session, tmp_path):
    session()
    cell = ("--workload", "long-cpu", "--sharding", "served", "--on", "alone")
    outcome = fsbench("run", *cell, "--out", str(tmp_path / "set"))
    assert outcome.exit_code == 1
    assert "needs server processes (2 sync-server), which cluster alone does not start" in outcome.out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unsure", "sharding strategy unsure (odd-ones 1.0) cannot say what it requires: OSError: cannot probe"),
        ("undressed", "has Options that are not a frozen dataclass"),
        ("absent", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_broken_plugin_asked_for_by_name_is_one_line(odd, fsbench, session, tmp_path, name, message):
    session()
    outcome = fsbench("run", "--workload", "long-cpu", "--sharding", name, "--out", str(tmp_path / "set"))
    assert outcome.exit_code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_all_leaves_broken_plugins_out_and_says_so(odd, fsbench):
    outcome = fsbench("run", "--workload", "long-cpu", "--sharding", "all", "--dry-run")
    assert outcome.exit_code == 0
    assert "served" in outcome.out
    assert "fsbench: warning: left out: sharding strategy absent (odd-ones 1.0)" in outcome.err


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import threading; threading.Event().wait()", "not imported after 2 s"),
        ("import os; os._exit(0)", "importing it ended the process, exit code 0"),
        ("import ctypes; ctypes.string_at(0)", "importing it ended with SIGSEGV"),
        ("print('{not json')", "cannot be loaded: AttributeError: module 'odd_import' has no attribute 'Mine'"),
    ],
)
class TestWhateverAPluginDoesOnImport:
    @pytest.fixture(autouse=True)
    def installed(self, site: Path, monkeypatch: pytest.MonkeyPatch, source: str):
        monkeypatch.setattr(probe, "LIMIT_S", 2)
        install(site, "odd-import", {"collectives": {"mine": "odd_import:Mine"}}, {"odd_import.py": source})

    def test_all_leaves_it_out_and_says_why(self, fsbench, why: str):
        outcome = fsbench("run", "--workload", "long-cpu", "--collectives", "all", "--dry-run")
        assert outcome.exit_code == 0
        assert [row[4] for row in dry_cells(outcome.out)] == ["backend", "copy-engine", "host-staged"]
        (warning,) = outcome.err.splitlines()
        assert warning.startswith("fsbench: warning: left out: collectives strategy mine (odd-import 1.0)")
        assert why in warning

    def test_asked_for_by_name_it_is_refused_in_a_line(self, fsbench, why: str):
        outcome = fsbench("run", "--workload", "long-cpu", "--collectives", "mine", "--dry-run")
        assert (outcome.exit_code, outcome.out) == (2, "")
        (error,) = outcome.err.splitlines()
        assert error.startswith("fsbench: error: collectives strategy mine (odd-import 1.0)")
        assert why in error

    def test_runs_that_do_not_ask_for_it_never_notice(self, fsbench, why: str):
        outcome = fsbench("run", "--workload", "long-cpu", "--dry-run")
        assert (outcome.exit_code, outcome.err) == (0, "")


@pytest.mark.parametrize("asked", ["naive", "all"])
def test_a_plugin_named_all_or_offered_twice_hurts_only_those_who_ask_for_it(fsbench, site, asked):
    install(site, "greedy", {"sharding": {"all": "acme_plugins:Quantum", "quantum": "acme_plugins:Quantum"}})
    outcome = fsbench("run", "--workload", "long-cpu", "--sharding", asked, "--dry-run")
    assert outcome.exit_code == 0
    expected = {"naive": [], "all": ["all (greedy 1.0) is refused: 'all' means every plugin", "is offered by acme 1.0"]}
    warnings = outcome.err.splitlines()
    assert len(warnings) == len(expected[asked])
    assert all(part in warning for part, warning in zip(expected[asked], warnings, strict=True))


@pytest.mark.parametrize("setting", [f"seed={2**63}", "steps=1000000001", "time_limit_s=99999999999999999999"])
def test_absurd_settings_are_refused_before_anything_starts(fsbench, setting):
    outcome = fsbench("run", "--workload", "long-cpu", "--set", setting)
    assert outcome.exit_code == 2
    assert outcome.err.startswith(f"fsbench: error: --set: {setting}: expected")
