"""Whole runs of the click-through workload on two ranks: it learns in one pass, and its record says how well."""

from __future__ import annotations

import itertools

import pytest

from tests import support

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

SMALL = "ctr:batch=32,dim=8,hidden=16,rows=200,eval_samples=2000,lr=0.05,table_lr=0.1"
STEPS = 150


def report_of(rank, ranks, workload, steps, folder, axes):
    """On rank 0, what the record of a run is made of."""
    from fsbench.launch.heartbeat import Heartbeat
    from fsbench.train.report import build_report
    from fsbench.train.session import TrainingRun
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, workload, data_dir=folder, **axes)
    finished = TrainingRun(trainer, steps, Heartbeat(folder, rank)).execute()
    report = build_report(trainer, finished)
    close_trainer(trainer)
    return report


@pytest.fixture
def run(ranks, tmp_path):
    return lambda workload=SMALL, steps=STEPS, **axes: ranks.run(
        report_of, 2, workload, steps, tmp_path, axes, limit_s=90
    )[0]


def test_one_pass_learns_to_predict_better_than_the_click_rate_whatever_moves_the_rows(run):
    plain, prioritized = (run(embedding=embedding)["metrics"] for embedding in ("plain", "prioritized"))
    assert plain["ne"] < 0.98
    assert plain["auc"] > 0.6
    assert (plain["ne"], plain["auc"]) == (prioritized["ne"], prioritized["auc"])
    assert plain["elp"] == 2 * 32
    assert plain["shadow_cpu_s"] is None


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


def test_background_syncs_tell_their_cpu_time_which_is_that_of_all_ranks_in_training(run):
    report = run(sync="shadow-ma")
    of_one_rank_in_the_whole_run = report["observed"]["sync"]["evidence"]["cpu_s"]
    assert 0 < report["metrics"]["shadow_cpu_s"] < 10 * of_one_rank_in_the_whole_run


def test_a_whole_pass_can_be_trained_and_the_noise_floor_reads_it_again(run, tmp_path):
    ratings = [
        f"{user}\t{1 + (user * 7 + event) % 30}\t{1 + (user + event) % 5}\t{10_000 * user + event // 2}\n"
        for user, event in itertools.product(range(1, 13), range(10))
    ]
    (tmp_path / "u.data").write_text("".join(ratings))
    report = run("ctr:source=ml-100k,batch=4,dim=4,hidden=6", steps=108 // 8)
    assert report["observed"]["evaluation"]["samples"] == 12
    assert report["metrics"]["straggler_floor"] is not None
