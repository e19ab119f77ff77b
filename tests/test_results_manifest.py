"""Provenance: what is recorded, and what must not be."""

from __future__ import annotations

import json
import platform
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsbench.matrix import Settings, interleave
from fsbench.plugins import find_plugin
from fsbench.results import manifest
from fsbench.results.manifest import environment, make_manifest, without_path
from tests.fakes import cell

SETTINGS = Settings(repeats=2, steps=5, seed=3)
RUNS = interleave([cell()], SETTINGS)


def make(command: tuple[str, ...] = ("run",)) -> dict:
    naive = find_plugin("sharding", "naive")
    return make_manifest(
        command=command,
        settings=SETTINGS,
        cells=[cell()],
        runs=RUNS,
        plugins=[naive, naive],
        options={"workloads": {"ctr": {"batch": 8, "file": "/data/clicks", "cap": None}}},
        data={"ml-100k": {"data_sha256": "c0ffee"}},
    )


def test_a_manifest_tells_what_ran_on_what():
    made = make()
    assert made["versions"]["python"] == platform.python_version()
    assert made["plugins"] == [
        {"kind": "sharding", "name": "naive", "distribution": "fsbench", "version": made["versions"]["fsbench"]}
    ]
    limits = {"time_limit_s": 600, "stall_limit_s": 300}
    assert made["settings"] == {"repeats": 2, "steps": 5, "workers": 1, "seed": 3, **limits}
    assert made["seeds"] == [3]
    assert made["runs"] == [run.run_id for run in RUNS]
    assert made["options"] == {"workloads": {"ctr": {"batch": 8, "file": "<path>", "cap": None}}}
    assert made["data"] == {"ml-100k": {"data_sha256": "c0ffee"}}
    assert made["cpu"]["cores"] >= 1


def test_what_cannot_be_found_is_null_with_a_reason():
    made = make()
    nulls = {key for key in ("git", "cpu", "gpus", "nccl", "topology") if made[key] is None}
    assert nulls == set(made["missing"])
    assert all(made["missing"].values())


def test_a_manifest_is_json_and_names_neither_host_nor_place():
    text = json.dumps(make(("run", "--out", "/home/me/out", "--data-dir=/data/ml")), allow_nan=False)
    assert socket.gethostname() not in text
    assert str(Path(manifest.__file__).parents[2]) not in text
    assert "/home/me" not in text
    assert "/data" not in text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/me/out", "<path>"),
        ("~/out", "<path>"),
        ("C:\\out", "<path>"),
        ("--out=/tmp/x", "--out=<path>"),
        ("ctr:file=/data/x", "ctr:file=<path>"),
        ("results/x", "results/x"),
        ("shadow-ma:alpha=0.5,write_back=delta", "shadow-ma:alpha=0.5,write_back=delta"),
        ("https", "https"),
    ],
)
def test_absolute_paths_are_taken_out_of_texts(text: str, clean: str):
    assert without_path(text) == clean


def test_only_variables_that_change_training_are_recorded():
    variables = {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_ALGO": "Ring",
        "NCCL_TOPO_FILE": "/etc/topo.xml",
        "NCCL_COMM_ID": "node7:1234",
        "NCCL_HOSTID": "node7",
        "FSBENCH_API_KEY": "hush",
        "TORCH_HUB_TOKEN": "hush",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "FSBENCH_DEBUG": "1",
        "FSBENCH_DATA": "/data",
        "HOSTNAME": "node7",
        "API_TOKEN": "hush",
        "MY_OMP_NUM_THREADS": "9",
    }
    assert environment(variables) == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "FSBENCH_DEBUG": "1",
        "NCCL_ALGO": "Ring",
        "NCCL_TOPO_FILE": "<path>",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


@settings(max_examples=40)
@given(st.dictionaries(st.text(), st.text()))
def test_of_an_environment_of_any_other_names_nothing_is_recorded(variables: dict[str, str]):
    prefixes = ("NCCL_", "TORCH_", "FSBENCH_")
    names = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES"}
    assert all(name in names or name.startswith(prefixes) for name in environment(variables))
    assert environment({f"MY_{name}": value for name, value in variables.items()}) == {}


def test_what_runs_is_recorded_with_nothing_of_the_environment_beyond_the_list(monkeypatch):
    monkeypatch.setenv("API_TOKEN", "hush-hush")
    monkeypatch.setenv("FSBENCH_API_KEY", "hush-hush")
    assert "hush-hush" not in json.dumps(make())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git repository with one committed `package/__init__.py`."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "start")):
        subprocess.run(("git", *arguments), cwd=tmp_path, check=True)
    return package


def test_a_checkout_has_a_commit_and_is_dirty_once_it_is_edited(checkout: Path):
    (clean, _), _ = manifest._git(checkout), (checkout / "__init__.py").write_text("x = 1\n")
    (edited, _) = manifest._git(checkout)
    assert len(clean["commit"]) == 40
    assert (clean["dirty"], edited["dirty"]) == (False, True)


def test_a_package_installed_inside_someones_repository_has_no_commit(checkout: Path):
    installed = checkout / "site-packages" / "fsbench"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert manifest._git(installed) == (None, "fsbench does not run from a git checkout")
