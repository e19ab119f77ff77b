"""`fsbench data`: what a workload's data is, and how it gets here."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.fakes import ACME, Outcome, install, install_acme, run_command


@pytest.fixture
def fsbench(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install_acme(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return partial(run_command, capsys)


def test_info_prints_the_fingerprint(fsbench):
    outcome = fsbench("data", "info", "toy")
    assert json.loads(outcome.out) == {"data_sha256": "c0ffee"}


def test_fetch_of_a_generated_workload_has_nothing_to_do(fsbench):
    assert fsbench("data", "fetch", "toy") == Outcome(0, "toy: generated, nothing to fetch\n", "")


def test_fetch_asks_the_workload_and_prints_what_it_says(fsbench, tmp_path: Path, monkeypatch):
    source = (
        ACME
        + """
    class Far(Toy):
        def fetch(self, data_dir):
            return f"put into {data_dir}"
    """
    )
    monkeypatch.delitem(sys.modules, "far_plugins", raising=False)
    install(tmp_path, "far", {"workloads": {"far": "far_plugins:Far"}}, {"far_plugins.py": source})
    assert fsbench("data", "fetch", "far", "--data-dir", "there").out == "far: put into there\n"


@pytest.mark.parametrize("verb", ["fetch", "info"])
def test_an_unknown_workload_is_refused_with_the_nearest(fsbench, verb: str):
    outcome = fsbench("data", verb, "ml-10k")
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert outcome.err.startswith("fsbench: error: unknown workload 'ml-10k'; did you mean ml-100k")
