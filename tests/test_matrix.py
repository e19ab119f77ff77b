"""Cells and runs: their product, what they ignore, and the order in which they run."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.axes import AXES
from fsbench.matrix import STRATEGY_AXES, Cell, Settings, effective_cell, ignored_axes, interleave, product
from tests.fakes import cell

AXIS_VALUES = {
    "sharding": ["naive", "cost-aware"],
    "embedding": ["plain"],
    "collectives": ["backend"],
    "sync": ["allreduce", "shadow-ma:alpha=0.5"],
}
CELLS = product(["ml-100k"], ["local:ranks=2"], AXIS_VALUES)
NOTHING = {axis: frozenset() for axis in AXES}


def test_a_cell_has_the_four_axes():
    assert STRATEGY_AXES == AXES


def test_the_product_names_first_what_was_named_first_and_varies_the_last_axis_fastest():
    assert [(c.sharding, c.sync) for c in CELLS] == [
        ("naive", "allreduce"),
        ("naive", "shadow-ma:alpha=0.5"),
        ("cost-aware", "allreduce"),
        ("cost-aware", "shadow-ma:alpha=0.5"),
    ]


SPECS = st.lists(st.sampled_from(["a", "b", "b:k=1", "c.d"]), min_size=1, max_size=4)


@given(lists=st.tuples(*[st.lists(st.sampled_from(["a", "b:k=1"]), min_size=1, max_size=2)] * 6))
def test_any_lists_give_their_product_without_repeats_in_first_named_order(lists: tuple[list[str], ...]):
    expected: list[Cell] = []
    for choices in itertools.product(*lists):
        if Cell(*choices) not in expected:
            expected.append(Cell(*choices))
    workloads, clusters, *axes = lists
    assert list(product(workloads, clusters, dict(zip(STRATEGY_AXES, axes, strict=True)))) == expected


def test_the_product_spans_workloads_and_clusters():
    cells = product(["a", "b"], ["x", "y"], {axis: ["s"] for axis in AXES})
    assert [(c.workload, c.cluster) for c in cells] == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]


def test_a_value_named_twice_makes_one_cell():
    assert product(["w", "w"], ["c"], {axis: ["s", "s"] for axis in AXES}) == (Cell("w", "c", "s", "s", "s", "s"),)


def test_a_cell_reads_as_a_sentence():
    assert str(cell(collectives="-")) == "ml-100k on local:ranks=2: naive + plain + allreduce"


def test_collectives_are_ignored_unless_a_strategy_uses_them():
    assert ignored_axes(cell(), NOTHING) == ("collectives",)
    assert ignored_axes(cell(), {**NOTHING, "sync": frozenset({"collectives"})}) == ()


def test_the_axes_that_every_step_goes_through_are_never_ignored():
    assert effective_cell(cell(), NOTHING) == cell(collectives="-")


def test_cells_that_differ_only_on_an_ignored_axis_become_one():
    cells = [cell(collectives="backend"), cell(collectives="host-staged")]
    assert {effective_cell(c, NOTHING) for c in cells} == {cell(collectives="-")}


def test_every_repeat_runs_all_cells_before_the_next_begins():
    runs = interleave(CELLS, Settings(repeats=3))
    assert [run.repeat for run in runs] == [1] * 4 + [2] * 4 + [3] * 4
    for repeat in (1, 2, 3):
        assert {run.cell for run in runs if run.repeat == repeat} == set(CELLS)


def test_the_order_differs_between_repeats_and_seeds_and_is_the_same_for_the_same_seed():
    cells = product([f"w{i}" for i in range(8)], ["c"], AXIS_VALUES)

    def order(seed: int, repeat: int) -> list[Cell]:
        return [run.cell for run in interleave(cells, Settings(repeats=2, seed=seed)) if run.repeat == repeat]

    assert order(1, 1) == order(1, 1)
    assert order(1, 1) != order(1, 2)
    assert order(1, 1) != order(2, 1)


@given(
    shardings=SPECS,
    syncs=SPECS,
    repeats=st.integers(1, 4),
    more=st.integers(0, 3),
    seed=st.integers(0, 2**63 - 1),
)
def test_each_repeat_is_a_shuffle_of_all_cells_whatever_the_number_of_repeats(
    shardings: list[str], syncs: list[str], repeats: int, more: int, seed: int
):
    cells = product(["w"], ["c"], {**AXIS_VALUES, "sharding": shardings, "sync": syncs})
    runs = interleave(cells, Settings(repeats=repeats, seed=seed))
    assert interleave(cells, Settings(repeats=repeats + more, seed=seed))[: len(runs)] == runs
    for start in range(0, len(runs), len(cells)):
        assert sorted(run.cell for run in runs[start : start + len(cells)]) == sorted(cells)


def test_runs_carry_the_settings():
    (run,) = interleave([cell()], Settings(steps=7, seed=3, time_limit_s=9, stall_limit_s=4))
    assert (run.seed, run.steps, run.time_limit_s, run.stall_limit_s) == (3, 7, 9, 4)


@given(
    shardings=st.lists(st.sampled_from(["naive", "cost-aware", "cost-aware:costs=flops", "s.x"]), min_size=1),
    repeats=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_run_ids_are_unique_in_a_set(shardings: list[str], repeats: int, seed: int):
    cells = product(["w", "v"], ["c", "d"], {**AXIS_VALUES, "sharding": shardings})
    ids = Counter(run.run_id for run in interleave(cells, Settings(repeats=repeats, seed=seed)))
    assert len(ids) == len(cells) * repeats


def test_a_run_id_names_the_strategies_and_is_the_same_in_another_matrix():
    (alone,) = interleave([CELLS[3]], Settings())
    assert alone.run_id.startswith("cost-aware-plain-backend-shadow-ma-r1-")
    assert alone in interleave(CELLS, Settings(repeats=2))


@pytest.mark.parametrize("setting", ["repeats", "steps", "time_limit_s", "stall_limit_s"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_setting_that_counts_is_at_least_one(setting: str, value: int):
    with pytest.raises(ValueError, match=f"{setting}={value}: expected 1 or more"):
        Settings(**{setting: value})


def test_a_seed_is_not_negative():
    with pytest.raises(ValueError, match="seed=-1"):
        Settings(seed=-1)
