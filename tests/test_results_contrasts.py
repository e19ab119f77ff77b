"""Contrasts of a set: what is paired with what, what is averaged, what is left out."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.matrix import Cell, product
from fsbench.results.contrasts import Contrast, contrasts
from fsbench.results.speeds import Speeds, across_sets, paired_logs
from tests.fakes import cell, record, run_spec

AXES = {
    "sharding": ["naive", "cost-aware"],
    "embedding": ["plain"],
    "collectives": ["backend"],
    "sync": ["allreduce", "shadow-ma:alpha=0.5"],
}
CELLS = product(["long-cpu"], ["local:ranks=2"], AXES)
FACTORS = {"cost-aware": 1.25, "shadow-ma:alpha=0.5": 0.9}
speeds = st.floats(1, 1000)


def speed_of(of: Cell, repeat: int) -> float:
    """Every repeat has a pace of its own that all cells share."""
    return 100.0 * (1 + 0.1 * repeat) * math.prod(FACTORS.get(strategy, 1.0) for strategy in of.strategies.values())


def noise(of: Cell, repeat: int) -> float:
    """A few permille, of no pattern, never the same twice."""
    return 1 + 0.004 * math.sin(hash_of(of) * 12.9898 + repeat * 78.233)


def hash_of(of: Cell) -> int:
    return sum(map(ord, str(of)))


def noisy(of: Cell, repeat: int) -> float:
    return speed_of(of, repeat) * noise(of, repeat)


def run(of: Cell, repeat: int = 1, **changes) -> dict:
    return record(run_spec(repeat, **asdict(of)), **changes)


def runs(cells=CELLS, repeats: int = 6, speed: Callable[[Cell, int], float] = noisy, **changes) -> list[dict]:
    numbers = range(1, repeats + 1)
    return [run(of, k, samples_per_s=speed(of, k), **changes) for k, of in itertools.product(numbers, cells)]


def manifest(cells=CELLS) -> dict:
    return {"cells": [asdict(of) for of in cells]}


def replaced(records: list[dict], of: Cell, repeat: int, **changes) -> list[dict]:
    """The records, with a run recorded differently."""
    return [
        run(of, repeat, **changes) if one["repeat"] == repeat and one["cell"] == asdict(of) else one for one in records
    ]


def one(records: list[dict], axis: str = "sharding", cells=CELLS, **options) -> Contrast:
    (found,) = [contrast for contrast in contrasts(records, manifest(cells), **options) if contrast.axis == axis]
    return found


def test_every_strategy_stands_against_the_first_named_of_its_axis():
    found = contrasts(runs(), manifest())
    assert [(c.axis, c.strategy, c.base) for c in found] == [
        ("sharding", "cost-aware", "naive"),
        ("sync", "shadow-ma:alpha=0.5", "allreduce"),
    ]
    assert [c.judged.estimate.ratio for c in found] == pytest.approx([1.25, 0.9], rel=0.01)
    assert [c.judged.verdict for c in found] == ["FASTER", "SLOWER"]


def test_the_default_matrix_asks_four_contrasts():
    axes = {**AXES, "embedding": ["plain", "prioritized"], "collectives": ["backend", "host-staged"]}
    found = contrasts(runs(product(["w"], ["c"], axes), repeats=1))
    assert [c.axis for c in found] == ["sharding", "embedding", "collectives", "sync"]
    assert [c.cell_pairs for c in found] == [8] * 4


def test_the_order_of_the_manifest_decides_and_not_the_order_of_the_runs():
    backwards = runs()[::-1]
    assert one(backwards).base == "naive"
    last_first = {"cells": manifest()["cells"][::-1]}
    assert contrasts(backwards, last_first)[0].base == "cost-aware"


def test_without_a_manifest_the_default_of_an_axis_is_its_base_whatever_was_recorded_first():
    found = contrasts(runs()[::-1])
    assert [(c.strategy, c.base) for c in found] == [("cost-aware", "naive"), ("shadow-ma:alpha=0.5", "allreduce")]


def test_another_base_can_be_asked_for_and_is_taken_where_there_is_one():
    found = contrasts(runs(), manifest(), bases={"sharding": "cost-aware", "sync": "unheard-of"})
    assert [(c.strategy, c.base) for c in found] == [("naive", "cost-aware"), ("shadow-ma:alpha=0.5", "allreduce")]
    assert found[0].judged.estimate.ratio == pytest.approx(1 / one(runs()).judged.estimate.ratio)


@given(st.lists(st.tuples(speeds, speeds, speeds, speeds), min_size=2, max_size=8))
def test_the_replicate_is_a_repeat_over_which_the_other_axes_are_averaged_first(rows: list[tuple[float, ...]]):
    table = {(of, k): row[i] for k, row in enumerate(rows, start=1) for i, of in enumerate(CELLS)}
    estimate = one(runs(repeats=len(rows), speed=lambda of, k: table[of, k])).judged.estimate
    naive_all, naive_shadow, aware_all, aware_shadow = range(4)
    means = [
        (math.log(row[aware_all] / row[naive_all]) + math.log(row[aware_shadow] / row[naive_shadow])) / 2
        for row in rows
    ]
    assert estimate.runs == (len(rows),)
    assert estimate.log_ratio == pytest.approx(statistics.mean(means), abs=1e-9)
    if estimate.spread:
        assert estimate.spread.variances == (pytest.approx(statistics.variance(means), rel=1e-6, abs=1e-15),)


def test_what_all_cells_of_a_repeat_share_is_not_noise():
    calm = one(runs(speed=lambda of, k: noise(of, k) * 100))
    drifting = one(runs(speed=lambda of, k: noise(of, k) * 100 * 1.5**k))
    assert drifting.judged.estimate.spread.error == pytest.approx(calm.judged.estimate.spread.error)


def test_workloads_clusters_and_kinds_are_never_averaged_over():
    places = [("long-cpu", "local:ranks=2"), ("long-cpu", "local:ranks=4"), ("ml-100k", "local:ranks=2")]
    cells = [of for place in places for of in product([place[0]], [place[1]], {**AXES, "sync": ["allreduce"]})]
    found = contrasts(runs(cells) + runs(cells[:2], kind="sim", speed=lambda of, k: 1.0 + k), manifest(cells))
    assert [(c.workload, c.cluster, c.kind) for c in found] == [
        ("long-cpu", "local:ranks=2", "cpu"),
        ("long-cpu", "local:ranks=2", "sim"),
        ("long-cpu", "local:ranks=4", "cpu"),
        ("ml-100k", "local:ranks=2", "cpu"),
    ]
    assert found[1].judged.estimate.ratio == 1.0


@pytest.mark.parametrize("kinds", [("cpu", "sim"), ("sim", "gpu"), ("gpu", "cpu")])
def test_speeds_of_two_kinds_of_machine_have_no_ratio(kinds: tuple[str, str]):
    top, below = (Speeds(kind, {(1, 1): 0.0, (1, 2): 1.0}) for kind in kinds)
    for divide in (paired_logs, across_sets):
        with pytest.raises(ValueError, match="have no ratio"):
            divide(top, below)


def test_runs_of_different_seeds_are_no_pair():
    records = [record(run_spec(1, seed, **asdict(of))) for seed, of in enumerate(CELLS[::2])]
    found = one(records)
    assert (found.judged.estimate.ratio, found.left_out["runs without a pair"]) == (None, 2)


def test_a_failed_run_takes_its_repeat_with_it_and_is_counted():
    records = replaced(runs(CELLS[::2]), CELLS[2], 3, status="failed", reason="out of luck")
    found = one(records)
    assert found.judged.estimate.runs == (5,)
    assert found.judged.reason == "needs 6 runs"
    assert found.left_out == {"runs failed": 1, "runs without a pair": 1, "cells without a run": 2}


def test_a_run_that_fell_back_measured_something_else():
    records = replaced(runs(CELLS[::2]), CELLS[2], 3, status="fallback", reason="no copy engine")
    assert one(records).left_out["runs fallback"] == 1


@pytest.mark.parametrize("speed", [None, 0.0])
def test_a_run_without_samples_is_left_out_and_counted(speed: float | None):
    records = replaced(runs(CELLS[::2]), CELLS[2], 3, samples_per_s=speed)
    found = one(records, cells=CELLS[::2])
    assert found.judged.estimate.runs == (5,)
    assert found.left_out == {"runs without samples/s": 1, "runs without a pair": 1}


def test_a_cell_that_never_ran_through_leaves_the_other_pairs_in_all_their_repeats():
    records = [one for one in runs() if one["cell"] != asdict(CELLS[3])]
    records += [run(CELLS[3], k, status="oom", reason="too large") for k in range(1, 7)]
    found = one(records)
    assert (found.cell_pairs, found.judged.estimate.runs) == (1, (6,))
    assert found.left_out == {"runs without a pair": 6, "runs oom": 6}


def test_means_of_every_repeat_are_over_the_same_cells():
    # The pairs differ by a lot: a repeat that has one pair only must not be averaged with those that have both.
    def opposite(of: Cell, k: int) -> float:
        return noise(of, k) * (2.0 if (of.sharding == "naive") == (of.sync == "allreduce") else 1.0)

    whole = runs(repeats=8, speed=opposite)
    found = one(replaced(whole, CELLS[0], 5, status="failed", reason="out of luck"))
    assert (found.cell_pairs, found.judged.estimate.runs) == (2, (7,))
    assert found.judged.estimate.ratio == pytest.approx(1, rel=0.01)
    assert found.left_out == {"runs failed": 1, "runs without a pair": 3}


def test_unequal_repeats_are_cut_to_those_that_all_have():
    records = [one for one in runs(CELLS[::2], repeats=9) if one["cell"] == asdict(CELLS[0]) or one["repeat"] <= 7]
    found = one(records, cells=CELLS[::2])
    assert found.judged.estimate.runs == (7,)
    assert found.left_out == {"runs without a pair": 2}


def test_a_first_named_strategy_that_never_ran_is_not_replaced_by_another():
    records = [one for one in runs() if one["cell"]["sharding"] != "naive"]
    found = one(records)
    assert (found.base, found.judged.estimate.ratio, found.judged.reason) == ("naive", None, "no runs to compare")
    assert found.left_out == {"runs without a pair": 12, "cells without a run": 2}


def test_cells_that_ignore_the_axis_are_left_out_and_counted():
    ignoring = cell(workload="long-cpu", collectives="-", sync="solo")
    cells = [*product(["long-cpu"], ["local:ranks=2"], {**AXES, "collectives": ["backend", "host-staged"]}), ignoring]
    assert one(runs(cells), "collectives", cells).left_out == {"cells with - on the axis": 1}


def test_a_cell_that_ignores_another_axis_stands_for_every_strategy_there():
    used = product(["w"], ["c"], {**AXES, "sync": ["allreduce"], "collectives": ["backend", "host-staged"]})
    both = [of for of in used if of.sharding == "naive"]
    alone = Cell("w", "c", "sorted", "plain", "-", "allreduce")
    table = dict(zip([*both, alone], (1.0, 4.0, 6.0), strict=True))
    found = one(runs([*both, alone], speed=lambda of, k: table[of]), cells=[*both, alone])
    assert (found.cell_pairs, found.left_out) == (2, {})
    assert found.judged.estimate.ratio == pytest.approx(3.0)  # 6 over the geometric mean of 1 and 4


def test_a_set_without_a_choice_on_any_axis_asks_nothing():
    assert contrasts(runs(CELLS[:1]), manifest(CELLS[:1])) == []
    assert contrasts([], manifest()) == []


def test_verdicts_of_a_set_are_one_family():
    found = contrasts(runs(speed=lambda of, k: noise(of, k) * (1.004 if of.sharding == "naive" else 1.0)), manifest())
    raw = sorted(c.judged.estimate.spread.p for c in found)
    assert raw[0] < raw[1] / 2
    assert sorted(c.judged.p for c in found) == pytest.approx([2 * raw[0], raw[1]])


def test_pairs_of_cells_that_differ_in_sign_beyond_noise_are_told():
    def depends(of: Cell, k: int) -> float:
        faster = (of.sharding == "cost-aware") == (of.sync == "allreduce")
        return noise(of, k) * (1.1 if faster else 1.0)

    assert one(runs(speed=depends)).opposed == (1, 1)


def test_pairs_of_cells_that_differ_in_size_or_within_noise_are_not_told():
    def larger(of: Cell, k: int) -> float:
        return noise(of, k) * {"naive": 1.0, "cost-aware": 1.3 if of.sync == "allreduce" else 1.1}[of.sharding]

    assert one(runs(speed=larger)).opposed is None
    assert one(runs(speed=noise)).opposed is None
    assert one(runs(repeats=1)).opposed is None
