"""Quality of a model: the same bits on any number of ranks. NDCG: equal to brute force, analytic for constant scores;
of clicks: a reason where there is no figure, and every replica in the record."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from fsbench.metrics.ranking import ranking_quality
from fsbench.samples import Jagged
from tests import support

pytestmark = pytest.mark.timeout(120)


def save_trained(rank, ranks, folder):
    from fsbench.train import checkpoint
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks)
    Driver(trainer, 0, 3).run()
    checkpoint.save(trainer, folder / "state.pt", 3)
    close_trainer(trainer)


def counts_of_checkpoint(rank, ranks, folder):
    from fsbench.train import checkpoint
    from fsbench.train.evaluation import evaluate
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks)
    checkpoint.load(trainer, folder / "state.pt")
    counts = evaluate(trainer, trainer.workload.evaluation())
    close_trainer(trainer)
    return counts[:, :2], counts[:, 2:]


def counts_by_brute_force(rank, ranks, folder):
    """One user at a time, one score at a time."""
    import torch

    from fsbench.train import checkpoint
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks)
    checkpoint.load(trainer, folder / "state.pt")
    ranking = trainer.workload.evaluation()
    table = trainer.strategies.embedding.state_dict()["items"]["weight"]
    filtered, unfiltered = [], []
    for user in range(len(ranking.users)):
        one = ranking.users.take(np.array([user]))
        batch = trainer.workload.build_batch(one, torch.float64)
        with torch.no_grad():
            encoded = trainer.model.encode(batch, {"items": table[batch.ids["items"]]})[0]
            scores = (table @ encoded).tolist()
        target = int(ranking.targets[user])
        others = [item for item in range(len(scores)) if item != target]
        seen = set(ranking.seen.take(np.array([user])).values.tolist())
        unfiltered.append(_counts(scores, target, others))
        filtered.append(_counts(scores, target, [item for item in others if item not in seen]))
    close_trainer(trainer)
    return np.array(filtered), np.array(unfiltered)


def _counts(scores, target, others):
    above = sum(scores[item] > scores[target] for item in others)
    return above, sum(scores[item] == scores[target] for item in others)


@pytest.mark.distributed
def test_a_checkpoint_has_the_same_ndcg_bits_on_one_two_and_three_ranks(ranks, tmp_path):
    ranks.run(save_trained, 2, tmp_path)
    found = {count: ranks.run(counts_of_checkpoint, count, tmp_path)[0] for count in (1, 2, 3)}
    for part in (0, 1):
        qualities = {count: ranking_quality(found[count][part]) for count in found}
        assert qualities[1] == qualities[2] == qualities[3]
        assert 0 < qualities[1].ndcg.mean < 1


@pytest.mark.distributed
def test_counts_equal_brute_force_over_every_user_and_item(ranks, tmp_path):
    ranks.run(save_trained, 2, tmp_path)
    found = ranks.run(counts_of_checkpoint, 2, tmp_path)[0]
    expected = ranks.run(counts_by_brute_force, 1, tmp_path)[0]
    for ours, reference in zip(found, expected, strict=True):
        # fp64 scores of one user and of a chunk may differ in the last bit, and so may a count of near-ties.
        assert np.abs(ours - reference).max() <= 1
        assert (ours == reference).mean() > 0.99


def ne_of_a_model(rank, ranks, workload, data_dir=None):
    """The model as it was born, without training."""
    from fsbench.metrics.sheet import Sheet
    from fsbench.train.evaluation import evaluate
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, workload, data_dir)
    evaluation, sheet = trainer.workload.evaluation(), Sheet()
    rows = evaluate(trainer, evaluation)
    evaluation.enter(sheet, rows)
    close_trainer(trainer)
    return rows.tobytes(), sheet.metrics, sheet.missing


@pytest.mark.distributed
def test_clicks_are_predicted_to_the_same_bits_on_one_two_and_three_ranks(ranks):
    found = [ranks.run(ne_of_a_model, count, support.TINY_CTR)[0] for count in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    assert found[0][1]["ne"] > 1
    assert 0 < found[0][1]["auc"] < 1


@pytest.mark.distributed
@pytest.mark.parametrize(("ratings", "reason"), [(9, "0 of 0 held-out samples"), (30, "0 of 3 held-out samples")])
def test_held_out_samples_without_a_click_are_missing_figures_with_the_reason(ranks, tmp_path, ratings, reason):
    """Ratings of 3 are no clicks, and of fewer than ten none is held out."""
    support.write_ratings(tmp_path, [(1, 1 + number % 5, number) for number in range(ratings)])
    workload = support.with_options(support.TINY_CTR, source="ml-100k")
    _, metrics, missing = ranks.run(ne_of_a_model, 2, workload, tmp_path)[0]
    assert metrics == {"ne": None, "auc": None}
    assert all(told.startswith(reason) for told in missing.values())


def test_every_replica_is_in_the_record_and_the_first_is_the_headline():
    from fsbench.metrics.sheet import Sheet
    from fsbench.train.clicks import ClickThrough
    from fsbench.train.quality import enter_quality, evaluation_evidence

    clicked = np.array([True, False, True, False])
    logits = {"trainer": [1.0, -1, -1, 1], "mean": [2.0, -1, 1, 1], "central": [2.0, -2, 2, -2]}
    evaluated = {name: np.array(of)[:, None] for name, of in logits.items()}
    evaluation, sheet = ClickThrough(range(4), clicked, "a test"), Sheet()
    finished = SimpleNamespace(evaluation=evaluation, evaluated=evaluated)
    enter_quality(sheet, finished)
    record = evaluation_evidence(evaluation, finished)
    assert {name: metrics["auc"] for name, metrics in record["replicas"].items()} == {
        "trainer": 0.5,
        "mean": 0.875,
        "central": 1.0,
    }
    assert record["replicas"]["trainer"] == {name: sheet.metrics[name] for name in ("ne", "auc")}
    assert {name: record[name] for name in ("protocol", "samples", "clicks")} == {
        "protocol": "a test",
        "samples": 4,
        "clicks": 2,
    }


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_prediction_that_is_no_number_is_an_error_that_names_the_sample(bad):
    import torch

    from fsbench.errors import FsbenchError
    from fsbench.train.clicks import ClickThrough
    from fsbench.workload import Batch

    class Model:
        def logits(self, batch, rows):
            return torch.tensor([0.0, bad])

    evaluation = ClickThrough(None, np.array([True, False]), "none")
    with pytest.raises(FsbenchError, match="held-out sample 8: its logit is NaN or infinite"):
        evaluation.look(Model(), Batch(None, {}, {}), {}, np.array([7, 8]))


def jagged(rows):
    return Jagged(np.array([i for row in rows for i in row], np.int64), np.array([len(r) for r in rows], np.int64))


def count(scores, targets, seen):
    import torch

    from fsbench.train.ranking import count_ranks

    users = np.arange(len(targets))
    return count_ranks(torch.tensor(scores), np.array(targets), jagged(seen), users).tolist()


def test_seen_items_leave_the_ranking_but_the_target_never_does():
    scores = [[5.0, 4.0, 3.0, 3.0, 1.0]]
    assert count(scores, [2], [[]]) == [[2, 1, 2, 1]]
    assert count(scores, [2], [[0, 2, 0]]) == [[1, 1, 2, 1]]
    assert count(scores, [2], [[0, 1, 3]]) == [[0, 0, 2, 1]]


def test_constant_scores_give_the_analytic_expectation():
    users, items = 3, 40
    counts = np.array(count([[0.5] * items] * users, [0, 7, 39], [[], [], []]))
    expected = sum(1 / math.log2(place + 2) for place in range(10)) / items
    assert ranking_quality(counts[:, 2:]).ndcg.mean == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_an_error_that_names_the_user(bad):
    from fsbench.errors import FsbenchError

    with pytest.raises(FsbenchError, match="user 1: a score is NaN or infinite"):
        count([[0.0, 1.0], [0.0, bad]], [0, 0], [[], []])
