"""Several result sets: what is divided by what, what stands beside each other, what is only listed."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from dataclasses import asdict
from typing import Any

import pytest

from fsbench.errors import UserError
from fsbench.matrix import Cell, product
from fsbench.results.comparability import Level
from fsbench.results.compare import Compared, compare
from fsbench.results.compare_data import comparison_csv, comparison_json
from fsbench.results.compare_table import comparison_report
from tests.fakes import record, run_spec

FACTORS = {"cost-aware": 1.25, "prioritized": 1.1}
MACHINE = {"model": "Abacus 9", "cores": 2, "memory_mib": 8000}


def cells(workload: str = "long-cpu", cluster: str = "local:ranks=2", sharding=("naive", "cost-aware")) -> list[Cell]:
    axes = {"sharding": sharding, "embedding": ["plain"], "collectives": ["backend"], "sync": ["allreduce"]}
    return list(product([workload], [cluster], axes))


def made(
    label: str, of: list[Cell] | None = None, repeats: int = 6, pace: float = 100.0, kind: str = "cpu", **changes: Any
) -> Compared:
    """A set whose runs scatter by a permille or two about `pace` times the strategies' factors."""
    of = cells() if of is None else of
    manifest = {
        "started": "2026-01-02T03:04:05+00:00",
        "versions": {"fsbench": "0.1.0", "python": "3.11.9", "torch": "2.13.0"},
        "cpu": MACHINE,
        "settings": {"steps": None},
        "seeds": [1],
        "cells": [asdict(one) for one in of],
        "data": {one.workload: {"data_sha256": "ab" * 32} for one in of},
        **changes,
    }
    records = [
        record(run_spec(k, **asdict(one)), kind=kind, samples_per_s=pace * speed(one) * scatter(label, i, k))
        for k, (i, one) in itertools.product(range(1, repeats + 1), enumerate(of))
    ]
    return Compared(label, f"results/{label.lower()}", manifest, records)


def speed(of: Cell) -> float:
    return math.prod(FACTORS.get(strategy, 1.0) for strategy in of.strategies.values())


def scatter(label: str, i: int, repeat: int) -> float:
    return 1 + 0.002 * math.sin(ord(label) * 7.1 + i * 12.9898 + repeat * 78.233)


def test_sets_of_one_key_compare_cell_by_cell_the_later_over_the_first():
    comparison = compare([made("A"), made("B", pace=110.0)])
    assert [match.level for match in comparison.matches] == [Level.DIRECTLY]
    assert [ratio.cell for ratio in comparison.ratios] == cells()
    for ratio in comparison.ratios:
        assert ratio.judged.estimate.ratio == pytest.approx(1.1, rel=0.003)
        assert ratio.judged.estimate.runs == (6, 6)
        assert ratio.judged.verdict == "FASTER"


def test_cells_are_the_same_where_one_set_spells_out_a_default():
    short, spelled = "long-cpu", "long-cpu:batch=8"
    sets = [
        made(label, cells(spec), options={"workloads": {spec: {"batch": 8}}})
        for label, spec in (("A", spelled), ("B", short))
    ]
    assert {ratio.cell.workload for ratio in compare(sets).ratios} == {short}
    assert len(compare(sets).ratios) == 2


def test_their_interval_is_of_runs_that_were_not_interleaved():
    """A drift that both sets share is no pairing: it widens the interval."""
    first, second = made("A"), made("B")
    for one, run in itertools.product((first, second), range(12)):
        one.records[run]["metrics"]["samples_per_s"] *= 1.1 ** one.records[run]["repeat"]
    (ratio, *_) = compare([first, second]).ratios
    assert ratio.judged.estimate.spread.error > 0.05
    assert ratio.judged.verdict == "UNCLEAR"


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu": {**MACHINE, "model": "Abacus 10"}},
        {"versions": {"fsbench": "0.1.0", "python": "3.11.9", "torch": "2.14.0"}},
        {"settings": {"steps": 7}},
        {"of": cells(cluster="local:ranks=4")},
        {"kind": "gpu", "gpus": []},
    ],
)
def test_elsewhere_contrasts_stand_side_by_side_and_nothing_is_divided_across(changes: dict[str, Any]):
    comparison = compare([made("A"), made("B", pace=1e6, **changes)])
    assert [match.level for match in comparison.matches] == [Level.AS_RATIOS]
    assert comparison.ratios == []
    (side,) = comparison.side_by_side
    (row,) = side.rows.values()
    assert [contrast.judged.estimate.ratio for contrast in row] == pytest.approx([1.25, 1.25], rel=0.003)
    assert "1e+06" not in comparison_report(comparison, "table")


@pytest.mark.parametrize("cluster", ["local:ranks=2", "sim:x,ranks=2"])
@pytest.mark.parametrize("kinds", [("cpu", "sim"), ("sim", "cpu"), ("gpu", "sim")])
def test_no_ratio_is_ever_formed_between_simulated_and_real(kinds: tuple[str, str], cluster: str):
    sets = [made(label, cells(cluster=cluster), kind=kind, gpus=[]) for label, kind in zip("AB", kinds, strict=True)]
    comparison = compare(sets)
    assert comparison.ratios == []
    assert [match.level for match in comparison.matches] == [Level.AS_RATIOS]
    for contrast in itertools.chain.from_iterable(comparison.side_by_side[0].rows.values()):
        assert contrast.judged.estimate.ratio == pytest.approx(1.25, rel=0.003)
    text = comparison_report(comparison, "table")
    assert all(kind.upper() in text.split("Contrasts within")[1] for kind in kinds)


def test_simulated_sets_compare_with_each_other_wherever_they_were_simulated():
    one, other = (made(label, kind="sim", cpu={**MACHINE, "model": label}) for label in "AB")
    assert len(compare([one, other]).ratios) == 2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"of": cells("long-cpu:batch=8")}, "batch: the default in A, 8 in B"),
        ({"of": cells("long-cpu:dtype=bfloat16")}, "precision: the default in A, bfloat16 in B"),
        ({"data": {"long-cpu": {"data_sha256": "ef" * 32}}}, "data_sha256: abababababab in A, efefefefefef in B"),
        ({"data": {}}, "data: recorded in A, not recorded in B"),
    ],
)
def test_what_trained_something_else_does_not_compare_and_the_report_says_why(changes: dict[str, Any], told: str):
    comparison = compare([made("A"), made("B", **changes)])
    assert (comparison.ratios, comparison.side_by_side) == ([], [])
    text = comparison_report(comparison, "table")
    assert f"{comparison.matches[0].top}: not at all; " in text
    assert told in text
    assert "Nothing compares." in text


def test_each_part_of_a_set_is_held_against_the_one_most_like_it():
    first = made("A", [*cells(), *cells("long-cpu:batch=8"), *cells("long-cpu:batch=8", "local:ranks=4")])
    later = made("B", [*cells("long-cpu:batch=8", "local:ranks=4"), *cells("long-cpu:batch=8", "local:ranks=8")])
    matches = compare([first, later]).matches
    assert [(str(match.top), str(match.below), match.level.name) for match in matches] == [
        ("long-cpu:batch=8 on local:ranks=4, CPU", "long-cpu:batch=8 on local:ranks=4, CPU", "DIRECTLY"),
        ("long-cpu:batch=8 on local:ranks=8, CPU", "long-cpu:batch=8 on local:ranks=2, CPU", "AS_RATIOS"),
    ]


def test_what_one_set_has_alone_is_listed():
    first = made("A", [*cells(), *cells("ml-100k")])
    later = made("B", cells(sharding=("naive", "sorted")))
    text = comparison_report(compare([first, later]), "table")
    assert "only in A, not in B: ml-100k on local:ranks=2, CPU\n" in text
    assert "only in A, not in B: long-cpu on local:ranks=2, CPU: cost-aware + plain + backend + allreduce" in text
    assert "only in B, not in A: long-cpu on local:ranks=2, CPU: sorted + plain + backend + allreduce" in text


def test_a_cell_whose_runs_all_failed_in_one_set_has_no_ratio():
    first, later = made("A"), made("B")
    kept = [run for run in later.records if run["cell"]["sharding"] == "naive"]
    failed = [
        record(run_spec(run["repeat"], **run["cell"]), status="failed", reason="out of luck")
        for run in later.records
        if run not in kept
    ]
    comparison = compare([first, Compared("B", "b", later.manifest, [*kept, *failed])])
    assert [ratio.judged.reason for ratio in comparison.ratios] == [None, "no runs to compare"]
    text = comparison_report(comparison, "table")
    assert "B: b, 2026-01-02T03:04:05+00:00, 6 of 12 runs count" in text
    assert "cost-aware" in text


def test_three_sets_are_each_held_against_the_first_and_judged_together():
    comparison = compare([made("A"), made("B"), made("C", pace=90.0)])
    assert [(r.match.top.label, r.judged.verdict) for r in comparison.ratios] == [
        ("B", "SAME"),
        ("B", "SAME"),
        ("C", "SLOWER"),
        ("C", "SLOWER"),
    ]
    raw = [ratio.judged.estimate.spread.p for ratio in comparison.ratios]
    assert min(ratio.judged.p for ratio in comparison.ratios) == pytest.approx(4 * min(raw))


def test_contrasts_of_every_set_are_against_what_the_first_set_named_first():
    comparison = compare([made("A"), made("B", cells(sharding=("cost-aware", "naive")))])
    (question,) = comparison.side_by_side[0].rows
    assert question == ("sharding", "cost-aware", "naive")
    assert all(comparison.side_by_side[0].rows[question])


def test_a_ratio_over_more_cells_than_the_one_beside_it_says_so():
    def both(*embeddings: str) -> list[Cell]:
        axes = {"collectives": ["backend"], "sync": ["allreduce"], "embedding": embeddings}
        return list(product(["long-cpu"], ["local:ranks=2"], {**axes, "sharding": ["naive", "cost-aware"]}))

    text = comparison_report(compare([made("A", both("plain", "prioritized")), made("B", both("plain"))]), "table")
    assert "! cost-aware / naive: pairs of cells that it is a mean over: 2 in A: local:ranks=2, 1 in B: local" in text


def test_sets_of_one_cell_elsewhere_have_no_ratio_to_show():
    alone = cells(sharding=("naive",))
    text = comparison_report(compare([made("A", alone), made("B", alone, settings={"steps": 7})]), "table")
    assert "No set ran two strategies of an axis" in text


def test_sets_without_a_common_cell_are_refused_with_what_each_has():
    with pytest.raises(UserError, match=r"no cell in common: results/a has long-cpu on .*; results/b has ml-100k on"):
        compare([made("A"), made("B", cells("ml-100k"))])
    with pytest.raises(UserError, match="no cell in common"):
        compare([made("A", cells(sharding=("naive",))), made("B", cells(sharding=("sorted",)))])


def test_a_set_without_a_speed_is_refused():
    with pytest.raises(UserError, match="results/b has no run that is ok and has samples/s"):
        compare([made("A"), made("B", repeats=0)])


REPORT = """\
A: results/a, 2026-01-02T03:04:05+00:00, 12 of 12 runs count
B: results/b, 2026-01-02T03:04:05+00:00, commit 0123456789ab (changed), 12 of 12 runs count

B with A, long-cpu on local:ranks=2, CPU: cell by cell; same key, and machines described alike (host names are not recorded)

Cell by cell, a later set / the first: above 1, FASTER, the later set trains more samples a second. Speeds are geometric means:

sets    workload    sharding    kind      samples/s    samples/s  ratio                   verdict      runs      runs
                                              later        first  (95 % interval)                              needed
------  ----------  ----------  ------  -----------  -----------  ----------------------  ---------  ------  --------
B / A   long-cpu    naive       CPU             110          100  1.100 (1.098 to 1.103)  FASTER       6, 6         6
B / A   long-cpu    cost-aware  CPU           137.5          125  1.100 (1.098 to 1.102)  FASTER       6, 6         6

Welch's t over single runs, because the sets were not interleaved: a drift of the machine from one set to the other is part of the ratio, and is in its interval only as far as it shows within a set
FASTER, SLOWER: p < 0.05, by Holm's method over the 2 cells; SAME: the 90 % interval lies within ±2 % (1/1.02 to 1.02); else UNCLEAR
runs needed: to find a true difference of 2 %, the margin, in 80 % of cases, at the spread seen here and Holm's strictest step

Contrasts within each set, a strategy / what it is compared with on its axis: above 1, FASTER, the strategy trains more samples a second there:

axis      long-cpu            A: local:ranks=2               B: local:ranks=2
                              CPU                            CPU
--------  ------------------  -----------------------------  -----------------------------
sharding  cost-aware / naive  1.250 (1.249 to 1.251) FASTER  1.250 (1.249 to 1.251) FASTER

FASTER, SLOWER: p < 0.05, by Holm's method over the contrasts of each set, as `fsbench show` has it; SAME: the 90 % interval lies within ±2 % (1/1.02 to 1.02); else UNCLEAR

cluster local: local:ranks=2"""  # noqa: E501


def test_the_report_from_top_to_bottom():
    git = {"commit": "0123456789abcdef", "dirty": True}
    text = comparison_report(compare([made("A"), made("B", pace=110.0, git=git)]), "table")
    assert [line.rstrip() for line in text.splitlines()] == REPORT.splitlines()


def test_in_markdown_the_tables_are_markdown():
    lines = comparison_report(compare([made("A"), made("B")]), "markdown").splitlines()
    assert any(line.startswith("| sets   | workload   | sharding   | kind   |") for line in lines)


def test_json_holds_every_match_ratio_and_contrast_in_full():
    data = json.loads(comparison_json(compare([made("A"), made("B", cpu={}), made("C")])))
    assert [one["set"] for one in data["sets"]] == ["A", "B", "C"]
    assert [(match["set"], match["level"]) for match in data["matches"]] == [("B", "as_ratios"), ("C", "directly")]
    assert data["matches"][0]["differences"][0] == {
        "part": "cpu model",
        "first": "Abacus 9",
        "second": "not recorded",
        "level": "as_ratios",
    }
    assert [(one["set"], one["sharding"], one["runs"]) for one in data["cells"]] == [
        ("C", "naive", [6, 6]),
        ("C", "cost-aware", [6, 6]),
    ]
    first = data["cells"][0]
    assert first["low"] < first["ratio"] == pytest.approx(first["samples_per_s"] / first["samples_per_s_against"])
    assert [(one["set"], one["strategy"], one["base"]) for one in data["contrasts"]] == [
        (label, "cost-aware", "naive") for label in "ABC"
    ]


def test_csv_has_a_line_for_each_of_them():
    comparison = compare([made("A"), made("B", cpu={}), made("C", repeats=1)])
    rows = list(csv.DictReader(io.StringIO(comparison_csv(comparison))))
    assert [row["what"] for row in rows] == ["match"] * 2 + ["cell"] * 2 + ["contrast"] * 3
    assert rows[0]["differences"].startswith("cpu model: Abacus 9 / not recorded; cpu cores: 2 / not recorded")
    assert (rows[2]["runs"], rows[2]["low"], rows[2]["no_interval"]) == ("1 6", "", "no interval")
    assert float(rows[4]["ratio"]) == pytest.approx(1.25, rel=0.003)
