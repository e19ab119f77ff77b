"""Normalised entropy and AUC: against what they are defined as, slowly, and against torchrec where it is installed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.metrics.clicks import auc, normalised_entropy

LOGITS = st.floats(-12, 12) | st.sampled_from([-1.0, 0.0, 1.0])
SAMPLES = st.lists(st.tuples(LOGITS, st.booleans()), min_size=2, max_size=40).filter(
    lambda samples: len({clicked for _, clicked in samples}) == 2
)


def arrays(samples):
    return np.array([logit for logit, _ in samples], np.float64), np.array([clicked for _, clicked in samples], bool)


def slow_entropy(samples):
    """The mean log loss of the predicted probabilities, over that of always predicting the click rate."""

    def log_loss(probability, clicked):
        return -math.log(probability if clicked else 1 - probability)

    rate = sum(clicked for _, clicked in samples) / len(samples)
    model = sum(log_loss(1 / (1 + math.exp(-logit)), clicked) for logit, clicked in samples)
    return model / sum(log_loss(rate, clicked) for _, clicked in samples)


def slow_auc(samples):
    """Pair by pair."""
    pairs = [(mine, other) for mine, clicked in samples if clicked for other, clicked in samples if not clicked]
    return sum(1.0 if mine > other else 0.5 if mine == other else 0.0 for mine, other in pairs) / len(pairs)


@given(SAMPLES)
def test_both_are_what_they_are_defined_as(samples):
    assert normalised_entropy(*arrays(samples)) == pytest.approx(slow_entropy(samples), rel=1e-9)
    assert auc(*arrays(samples)) == pytest.approx(slow_auc(samples), rel=1e-12)


def test_normalised_entropy_is_torchrecs():
    torch = pytest.importorskip("torch")
    ne = pytest.importorskip("torchrec.metrics.ne")
    random = np.random.default_rng(0)
    logits, clicked = random.normal(size=500) * 2, random.random(500) < 0.3
    labels, weights = torch.tensor(clicked).double(), torch.ones(500, dtype=torch.float64)
    losses = ne.compute_cross_entropy(labels, torch.tensor(logits).sigmoid(), weights, eta=1e-12)
    theirs = ne.compute_ne(losses.sum(), weights.sum(), labels.sum(), (1 - labels).sum(), eta=1e-12)
    assert normalised_entropy(logits, clicked) == pytest.approx(float(theirs), rel=1e-9)


@given(st.integers(1, 99))
def test_always_predicting_the_click_rate_gives_1_and_chance(clicks):
    clicked = np.arange(100) < clicks
    logits = np.full(100, math.log(clicks / (100 - clicks)))
    assert normalised_entropy(logits, clicked) == pytest.approx(1, rel=1e-12)
    assert auc(logits, clicked) == 0.5


@given(SAMPLES)
def test_auc_follows_the_order_of_scores_alone_and_turns_round_with_it(samples):
    logits, clicked = arrays(samples)
    assert auc(np.exp(logits), clicked) == pytest.approx(slow_auc([(math.exp(z), c) for z, c in samples]))
    assert auc(-logits, clicked) == pytest.approx(1 - auc(logits, clicked))


def test_a_certain_prediction_that_is_right_costs_nothing_and_one_that_is_wrong_is_finite():
    clicked = np.array([True, False])
    assert normalised_entropy(np.array([1e4, -1e4]), clicked) == 0
    assert normalised_entropy(np.array([-1e4, 1e4]), clicked) == pytest.approx(1e4 / math.log(2))


@pytest.mark.parametrize("clicked", [[], [True], [False, False], [True, True, True]])
def test_labels_that_are_all_alike_give_no_figure(clicked):
    logits = np.zeros(len(clicked))
    assert normalised_entropy(logits, np.array(clicked, bool)) is None
    assert auc(logits, np.array(clicked, bool)) is None
