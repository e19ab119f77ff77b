"""Stand-ins for what the command line works on: installed distributions, records of runs, a session that runs nothing.

Fake distributions are real metadata and modules on disk, found the way anyone's are.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fsbench.cli.main import main
from fsbench.matrix import Cell, RunSpec
from fsbench.results.schema import METRICS, make_record


def install(
    folder: Path,
    name: str,
    plugins: Mapping[str, Mapping[str, str]],
    modules: Mapping[str, str] | None = None,
    version: str = "1.0",
) -> None:
    """Puts a distribution into `folder`: its plugins by kind and name, its modules by file name."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = [
        "\n".join([f"[fsbench.{kind}]", *(f"{key} = {value}" for key, value in points.items())])
        for kind, points in plugins.items()
    ]
    (metadata / "entry_points.txt").write_text("\n\n".join(groups) + "\n")
    for file, source in (modules or {}).items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))


ACME = '''
    from dataclasses import dataclass

    import numpy as np

    from fsbench.axes import DenseSync, EmbeddingExchange, Sharding
    from fsbench.workload import Workload


    def keeping(contract):
        """The contract with every method filled in, none of which does anything."""
        return type(contract.__name__, (contract,), dict.fromkeys(contract.__abstractmethods__, lambda *_: None))


    class Solo(keeping(EmbeddingExchange)):
        """An embedding exchange that needs no collectives."""


    class Shadow(keeping(DenseSync)):
        """A sync that needs no collectives."""

        @dataclass(frozen=True)
        class Options:
            alpha: float = 0.5


    class Quantum(keeping(Sharding)):
        """A sharding for machines that do not exist."""

        def requirements(self):
            return "needs a quantum computer, found none"


    class Toy(keeping(Workload)):
        """Ten samples, two a rank."""

        samples_per_rank = 2
        samples_available = 10

        def fingerprint(self):
            return {"data_sha256": "c0ffee"}
'''


def install_acme(folder: Path) -> None:
    """A distribution of plugins that do nothing: see `ACME`."""
    plugins = {
        "sharding": {"quantum": "acme_plugins:Quantum"},
        "embedding": {"solo": "acme_plugins:Solo"},
        "sync": {"shadow": "acme_plugins:Shadow"},
        "workloads": {"toy": "acme_plugins:Toy"},
    }
    install(folder, "acme", plugins, {"acme_plugins.py": ACME})


def install_bare_ranks(folder: Path) -> None:
    """The cluster `bare`: local ranks without torch's launcher, which takes longer to start than they take to train."""
    install(folder, "bare-ranks", {"clusters": {"bare": "tests.toy:Bare"}})


class Outcome(NamedTuple):
    """How a command ended, and what it printed."""

    exit_code: int
    out: str
    err: str


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    """`fsbench ARGUMENTS` in this process, as its console script runs it."""
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    return Outcome(exit.value.code or 0, *capsys.readouterr())


@pytest.fixture
def command_with_acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`fsbench` in an empty folder, with the plugins of `install_acme`."""
    install_acme(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    return partial(run_command, capsys)


def cell(**strategies: str) -> Cell:
    defaults = {
        "workload": "ml-100k",
        "cluster": "local:ranks=2",
        "sharding": "naive",
        "embedding": "plain",
        "collectives": "backend",
        "sync": "allreduce",
    }
    return Cell(**{**defaults, **strategies})


def run_spec(repeat: int = 1, seed: int = 1, **strategies: str) -> RunSpec:
    of = cell(**strategies)
    return RunSpec(f"{of.sharding}-{of.sync}-r{repeat}", of, repeat, seed, None, 600)


FIGURES: dict[str, Any] = {
    "step_ms_p50": 10.0,
    "samples_per_s": 1600.0,
    "bubble": 0.25,
    "bubble_straggler": 0.125,
    "bubble_embedding": 0.0625,
    "bubble_dense": 0.0,
    "bubble_shuffle": 0.0,
    "bubble_strategy": 0.03125,
    "bubble_input": 0.0,
    "bubble_preempted": 0.03125,
    "bubble_other": 0.0,
    "straggler_floor": 0.013,
    "collision_rate": 0.125,
    "lost_us_per_sample": 312.5,
    "compute_us_per_sample": 937.5,
    "hr_at_10": 0.13,
    "ndcg_at_10_unfiltered": 0.0412,
    "ndcg_at_10": 0.0671,
    "ndcg_at_10_se": 0.0041,
    "popularity_ndcg_at_10": 0.043,
}


def record(
    run: RunSpec | None = None,
    *,
    status: str = "ok",
    reason: str | None = None,
    kind: str = "cpu",
    missing: Mapping[str, str] | None = None,
    observed: Mapping[str, Any] | None = None,
    **metrics: Any,
) -> dict[str, Any]:
    """A record whose figures are `FIGURES`, with some replaced; a run that did not end has none."""
    values = {**FIGURES, **metrics} if status in ("ok", "fallback") else {}
    reasons = dict.fromkeys(METRICS, "not looked at in this test") | dict(missing or {})
    return make_record(
        run or run_spec(),
        kind=kind,
        status=status,
        reason=reason,
        started="2026-01-02T03:04:05+00:00",
        wall_s=1.5,
        metrics=values,
        missing=reasons if values else {},
        observed=observed,
    )


class FakeSession:
    """Takes the place of `run_session`: records every run as `ok`, but those of the `failing` cells."""

    def __init__(self, failing: Sequence[Cell] = ()) -> None:
        self.failing = failing
        self.ran: list[RunSpec] = []

    def __call__(self, runs: Sequence[RunSpec], result_set: Any, data_dir: Path | None, quiet: bool) -> None:
        for run in runs:
            self.ran.append(run)
            failed = run.cell in self.failing
            result_set.append(record(run, status="failed", reason="it fell over") if failed else record(run))
