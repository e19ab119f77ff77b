"""`examples/plot_bubbles.py`: its bars say what `fsbench show` prints of the same set."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.results.store import ResultSet
from fsbench.results.table import aggregate
from tests.fakes import cell, record, run_spec

matplotlib = pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'fsbench[plot]'")

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "plot_bubbles.py"
NO_BUBBLE = {"bubble": None, "missing": {"bubble": "no CUDA events yet"}}


def load():
    """The example as a module; `examples` is no package."""
    spec = importlib.util.spec_from_file_location("plot_bubbles", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plot_bubbles = load()


def panels(*records: dict[str, Any], manifest: dict[str, Any] | None = None) -> list:
    """The axes of the figure of one set."""
    rows = aggregate(list(plot_bubbles.drawable(records)), manifest)
    return plot_bubbles.draw(plot_bubbles.panels_of({"set": rows})).axes


def bars(axes) -> list[dict[str, tuple[float, float]]]:
    """By bar, top down, and by part: where it begins and how long it is, in ms."""
    part_of = {matplotlib.colors.to_rgba(colour): part for part, colour in plot_bubbles.COLOUR_OF.items()}
    found: dict[float, dict[str, tuple[float, float]]] = {}
    for patch in axes.patches:
        part = part_of[patch.get_facecolor()]
        found.setdefault(patch.get_y(), {})[part] = (patch.get_x(), patch.get_width())
    return [found[place] for place in sorted(found)]


def lengths(axes) -> list[float]:
    """How long each bar is as a whole, in ms."""
    return [sum(width for _, width in parts.values()) for parts in bars(axes)]


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def speeds(axes) -> list[str]:
    return [text for text in texts(axes) if "samples/s" in text]


def save(folder: Path, *records: dict[str, Any]) -> str:
    results = ResultSet.create(folder, {"schema": 1})
    for run in records:
        results.append(run)
    return str(folder)


def test_a_bar_is_the_step_divided_into_compute_and_the_parts_of_the_bubble_end_to_end():
    (axes,) = panels(record())
    assert bars(axes) == [
        {
            "compute": (0.0, 7.5),
            "straggler": (7.5, 1.25),
            "embedding": (8.75, 0.625),
            "dense": (9.375, 0.0),
            "shuffle": (9.375, 0.0),
            "strategy": (9.375, 0.3125),
            "input": (9.6875, 0.0),
            "preempted": (9.6875, 0.3125),
            "other": (10.0, 0.0),
        }
    ]


runs_of_shares = st.lists(st.lists(st.integers(1, 1000), min_size=9, max_size=9), min_size=1, max_size=5)


@given(runs=runs_of_shares, step_ms=st.floats(0.01, 1e5))
def test_the_parts_sum_to_the_step_and_relate_as_the_medians_of_the_table_do(
    runs: Sequence[Sequence[int]], step_ms: float
):
    parts = list(plot_bubbles.COLOUR_OF)
    records = []
    for number, counts in enumerate(runs, start=1):
        shares = {f"bubble_{part}": count / sum(counts) for part, count in zip(parts[1:], counts[1:], strict=True)}
        records.append(record(run_spec(number), step_ms_p50=step_ms, bubble=sum(shares.values()), **shares))
    (row,) = aggregate(records)
    divided = plot_bubbles.divide(row.metrics)
    assert sum(divided.values()) == pytest.approx(step_ms)
    medians = [1 - row.metrics["bubble"], *(row.metrics[f"bubble_{part}"] for part in parts[1:])]
    assert list(divided) == parts
    assert [ms / divided["compute"] for ms in divided.values()] == pytest.approx([m / medians[0] for m in medians])


def test_the_length_of_a_bar_and_the_samples_at_its_end_are_medians_over_the_runs():
    runs = [
        record(run_spec(n), step_ms_p50=step, samples_per_s=rate)
        for n, step, rate in ((1, 9, 5), (2, 30, 7), (3, 12, 6))
    ]
    (axes,) = panels(*runs)
    assert lengths(axes) == pytest.approx([12.0])
    assert speeds(axes) == ["6 samples/s, 3 runs"]


def test_the_longer_parts_carry_their_milliseconds():
    (axes,) = panels(record(step_ms_p50=200.0))
    assert [text for text in texts(axes) if text.isdigit()] == ["150", "25", "12", "6", "6"]


def test_only_axes_on_which_the_cells_differ_label_the_bars():
    (axes,) = panels(record(), record(run_spec(embedding="prioritized:window=3", sync="shadow-ma")))
    assert texts(axes)[:6] == ["embedding", "plain", "prioritized", "sync", "allreduce", "shadow-ma"]


def test_a_set_of_one_cell_is_labelled_by_all_its_strategies():
    (axes,) = panels(record())
    assert texts(axes)[:8:2] == ["sharding", "embedding", "collectives", "sync"]
    assert texts(axes)[1:8:2] == ["naive", "plain", "backend", "allreduce"]


def test_bars_stand_in_the_order_in_which_the_cells_were_named():
    records = [
        record(run_spec(sharding=name), step_ms_p50=step) for name, step in (("cost-aware", 20.0), ("naive", 30.0))
    ]
    manifest = {"cells": [asdict(cell(sharding="naive")), asdict(cell(sharding="cost-aware"))]}
    (axes,) = panels(*records, manifest=manifest)
    assert lengths(axes) == pytest.approx([30.0, 20.0])
    assert texts(axes)[:3] == ["sharding", "naive", "cost-aware"]


def test_each_workload_cluster_and_kind_of_machine_has_a_panel_that_says_so():
    records = [
        record(run_spec()),
        record(run_spec(workload="sparse")),
        record(run_spec(cluster="local:ranks=3")),
        record(run_spec(), kind="sim"),
    ]
    assert {axes.get_title() for axes in panels(*records)} == {
        "ml-100k on local:ranks=2 (CPU)",
        "sparse on local:ranks=2 (CPU)",
        "ml-100k on local:ranks=3 (CPU)",
        "ml-100k on local:ranks=2 (SIM)",
    }


def test_variants_of_a_workload_share_their_scale_but_other_workloads_and_simulated_ranks_do_not():
    axes = panels(
        record(run_spec(workload="sparse:collision=0.1"), step_ms_p50=100.0),
        record(run_spec(workload="sparse:collision=0.2"), step_ms_p50=200.0),
        record(run_spec(workload="toy"), step_ms_p50=1.0),
        record(run_spec(workload="sparse:collision=0.1"), step_ms_p50=10.0, kind="sim"),
    )
    assert sorted(panel.get_xlim()[1] for panel in axes) == pytest.approx([1.3, 13.0, 260.0, 260.0])


def test_the_most_samples_a_second_of_a_panel_are_bold():
    (axes,) = panels(record(), record(run_spec(sharding="cost-aware"), samples_per_s=1700.0))
    weights = {text.get_text(): text.get_weight() for text in axes.texts if "samples/s" in text.get_text()}
    assert weights == {"1,600 samples/s, 1 run": "normal", "1,700 samples/s, 1 run": "bold"}


def test_a_lone_bar_wins_nothing():
    (axes,) = panels(record())
    assert {text.get_weight() for text in axes.texts} == {"normal"}


def test_a_run_without_a_bubble_is_left_out_with_the_reason_and_does_not_count(capsys):
    (axes,) = panels(record(run_spec(1)), record(run_spec(2), step_ms_p50=99.0, **NO_BUBBLE))
    assert lengths(axes) == pytest.approx([10.0])
    assert speeds(axes) == ["1,600 samples/s, 1 run"]
    assert capsys.readouterr().err == (
        "plot_bubbles: left out for want of bubble: "
        "ml-100k on local:ranks=2: naive + plain + backend + allreduce, repeat 2: no CUDA events yet\n"
    )


def test_a_run_that_failed_is_left_out_with_the_reason_in_one_line(capsys):
    (axes,) = panels(record(run_spec(1)), record(run_spec(2), status="failed", reason="rank 1:\n out of luck"))
    assert len(bars(axes)) == 1
    error = capsys.readouterr().err
    assert error.endswith("repeat 2: failed: rank 1: out of luck\n")
    assert error.count("\n") == 1


def test_a_bar_of_runs_that_fell_back_says_so():
    (axes,) = panels(record(status="fallback", reason="ran as plain"))
    assert speeds(axes) == ["1,600 samples/s, 1 run (fallback)"]


def test_panels_of_several_sets_name_their_set():
    rows = aggregate([record()])
    assert list(plot_bubbles.panels_of({"old": rows, "new": rows})) == [
        "old: ml-100k on local:ranks=2 (CPU)",
        "new: ml-100k on local:ranks=2 (CPU)",
    ]


def test_the_same_set_gives_the_same_bytes_in_any_process_whatever_the_settings_of_the_user(tmp_path, monkeypatch):
    results = save(tmp_path / "set", record(), record(run_spec(sync="shadow-ma")))
    command = [sys.executable, str(SCRIPT), results, "--out", str(tmp_path / "a.svg")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 30.0)
    assert plot_bubbles.main([results, "--out", str(tmp_path / "b.svg")]) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_an_svg_holds_text_as_text_and_no_date(tmp_path):
    results = save(tmp_path / "set", record())
    assert plot_bubbles.main([results, "--out", str(tmp_path / "a.svg")]) == 0
    svg = (tmp_path / "a.svg").read_text()
    assert ">1,600 samples/s, 1 run</text>" in svg
    assert "<dc:date>" not in svg


def test_a_png_is_drawn_too(tmp_path):
    results = save(tmp_path / "set", record())
    assert plot_bubbles.main([results, "--out", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--out", "a.svg"], "nowhere is no result set"),
        (["set", "--out", "a.pdf"], "--out a.pdf: expected a name that ends in .svg or .png"),
        (["set", "--out", "nowhere/a.svg"], "cannot write nowhere/a.svg: No such file or directory"),
        (["gpu", "--out", "a.svg"], "no run of gpu can be drawn"),
        (["empty", "--out", "a.svg"], "no run of empty can be drawn"),
        (["--out", "a.svg"], "Missing argument 'RESULT...'"),
        (["set"], "Missing option '--out'"),
    ],
)
def test_what_cannot_be_drawn_is_an_error_of_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "set", record())
    save(tmp_path / "gpu", record(kind="gpu", **NO_BUBBLE))
    save(tmp_path / "empty")
    assert plot_bubbles.main(arguments) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("plot_bubbles: error: ")
    assert message in last
    assert not list(tmp_path.glob("a.*"))


def test_a_torn_last_line_is_a_warning_of_one_line(tmp_path, capsys):
    results = save(tmp_path / "set", record())
    with open(tmp_path / "set" / "runs.jsonl", "a") as file:
        file.write('{"torn')
    assert plot_bubbles.main([results, "--out", str(tmp_path / "a.svg")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"plot_bubbles: warning: {results}/runs.jsonl:2: left out: torn, ")


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit) as exit:
        load()
    assert exit.value.code == "plot_bubbles: error: drawing needs matplotlib: pip install 'fsbench[plot]'"


def test_nothing_but_the_example_uses_matplotlib():
    sources = [path for folder in ("fsbench", "strategies", "workloads") for path in (ROOT / folder).rglob("*.py")]
    assert sources
    assert not [path for path in sources if "matplotlib" in path.read_text()]


def test_the_published_set_of_prioritised_exchange_is_drawn_as_its_table_has_it(capsys):
    results = ResultSet.open(ROOT / "results" / "prioritized-400mbit")
    sparse, ml_100k = panels(*results.records(), manifest=results.manifest())
    assert capsys.readouterr().err == ""
    assert [round(ms) for ms in lengths(sparse)] == [256, 175]
    assert [round(ms, 1) for ms in lengths(ml_100k)] == [54.3, 60.9]
    assert speeds(sparse) == ["125 samples/s, 6 runs", "182 samples/s, 6 runs"]
    assert speeds(ml_100k) == ["295 samples/s, 6 runs", "263 samples/s, 6 runs"]
    assert texts(sparse)[:3] == ["embedding", "plain", "prioritized"]
