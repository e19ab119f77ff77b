"""All 16 cells of the built-in matrix train a tiny model; which of them end with the same numbers, to which bit."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from fsbench.axes import AXES
from fsbench.matrix import BUILT_IN, Cell, product
from tests import support

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

RANKS = 2
STEPS = {"allreduce": 20, "shadow-ma": 5}
"""By sync: enough to compare losses, and a few where there is nothing to compare."""
FP32 = support.with_options(support.TINY_LONG, dtype="float32", max_len=100, eval_users=40)
FP64 = support.with_options(FP32, dtype="float64")
CELLS = product([FP32], BUILT_IN["clusters"], BUILT_IN)


def named(cell: Cell) -> str:
    return "+".join(cell.strategies.values())


def plainest(cell: Cell) -> Cell:
    """The cell of the same sharding and sync that the others are held against."""
    return replace(cell, embedding="plain", collectives="backend")


each_cell = pytest.mark.parametrize("cell", CELLS, ids=named)


def train(rank, ranks, cell, folder):
    """A whole run of the cell: its losses, every number that it ends with, and on rank 0 its report."""
    from fsbench.launch.heartbeat import Heartbeat
    from fsbench.train.report import build_report
    from fsbench.train.session import TrainingRun
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, cell.workload, **cell.strategies)
    finished = TrainingRun(trainer, STEPS[cell.sync], Heartbeat(folder, rank)).execute()
    report = build_report(trainer, finished)
    numbers = {
        "losses": finished.losses,
        "rankings": finished.evaluated,
        "tables": trainer.strategies.embedding.state_dict(),
        "dense": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict()["state"],
    }
    close_trainer(trainer)
    return finished.losses, dict(flat(numbers)), report


def flat(value, path=()):
    """(names, array) of each leaf of nested mappings of numbers."""
    if not isinstance(value, dict):
        yield path, np.array(value)
        return
    for name, inner in value.items():
        yield from flat(inner, (*path, name))


@pytest.fixture(scope="module")
def trained(ranks, tmp_path_factory):
    """By cell, what `train` returned on each rank. A cell trains when it is first asked for, and never again."""
    folder = tmp_path_factory.mktemp("cells")
    return functools.cache(lambda cell: ranks.run(train, RANKS, cell, folder))


@each_cell
def test_every_cell_trains_to_its_end_with_finite_numbers(trained, cell):
    for losses, numbers, _ in trained(cell):
        assert len(losses) == STEPS[cell.sync]
        assert all(np.isfinite(array).all() for array in numbers.values())


@each_cell
def test_every_cell_runs_what_it_names_and_only_shadow_ma_claims_no_equality(trained, cell):
    report = trained(cell)[0][2]
    observed = report["observed"]
    ran = {
        "cost-aware": observed["sharding"]["moved"] > 0,
        "prioritized": "rows.exclusive" in report["metrics"]["bytes_by_class"],
        "host-staged": bool(observed["collectives"].get("evidence", {}).get("through_host")),
        "shadow-ma": "rounds" in observed["sync"].get("evidence", {}),
    }
    assert {name for name, seen in ran.items() if seen} == ran.keys() & cell.strategies.values()
    assert {axis: observed[axis]["exact"] for axis in AXES} == {
        axis: name != "shadow-ma" for axis, name in cell.strategies.items()
    }


@pytest.mark.parametrize(
    "cell", [cell for cell in CELLS if cell.sync == "allreduce" and cell != plainest(cell)], ids=named
)
def test_embedding_and_collectives_change_no_bit_of_what_a_sharding_trains(trained, cell):
    """Losses, rankings, tables with their optimizer states, dense weights with theirs."""
    for (_, ours, _), (_, reference, _) in zip(trained(cell), trained(plainest(cell)), strict=True):
        assert {path[0] for path in reference} == {"losses", "rankings", "tables", "dense", "optimizer"}
        assert ours.keys() == reference.keys()
        assert [path for path, array in reference.items() if array.tobytes() != ours[path].tobytes()] == []


@pytest.mark.parametrize(("workload", "limit"), [(FP32, 1e-4), (FP64, 1e-9)], ids=["fp32", "fp64"])
def test_shardings_have_one_loss_curve_up_to_rounding(trained, workload, limit):
    cells = [replace(plainest(CELLS[0]), sharding=sharding, workload=workload) for sharding in BUILT_IN["sharding"]]
    naive, balanced = (trained(cell)[0][0] for cell in cells)
    assert naive[-1] < naive[0]
    assert balanced == pytest.approx(naive, rel=limit, abs=0)
