"""Whole runs of the click-through workload on two ranks: it learns in one pass, and its record says how well."""

from __future__ import annotations

import functools
import itertools

import pytest

from fsbench.axes import AXES, DEFAULTS
from fsbench.options import Spec
from fsbench.plugins import create
from tests import support

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

SMALL = "ctr:batch=32,dim=8,hidden=16,rows=200,eval_samples=2000,lr=0.05,table_lr=0.1"
STEPS, SEED = 60, 3


def report_of(rank, ranks, workload, steps, folder, axes):
    """On rank 0, what the record of a run is made of. Servers, where they are asked for, are threads of rank 0."""
    import torch

    from fsbench.launch.heartbeat import Heartbeat
    from fsbench.testing.servers import served
    from fsbench.train.report import build_report
    from fsbench.train.session import TrainingRun
    from fsbench.train.trainer import Strategies, close_trainer, open_trainer

    prepared = create("workloads", Spec.parse(workload))
    prepared.prepare(folder, SEED)
    strategies = Strategies(**{axis: create(axis, Spec.parse(axes.get(axis, DEFAULTS[axis]))) for axis in AXES})
    where = {"rank": rank, "ranks": ranks, "seed": SEED, "timeout": support.LIMIT}
    with served(strategies, prepared, **where) as store:
        trainer = open_trainer(prepared, strategies, device=torch.device("cpu"), store=store, **where)
        finished = TrainingRun(trainer, steps, Heartbeat(folder, rank)).execute()
        report = build_report(trainer, finished)
        close_trainer(trainer)
    return report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clicks")


@pytest.fixture(scope="module")
def run(ranks, folder):
    """The report of a run, which is made once."""

    @functools.cache
    def once(workload=SMALL, steps=STEPS, **axes):
        return ranks.run(report_of, 2, workload, steps, folder, axes, limit_s=90)[0]

    return once


def test_one_pass_learns_to_predict_better_than_the_click_rate_whatever_moves_the_rows(run):
    plain, prioritized = run()["metrics"], run(embedding="prioritized")["metrics"]
    assert plain["ne"] < 0.95
    assert plain["auc"] > 0.65
    assert (plain["ne"], plain["auc"]) == (prioritized["ne"], prioritized["auc"])
    assert run(embedding="parameter-server", sync="fr-ma")["metrics"]["ne"] < 0.98


def test_the_record_has_the_examples_under_way_at_once_and_a_second(run):
    metrics = run()["metrics"]
    assert metrics["elp"] == 2 * 32
    assert metrics["examples_per_s"] > 0


def test_cpu_time_of_syncs_is_missing_where_none_is_told(run):
    report = run()
    assert report["metrics"]["shadow_cpu_s"] is None
    assert report["missing"]["shadow_cpu_s"] == "the sync strategy tells no CPU time of its own"


def test_ranking_is_missing_where_clicks_are_predicted_and_clicks_where_items_are_ranked(run):
    clicks, items = run(steps=4), run(support.TINY_LONG, steps=4)
    assert clicks["missing"]["ndcg_at_10"] == clicks["missing"]["popularity_ndcg_at_10"]
    assert clicks["missing"]["ndcg_at_10"] == "the workload measures no ranking"
    assert items["missing"]["ne"] == items["missing"]["auc"] == "the workload predicts no clicks"


def test_every_replica_is_evaluated_and_the_first_is_the_headline(run):
    report = run(sync="shadow-ma")
    evaluation, metrics = report["observed"]["evaluation"], report["metrics"]
    assert list(evaluation["replicas"]) == ["trainer", "mean"]
    assert evaluation["replicas"]["trainer"] == {"ne": metrics["ne"], "auc": metrics["auc"]}
    assert evaluation["replicas"]["mean"] != evaluation["replicas"]["trainer"]
    assert (evaluation["samples"], evaluation["clicks"] > 0) == (2000, True)
    assert "held-out examples of the same synthetic stream, never trained" in evaluation["protocol"]


def test_what_background_syncs_say_of_their_cpu_time_is_a_metric(run):
    assert run(sync="shadow-ma")["metrics"]["shadow_cpu_s"] > 0


def test_a_whole_pass_can_be_trained_and_the_noise_floor_reads_it_again(run, folder):
    ratings = [
        f"{user}\t{1 + (user * 7 + event) % 30}\t{1 + (user + event) % 5}\t{10_000 * user + event // 2}\n"
        for user, event in itertools.product(range(1, 13), range(10))
    ]
    (folder / "u.data").write_text("".join(ratings))
    report = run("ctr:source=ml-100k,batch=4,dim=4,hidden=6", steps=108 // 8)
    assert report["observed"]["evaluation"]["samples"] == 12
    assert report["metrics"]["straggler_floor"] is not None
