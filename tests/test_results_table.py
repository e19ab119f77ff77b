"""Tables, whole, as a reader sees them."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.results.schema import METRICS
from fsbench.results.table import FORMATS, aggregate, render
from tests.fakes import cell, record, run_spec

NO_RANKING = dict.fromkeys(
    ("ndcg_at_10", "ndcg_at_10_se", "hr_at_10", "ndcg_at_10_unfiltered", "popularity_ndcg_at_10"),
    "the workload measures no ranking",
)
MIXED = [
    record(run_spec(2, sharding="cost-aware"), status="failed", reason="rank 1, backward: out of luck"),
    record(
        run_spec(1, sharding="cost-aware"),
        compute_us_per_sample=1125.0,
        missing=NO_RANKING,
        **dict.fromkeys(NO_RANKING),
    ),
    record(run_spec(1), observed={"evaluation": {"protocol": "leave one out, full ranking"}}),
    record(run_spec(2), step_ms_p50=12.0, observed={"evaluation": {"protocol": "leave one out, full ranking"}}),
]
MANIFEST = {
    "cells": [asdict(cell()), asdict(cell(sharding="cost-aware"))],
    "runs": [run["run_id"] for run in MIXED] + ["never-ran"],
}


def lines(text: str) -> list[str]:
    """Without the spaces that end lines."""
    return [line.rstrip() for line in text.splitlines()]


TABLE = """\
2 cells, 4 of 5 runs, measured on CPU; medians over the runs of a cell

workload    sharding    kind    status          runs      step ms    samples/s    bubble    lost us      compute          NDCG@10    HR@10      NDCG@10    NDCG@10 of
                                                              p50                      %    /sample    inflation           ± s.e.             seen kept    popularity
----------  ----------  ------  --------------  ------  ---------  -----------  --------  ---------  -----------  ---------------  -------  -----------  ------------
ml-100k     naive       CPU     ok              2            11.0         1600      25.0        312         1.00  0.0671 ± 0.0041   0.1300       0.0412        0.0430
ml-100k     cost-aware  CPU     1 ok, 1 failed  1            10.0         1600      25.0        312         1.20            – [1]    – [1]        – [1]         – [1]

Where the bubble went, % of all ranks' step windows; in each run the parts sum to the bubble:

workload    sharding    kind      bubble    straggler    embedding    dense    shuffle    strategy    input    preempted    other    straggler    collision
                                       %            %            %        %          %           %        %            %        %      floor %       rate %
----------  ----------  ------  --------  -----------  -----------  -------  ---------  ----------  -------  -----------  -------  -----------  -----------
ml-100k     naive       CPU         25.0         12.5          6.2      0.0        0.0         3.1      0.0          3.1      0.0          1.3         12.5
ml-100k     cost-aware  CPU         25.0         12.5          6.2      0.0        0.0         3.1      0.0          3.1      0.0          1.3         12.5

[1] the workload measures no ranking

Contrasts, a strategy / the first-named of its axis: above 1, FASTER, the strategy trains more samples a second. Ratios are geometric means over the cells of the other axes; runs of one repeat are pairs:

workload    cluster    kind    axis      contrast            samples/s ratio      verdict         runs      runs
                                                             (95 % interval)                              needed
----------  ---------  ------  --------  ------------------  -------------------  ------------  ------  --------
ml-100k     local      CPU     sharding  cost-aware / naive  1.000 (no interval)  needs 6 runs       1         –

a verdict takes 6 runs of each cell (--repeats 6)
left out of cost-aware / naive (ml-100k on local:ranks=2, CPU): runs failed: 1; runs without a pair: 1

cluster local: local:ranks=2
noise floor: every rank the same samples: 1.3 % straggler share (ml-100k on local:ranks=2, CPU)
evaluation: leave one out, full ranking (ml-100k)

failed: ml-100k on local:ranks=2: cost-aware + plain + backend + allreduce, repeat 2: rank 1, backward: out of luck"""  # noqa: E501, RUF001

MARKDOWN = """\
1 cell, 1 run, measured on GPU; medians over the runs of a cell

| workload   | sharding   | kind   | status   | runs   |   step ms p50 |   samples/s |   bubble % |   lost us /sample |   compute inflation |   NDCG@10 ± s.e. |   HR@10 |   NDCG@10 seen kept |   NDCG@10 of popularity |
|------------|------------|--------|----------|--------|---------------|-------------|------------|-------------------|---------------------|------------------|---------|---------------------|-------------------------|
| ml-100k    | naive      | GPU    | ok       | 1      |          10.0 |        1600 |       25.0 |               312 |                1.00 |  0.0671 ± 0.0041 |  0.1300 |              0.0412 |                  0.0430 |

Where the bubble went, % of all ranks' step windows; in each run the parts sum to the bubble:

| workload   | sharding   | kind   |   bubble % |   straggler % |   embedding % |   dense % |   shuffle % |   strategy % |   input % |   preempted % |   other % |   straggler floor % |   collision rate % |
|------------|------------|--------|------------|---------------|---------------|-----------|-------------|--------------|-----------|---------------|-----------|---------------------|--------------------|
| ml-100k    | naive      | GPU    |       25.0 |          12.5 |           6.2 |       0.0 |         0.0 |          3.1 |       0.0 |           3.1 |       0.0 |                 1.3 |               68.4 |

cluster local: local:ranks=2
noise floor: every rank the same samples: 1.3 % straggler share (ml-100k on local:ranks=2, GPU)
collision rate: the next batch needs 68.4 % of a batch's rows: prioritising can hide at most 31.6 % of the embedding exchange behind compute, and part of the rest beside the dense gradients (ml-100k on local:ranks=2, GPU)"""  # noqa: E501


def test_the_table_shows_speed_and_quality_then_the_bubble_then_what_to_know_about_them():
    assert lines(render(MIXED, "table", MANIFEST)) == TABLE.splitlines()


def test_the_same_table_in_markdown():
    assert lines(render([record(kind="gpu", collision_rate=0.684)], "markdown")) == MARKDOWN.splitlines()


def headings(text: str) -> list[str]:
    """The headings of the first table, the lines of each joined."""
    first, second = text.splitlines()[2:4]
    starts = [match.start() for match in re.finditer(r"-+", text.splitlines()[4])]
    bounds = list(itertools.pairwise([*starts, len(text)]))
    return [" ".join((first[a:b].strip() + " " + second[a:b].strip()).split()) for a, b in bounds]


CLICKS = {"ne": 0.87654, "auc": 0.71, "examples_per_s": 1234.0, **dict.fromkeys(NO_RANKING), "missing": NO_RANKING}


def test_click_through_quality_takes_the_place_of_ranking_where_no_run_has_that():
    of_clicks = render([record(run_spec(workload="ctr"), **CLICKS)])
    assert headings(of_clicks)[-3:] == ["compute inflation", "NE", "AUC"]
    assert of_clicks.splitlines()[5].split()[-2:] == ["0.8765", "0.7100"]
    both = headings(render([record(run_spec(workload="ctr"), **CLICKS), record()]))
    assert both[-6:] == ["NDCG@10 ± s.e.", "HR@10", "NDCG@10 seen kept", "NDCG@10 of popularity", "NE", "AUC"]


def test_how_often_replicas_meet_stands_beside_the_bubble_where_a_run_has_it():
    reason = "no sync of replicas in the measured steps"
    syncs = {"sync_gap_p50": 5.0, "syncs_per_min": 321.4}
    never = record(missing=dict.fromkeys(syncs, reason))
    both = render([never, record(run_spec(sync="shadow-ma"), **syncs)], "markdown")
    assert columns(both, 1)["sync gap steps"] == ["– [1]", "5.00"]  # noqa: RUF001
    assert columns(both, 1)["syncs /min"] == ["– [1]", "321"]  # noqa: RUF001
    assert f"[1] {reason}" in both
    assert "sync gap steps" not in columns(render([never], "markdown"), 1)


def test_eps_stands_beside_samples_a_second_where_a_run_has_it():
    text = render([record(examples_per_s=1234.0), record(run_spec(sync="none"))])
    shown = headings(text)
    assert shown[shown.index("samples/s") + 1] == "EPS"
    assert METRICS["examples_per_s"].meaning in text.splitlines()
    assert "EPS" not in headings(render([record()]))


def test_rows_stand_in_the_order_in_which_the_cells_were_named():
    assert [row.cell.sharding for row in aggregate(MIXED, MANIFEST)] == ["naive", "cost-aware"]
    assert [row.cell.sharding for row in aggregate(MIXED)] == ["cost-aware", "naive"]


def test_cells_of_a_resumed_set_follow_the_first_ones():
    late = record(run_spec(sharding="another"))
    manifest = {**MANIFEST, "resumed": [{"cells": [late["cell"]], "runs": [late["run_id"]]}]}
    assert [row.cell.sharding for row in aggregate([late, *MIXED], manifest)] == ["naive", "cost-aware", "another"]


def test_only_axes_that_vary_are_shown_beside_workload_and_sharding():
    text = render([record(), record(run_spec(sync="shadow-ma"))])
    assert text.splitlines()[2].split()[:4] == ["workload", "sharding", "sync", "kind"]


def test_figures_are_medians_over_the_runs_of_a_cell():
    runs = [record(run_spec(i), step_ms_p50=ms) for i, ms in enumerate([10.0, 99.0, 12.0])]
    (row,) = aggregate(runs)
    assert (row.runs, row.metrics["step_ms_p50"], row.status) == (3, 12.0, "ok")


def test_objects_are_aggregated_key_by_key():
    runs = [record(run_spec(i), bytes_by_class=by) for i, by in enumerate([{"ids": 1}, {"ids": 3, "rows": 8}])]
    assert aggregate(runs)[0].metrics["bytes_by_class"] == {"ids": 2, "rows": 8}


def test_runs_that_fell_back_do_not_mix_with_runs_that_did_not():
    fell_back = record(run_spec(1), status="fallback", reason="a kernel, no copy engine", step_ms_p50=1.0)
    (row,) = aggregate([fell_back, record(run_spec(2))])
    assert (row.status, row.runs, row.metrics["step_ms_p50"]) == ("1 ok, 1 fallback", 1, 10.0)


def test_simulated_and_measured_runs_are_rows_and_noise_floors_of_their_own():
    text = render([record(), record(kind="sim", straggler_floor=0.0)])
    assert text.startswith("1 cell, 2 runs, measured on CPU and simulated (SIM);")
    assert "1.3 % straggler share (ml-100k on local:ranks=2, CPU)" in text
    assert "0.0 % straggler share (ml-100k on local:ranks=2, SIM)" in text


def test_a_run_that_failed_shows_no_figure_and_why():
    text = render([record(status="oom", reason="rank 0, forward: out of memory")])
    row = text.splitlines()[5].split()
    assert row[:5] == ["ml-100k", "naive", "CPU", "oom", "1"]
    assert set(row[5:]) == {"–", "[1]"}  # noqa: RUF001
    assert "[1] oom: rank 0, forward: out of memory" in text


def test_a_quality_without_standard_error_says_so():
    assert "0.0671 ± –" in render([record(ndcg_at_10_se=None)])  # noqa: RUF001


def test_csv_has_every_metric_in_full_and_the_reasons_in_its_last_column():
    text = render([record(step_ms_p50=1 / 3, bytes_by_class={"ids": 7})], "csv")
    (row,) = csv.DictReader(io.StringIO(text))
    assert set(METRICS) <= set(row)
    assert float(row["step_ms_p50"]) == 1 / 3
    assert json.loads(row["bytes_by_class"]) == {"ids": 7}
    assert row["sync"] == "allreduce"
    assert row["ne"] == ""
    assert "ne: not looked at in this test" in row["missing"]


def test_json_has_every_metric_or_null_with_its_reason():
    (row,) = json.loads(render([record()], "json"))
    assert set(row["metrics"]) == set(METRICS)
    assert set(row["missing"]) == {name for name, value in row["metrics"].items() if value is None}


@pytest.mark.parametrize("form", FORMATS)
@given(value=st.floats(allow_nan=False, allow_infinity=False) | st.none())
def test_any_finite_figure_or_none_can_be_shown(form: str, value: float | None):
    assert render([record(lost_us_per_sample=value, ndcg_at_10=value, bubble=value)], form)


def test_a_floor_above_five_percent_says_that_stragglers_cannot_be_compared():
    text = render([record(straggler_floor=0.06)])
    assert "6.0 % straggler share (ml-100k on local:ranks=2, CPU): above 5 %" in text
    assert "6.0 !" in text
    assert "above 5 %" not in render([record(straggler_floor=0.05)])
    assert "above 5 %" not in render([record(straggler_floor=0.0504)])  # printed as 5.0


def test_a_collision_rate_above_a_half_says_what_prioritising_can_hide_at_most():
    line = "prioritising can hide at most 31.6 % of the embedding exchange behind compute, and part of the rest"
    assert line in render([record(collision_rate=0.684)])
    assert "prioritising" not in render([record(collision_rate=0.5)])
    assert "prioritising" not in render([record(collision_rate=None)])


NO_HOT_ROWS = {"hot_coverage": "the embedding strategy has no hot rows"}
STALE = [
    record(run_spec(embedding="plain"), staleness_steps=0, missing=NO_HOT_ROWS),
    record(run_spec(embedding="prefetch-stale"), staleness_steps=1, missing=NO_HOT_ROWS),
    record(run_spec(embedding="hot-first:staleness=4"), staleness_steps=4, hot_coverage=0.8125),
]


def columns(text: str, grid: int) -> dict[str, list[str]]:
    """By heading, what stands below it in the first or second markdown table."""
    lines = [block for block in text.split("\n\n") if block.startswith("|")][grid].splitlines()
    heading, _, *rows = ([part.strip() for part in line.strip("|").split("|")] for line in lines)
    return dict(zip(heading, map(list, zip(*rows, strict=True)), strict=True))


def test_where_a_run_may_use_stale_rows_the_table_says_of_how_many_steps():
    text = render(STALE, "markdown")
    assert columns(text, 0)["stale steps"] == ["4", "0", "1"]
    assert "stale: most steps whose updates a row may lack when it is used; 0: none" in text.splitlines()
    assert "stale" not in render([STALE[0], record(run_spec(2))], "markdown")


def test_where_a_run_has_hot_rows_the_table_says_what_share_of_the_lookups_they_answered():
    text = render(STALE, "markdown")
    assert columns(text, 1)["hot %"] == ["81.2", "– [1]", "– [1]"]  # noqa: RUF001
    assert "[1] the embedding strategy has no hot rows" in text.splitlines()
    assert "hot: rows looked up that copies on the ranks answered, each row once a rank and step" in text.splitlines()
    assert "hot" not in render(STALE[:2], "markdown")
    assert columns(render([record(hot_coverage=0.0)], "markdown"), 1)["hot %"] == ["0.0"]


def test_classes_of_bytes_are_for_programs():
    by_class = {"bytes_by_class": {"rows.hot": 8}, "exposed_ms_by_class": {"rows.hot": 0.5}}
    assert "rows.hot" not in render([record(**by_class)])
    assert all("rows.hot" in render([record(**by_class)], form) for form in ("csv", "json"))


def test_compute_inflation_needs_the_reference_cell_of_the_same_workload():
    alone = aggregate([record(run_spec(sharding="cost-aware"))])[0]
    assert alone.metrics["compute_inflation"] is None
    assert alone.missing["compute_inflation"] == "the set has no naive+plain+backend+allreduce cell of it"


def test_a_long_spec_is_shortened_where_its_name_says_enough_and_given_in_full_below():
    long = [record(run_spec(workload="long-cpu:batch=4,dim=16", sharding=name)) for name in ("naive", "cost-aware")]
    text = render(long)
    assert text.count("long-cpu:batch=4,dim=16") == 2  # below the table, and where the noise floor was measured
    assert "workload long-cpu: long-cpu:batch=4,dim=16" in text
    both = render([record(run_spec(workload=f"long-cpu:dim={dim}")) for dim in (16, 32)])
    assert "workload long-cpu:" not in both
    assert both.count("long-cpu:dim=16") >= 2


def six_runs(speed: dict[str, float], noise: float = 0.004, **changes) -> list[dict]:
    """Runs of each sharding around its speed."""
    return [
        record(run_spec(k, sharding=name), samples_per_s=mean * (1 + noise * (k * (3 + place) % 7)), **changes)
        for k in range(1, 7)
        for place, (name, mean) in enumerate(speed.items())
    ]


def contrast_rows(text: str) -> list[list[str]]:
    """The cells of the markdown table under the heading of the contrasts."""
    below = text[text.index("Contrasts, ") :].split("\n\n")[1]
    return [[part.strip() for part in line.strip("|").split("|")] for line in below.splitlines()[2:]]


def test_contrasts_stand_under_the_tables_in_markdown_too_with_margin_and_method():
    text = render(six_runs({"naive": 100.0, "cost-aware": 130.0}), "markdown", MANIFEST)
    ((*label, ratio, verdict, runs, needed),) = contrast_rows(text)
    assert label == ["ml-100k", "local", "CPU", "sharding", "cost-aware / naive"]
    assert 1.29 < float(ratio.split()[0]) < 1.31
    assert " to 1.3" in ratio
    assert (verdict, runs) == ("FASTER", "6")
    assert int(needed) >= 6
    assert "FASTER, SLOWER: p < 0.05; SAME: the 90 % interval lies within ±2 % (1/1.02 to 1.02); else UNCLEAR" in text
    assert "runs needed: to find a true difference of 2 %, the margin, in 80 % of cases" in text


def test_a_slower_strategy_is_below_one_and_called_slower():
    ((*_, ratio, verdict, _, _),) = contrast_rows(render(six_runs({"naive": 100.0, "b": 70.0}), "markdown"))
    assert verdict == "SLOWER"
    assert 0.69 < float(ratio.split()[0]) < 0.71


def test_runs_that_agree_to_the_last_bit_get_no_verdict_and_a_line_on_why():
    text = render(six_runs({"naive": 100.0, "b": 110.0}, noise=0, kind="sim"), "markdown")
    assert contrast_rows(text)[0][2:] == ["SIM", "sharding", "b / naive", "1.100 (no spread)", "no spread", "6", "–"]  # noqa: RUF001
    assert "no spread: the runs agree to the last bit" in text


def test_a_ratio_that_depends_on_the_other_axes_says_so():
    def opposite(k: int, sharding: str, sync: str) -> float:
        return (1.2 if (sharding == "naive") == (sync == "allreduce") else 1.0) * (1 + 0.001 * (k * k % 5))

    records = [
        record(run_spec(k, sharding=sharding, sync=sync), samples_per_s=opposite(k, sharding, sync))
        for k in range(1, 8)
        for sharding in ("naive", "b")
        for sync in ("allreduce", "shadow-ma")
    ]
    for number, run in enumerate(records):
        run["run_id"] += str(number)
        run["metrics"]["samples_per_s"] *= 1 + 0.0001 * (number * number % 13)
    line = (
        "! b / naive (ml-100k on local:ranks=2, CPU): of 2 pairs of cells 1 faster and 1 slower, each beyond its noise"
    )
    assert line in render(records)


def test_a_set_that_was_resumed_on_another_machine_warns_of_pairs_across_machines():
    here = {"cpu": {"model": "Abacus 9", "cores": 2, "memory_mib": 8000}}
    there = {"cpu": {"model": "Abacus 10", "cores": 2, "memory_mib": 8000}}
    line = "! resumed under other circumstances, so that runs may not compare: cpu model: Abacus 9 then Abacus 10"
    assert line in render(MIXED, "table", {**here, "resumed": [there]})
    assert "resumed" not in render(MIXED, "table", {**here, "resumed": [here]})
