"""Elastic averaging, without processes: a replica and the central copy, against the two rules in numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tests.sync_rounds import Elastics, copies, few_examples, replicas  # noqa: E402

alphas = st.floats(0.05, 1.0)
orders = st.sampled_from(["push-pull", "symmetric"])
write_backs = st.sampled_from(["pull", "delta"])
seeds = st.integers(0, 1000)


def apart(seed, alpha, order, write_back="pull", servers=1):
    """One rank whose replica has moved away since the central copy started as it: that, and where the two are."""
    (value,) = values = replicas(1, seed)
    elastics, (central, moved) = Elastics(values, alpha, order, write_back, servers), replicas(2, seed + 1)
    elastics.exchanges[0].load_state_dict({"central": central})
    value.copy_(moved)
    return elastics, moved, central


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)


@few_examples
@given(seeds, alphas, orders, write_backs, st.integers(1, 4))
def test_a_round_moves_replica_and_central_copy_as_the_rule_says_whatever_is_learned_meanwhile(
    seed, alpha, order, write_back, servers
):
    elastics, sent, central = apart(seed, alpha, order, write_back, servers)
    (learned,) = replicas(1, seed + 2)
    w, c, u = sent.numpy(), central.numpy(), learned.numpy()
    pushed = (1 - alpha) * c + alpha * w
    target = pushed if order == "push-pull" else c
    expected = (1 - alpha) * (w + u) + alpha * target if write_back == "pull" else w + u + alpha * (target - w)
    assert elastics.meet(0, learned)
    np.testing.assert_allclose(elastics.values[0].numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(elastics.central.numpy(), pushed, atol=1e-12)


@few_examples
@given(seeds, alphas, orders)
def test_a_round_leaves_of_the_gap_what_its_order_does(seed, alpha, order):
    elastics, sent, central = apart(seed, alpha, order)
    elastics.round()
    factor = (1 - alpha) ** 2 if order == "push-pull" else 1 - 2 * alpha
    close(elastics.values[0] - elastics.central, factor * (sent - central))


@few_examples
@given(seeds, alphas, write_backs)
def test_the_symmetric_order_conserves_the_sum_and_push_pull_moves_it_by_alpha_squared_of_the_gap(
    seed, alpha, write_back
):
    for order, drift in (("symmetric", 0.0), ("push-pull", alpha**2)):
        elastics, sent, central = apart(seed, alpha, order, write_back)
        elastics.round()
        close(elastics.values[0] + elastics.central, sent + central + drift * (sent - central))


@few_examples
@given(seeds, alphas, orders)
def test_pull_keeps_1_minus_alpha_of_what_was_learned_meanwhile_and_delta_all_of_it(seed, alpha, order):
    (learned,) = replicas(1, seed + 2)
    for write_back, kept in (("pull", 1 - alpha), ("delta", 1.0)):
        still, *_ = apart(seed, alpha, order, write_back)
        busy, *_ = apart(seed, alpha, order, write_back)
        still.round()
        busy.round([learned])
        close(busy.values[0] - still.values[0], kept * learned)


@few_examples
@given(seeds)
def test_with_alpha_1_push_pull_leaves_the_replica_unmoved_and_the_symmetric_order_swaps_the_two(seed):
    elastics, sent, _ = apart(seed, 1.0, "push-pull")
    elastics.round()
    close(elastics.values[0], sent)
    close(elastics.central, sent)
    elastics, sent, central = apart(seed, 1.0, "symmetric")
    elastics.round()
    close(elastics.values[0], central)
    close(elastics.central, sent)


@few_examples
@given(seeds, alphas, orders, st.integers(2, 70))
def test_it_makes_no_difference_over_how_many_servers_the_copy_is_spread(seed, alpha, order, servers):
    alone, shared = replicas(3, seed), replicas(3, seed)
    ones, others = Elastics(alone, alpha, order), Elastics(shared, alpha, order, servers=servers)
    for number in range(3):
        learned = replicas(3, seed + number)
        ones.round(learned)
        others.round(learned)
    assert all(map(torch.equal, alone, shared))
    assert torch.equal(ones.central, others.central)


def test_the_central_copy_starts_as_the_parameters_that_come_first_and_who_comes_late_does_not_undo_what_it_learned():
    (initial,), (learned,) = replicas(1), replicas(1, 1)
    early, late = copies([initial, initial])
    elastics = Elastics([early])
    assert torch.equal(elastics.central, initial)
    early += learned
    elastics.round()
    elastics.join(late)
    assert torch.equal(late, initial)
    close(elastics.central, initial + 0.5 * learned)


@few_examples
@given(seeds, alphas, orders)
def test_ranks_learn_from_each_other_through_the_copy_alone(seed, alpha, order):
    """The second rank approaches what the first one left, in the order in which they came."""
    (initial,), (learned,) = replicas(1, seed), replicas(1, seed + 1)
    first, second = values = copies([initial, initial])
    elastics = Elastics(values, alpha, order)
    first += learned
    elastics.meet(0)
    close(second, initial)
    elastics.meet(1)
    of_first_in_copy = alpha * learned
    seen = (1 - alpha) * of_first_in_copy if order == "push-pull" else of_first_in_copy
    close(second, initial + alpha * seen)


@pytest.mark.parametrize("order", ["push-pull", "symmetric"])
def test_a_rank_that_stops_says_nothing_to_the_servers(order):
    elastics, sent, central = apart(0, 0.5, order)
    assert not elastics.meet(0, stopping=True)
    assert torch.equal(elastics.values[0], sent)
    assert torch.equal(elastics.central, central)


def test_the_spread_is_how_far_the_snapshot_is_from_what_came_back():
    elastics, sent, central = apart(0, 0.5, "symmetric")
    elastics.meet(0, measure=True)
    assert elastics.exchanges[0].spread == pytest.approx(float((sent - central).norm() / central.norm()))
    elastics.meet(0)
    assert elastics.exchanges[0].spread is None


@few_examples
@given(seeds, orders, st.integers(1, 3), st.integers(1, 3))
def test_resumed_from_its_state_on_any_number_of_servers_it_goes_on_as_if_unbroken(seed, order, before, after):
    unbroken, broken = replicas(2, seed), replicas(2, seed)
    straight = Elastics(unbroken, 0.3, order, "delta")
    first = Elastics(broken, 0.3, order, "delta", before)
    for number in range(3):
        straight.round(replicas(2, seed + number))
        first.round(replicas(2, seed + number))
    second = Elastics(broken, 0.3, order, "delta", after)
    for exchange in second.exchanges:
        exchange.load_state_dict(first.exchanges[0].state_dict())
    straight.round(replicas(2, seed + 9))
    second.round(replicas(2, seed + 9))
    assert all(map(torch.equal, unbroken, broken))
    assert torch.equal(straight.central, second.central)
