"""Parameter groups as a user writes them: text, tables of matrix files, the command line, result tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench import __version__
from fsbench.cli.matrix_file import read_matrix
from fsbench.groups import groups_text, parse_groups, spec_of_table
from fsbench.matrix import Cell
from fsbench.options import Spec
from tests.fakes import FakeSession, command_with_acme, install

HALVES = "grouped:groups=body.*=shadow-ma:alpha=0.5&duty=1;*=allreduce"
OTHERWISE = "grouped:groups=body.*=shadow-ma:duty=1&alpha=0.5;*=allreduce"
TABLE = '{ "body.*" = "shadow-ma:duty=1,alpha=0.5", "*" = "allreduce" }'
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,6}", fullmatch=True)
PRINTABLE = st.characters(min_codepoint=32, max_codepoint=0x17F, categories=("L", "N", "P", "S"))
VALUES = st.text(PRINTABLE.filter(lambda char: char not in ",;&"), max_size=8)
PATTERNS = st.text(PRINTABLE.filter(lambda char: char not in ",;="), min_size=1, max_size=8)
SPECS = st.builds(Spec, NAMES, st.dictionaries(NAMES, VALUES, max_size=3))


fsbench = command_with_acme


# Text.


@given(groups=st.dictionaries(PATTERNS, SPECS, min_size=1, max_size=4))
def test_groups_keep_their_order_and_their_options_as_text_in_a_spec(groups: dict[str, Spec]):
    text = groups_text(groups)
    spec = Spec.parse(str(Spec("grouped", {"groups": text})))
    assert spec.options["groups"] == text
    assert list(parse_groups(text).items()) == list(groups.items())
    assert groups_text(parse_groups(text)) == text


def test_the_order_in_which_options_were_given_makes_no_other_text():
    texts = {groups_text(parse_groups(f"*=shadow-ma:{options}")) for options in ("alpha=1&duty=1", "duty=1&alpha=1")}
    assert texts == {"*=shadow-ma:alpha=1&duty=1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not PATTERN=STRATEGY; expected groups such as blocks.*=shadow-ma;*=allreduce"),
        ("allreduce", "'allreduce' is not PATTERN=STRATEGY"),
        ("=allreduce", "'=allreduce' is not PATTERN=STRATEGY"),
        ("*=allreduce;", "'' is not PATTERN=STRATEGY"),
        ("a=none;a=allreduce", "pattern 'a' is given twice"),
        ("a=", "group 'a': '' is not NAME or NAME:KEY=VALUE"),
        ("a=shadow-ma:alpha", "group 'a': 'shadow-ma:alpha': 'alpha' is not KEY=VALUE"),
    ],
)
def test_what_is_no_group_is_named(text: str, message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_groups(text)


@pytest.mark.parametrize("char", ",;=")
def test_a_pattern_that_could_not_be_told_from_what_follows_is_refused(char: str):
    with pytest.raises(ValueError, match="expected one without ',', ';' and '='"):
        spec_of_table({f"a{char}": "none"})


@pytest.mark.parametrize("char", ";&")
def test_so_is_such_an_option(char: str):
    with pytest.raises(ValueError, match="has ';' or '&', which stand between groups and options"):
        spec_of_table({"a": f"none:x=b{char}"})


# Matrix files.


def syncs(path: Path) -> list[tuple[str, str | None]]:
    """What a file asks for, and where."""
    return [(one.text, one.where) for one in read_matrix(path)["sync"]]


def test_in_a_matrix_file_a_table_is_a_strategy_among_others_and_its_line_is_known(tmp_path):
    path = tmp_path / "m.toml"
    path.write_text(f'sync = [\n  "allreduce",\n  {TABLE},\n  "none",\n]')
    assert syncs(path) == [("allreduce", f"{path}:2"), (HALVES, f"{path}:3"), ("none", f"{path}:4")]


@pytest.mark.parametrize(
    "content", [f"sync = {TABLE}", '[sync]\n"body.*" = "shadow-ma:duty=1,alpha=0.5"\n"*" = "allreduce"']
)
def test_a_table_may_stand_alone(tmp_path, content: str):
    (tmp_path / "m.toml").write_text(content)
    assert [text for text, _ in syncs(tmp_path / "m.toml")] == [HALVES]


OF_MA = f"sync strategy shadow-ma (fsbench {__version__})"
REFUSED = f"sync strategy grouped (fsbench {__version__}): group"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sync = ['none',\n {}]", 'm.toml:1: an empty table has no groups; expected some such as { "blocks.*" = '),
        ("sync = [{'*' = 3}]", 'm.toml:1: sync is {"*": 3}, expected patterns and strategies in quotes, such as {'),
        ("[sync]\nbody.x = 'none'", 'm.toml:1: sync is {"body": {"x": "none"}}, expected patterns and strategies in'),
        ("[sync]\n'a;b' = 'none'", "m.toml:1: pattern 'a;b': expected one without"),
        (
            "sync = [\n 'none',\n {'*' = 'shadow-mb'}]",
            f"m.toml:3: {REFUSED} '*': unknown sync strategy 'shadow-mb'; did you mean shadow-ma",
        ),
        (
            "sync = {'*' = 'shadow-ma:alfa=1'}",
            f"m.toml:1: {REFUSED} '*': {OF_MA} has no option 'alfa'; did you mean",
        ),
        (
            "sync = {'*' = 'shadow-ma:alpha=0'}",
            f"m.toml:1: {REFUSED} '*': {OF_MA}: alpha is 0.0, expected more than 0",
        ),
        ("sync = {'*' = 'grouped'}", f"m.toml:1: {REFUSED} '*': grouped in a group; list its groups beside this one"),
        (
            "sync = [{a = 'shadow-ma:alpha=1,duty=1'},\n {a = 'shadow-ma:duty=1,alpha=1'}]",
            "m.toml:1: sync has grouped:groups=a=shadow-ma:alpha=1&duty=1 twice",
        ),
        (
            "sync = [\n 'grouped:groups=a=shadow-ma:alpha=1&duty=1',\n 'grouped:groups=a=shadow-ma:duty=1&alpha=1']",
            "m.toml:3: sync has grouped:groups=a=shadow-ma:alpha=1&duty=1 twice",
        ),
        ("sharding = [{'*' = 'naive'}]", 'm.toml:1: sharding is [{"*": "naive"}], expected a list of names such as'),
    ],
)
def test_what_is_wrong_with_a_table_is_told_in_a_line(fsbench, content: str, message: str):
    Path("m.toml").write_text(content)
    outcome = fsbench("run", "--matrix", "m.toml", "--dry-run")
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"fsbench: error: {message}")
    assert outcome.err.count("\n") == 1


# The command line.


@pytest.mark.parametrize(
    "arguments",
    [
        ("--sync", HALVES),
        ("--sync", OTHERWISE),
        ("--set", f"sync={TABLE}"),
        ("--set", f"sync=[{TABLE}]"),
        ("--matrix", "m.toml"),
    ],
)
def test_groups_are_named_in_any_way_that_a_strategy_is(fsbench, arguments):
    Path("m.toml").write_text(f"sync = [{TABLE}]")
    outcome = fsbench("run", "--workload", "toy", *arguments, "--dry-run")
    assert outcome.exit_code == 0, outcome.err
    cells = [Cell(*line.split()[1:]) for line in outcome.out.split("\n\n")[1].splitlines()[2:]]
    assert [cell.sync for cell in cells] == [HALVES]


def test_a_dry_run_tells_what_all_groups_use_and_the_lanes_of_each(fsbench):
    outcome = fsbench(
        "run", "--workload", "toy", "--sync", "grouped:groups=a=shadow-ma;b=shadow-ma;*=allreduce", "--dry-run"
    )
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("sync ")]
    columns = [column.strip() for column in line.split("  ") if column.strip()]
    assert columns[2:] == ["collectives", "group0-averaging, group1-averaging, group2-dense", "0", "no", "runs"]


def test_an_axis_that_no_group_uses_is_ignored(fsbench):
    groups = "grouped:groups=a=none;*=shadow"
    outcome = fsbench("run", "--workload", "toy", "--embedding", "solo", "--sync", groups, "--dry-run")
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.split("\n\n")[1].splitlines()[2].split()[-2:] == ["-", groups]


def test_the_manifest_names_the_plugins_of_groups_too(fsbench, monkeypatch):
    monkeypatch.setattr("fsbench.cli.run.require_torch", lambda: None)
    monkeypatch.setattr("fsbench.launch.session.run_session", FakeSession())
    command = ("run", "--workload", "dense", "--sync", "grouped:groups=a=shadow;*=none", "--out", "out")
    assert fsbench(*command).exit_code == 0
    plugins = json.loads(Path("out/manifest.json").read_text())["plugins"]
    assert {"shadow", "none", "grouped"} <= {plugin["name"] for plugin in plugins}


def test_a_plugin_of_a_group_that_ends_whoever_imports_it_ends_nothing_here(fsbench, tmp_path):
    modules = {"lethal.py": "import os\nos._exit(3)\n"}
    install(tmp_path / "site", "lethal", {"sync": {"lethal": "lethal:Lethal"}}, modules)
    outcome = fsbench("run", "--workload", "toy", "--sync", "grouped:groups=a=lethal;*=none", "--dry-run")
    assert outcome.exit_code == 2
    assert "sync strategy lethal (lethal 1.0): importing it ended the process, exit code 3" in outcome.err


def test_a_set_with_groups_is_resumed_and_shown_by_a_short_name(fsbench, monkeypatch):
    session = FakeSession()
    monkeypatch.setattr("fsbench.cli.run.require_torch", lambda: None)
    monkeypatch.setattr("fsbench.launch.session.run_session", session)
    command = ("run", "--workload", "toy", "--sync", "allreduce", "--sync", HALVES, "--out", "out")
    assert fsbench(*command).exit_code == 0
    assert sorted(run.cell.sync for run in session.ran) == ["allreduce", HALVES]
    outcome = fsbench(*command, "--resume")
    assert len(session.ran) == 2
    assert f"sync grouped: {HALVES}" in outcome.out
    assert fsbench("show", "out", "--format", "markdown").exit_code == 0
    rows = [line for line in outcome.out.splitlines() if line.startswith("toy ") and " ok " in line]
    assert [{"allreduce", "grouped"} & set(row.split()) for row in rows] == [{"allreduce"}, {"grouped"}]
