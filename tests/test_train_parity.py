"""Training is the same whoever trains which sample, on however many ranks."""

from __future__ import annotations

import pytest

from tests import support

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

SGD = support.TINY_LONG + ",table_optimizer=sgd,table_lr=1"


class PairedOnOne(support.AllOnOne):
    """Reads what `local-pairs` reads at a window of 2, and gives every sample to one rank."""

    def reads(self, loader):
        from fsbench_strategies.sharding.local_pairs import LocalPairs

        return LocalPairs(LocalPairs.Options(window=2)).reads(loader)


def one_step_gradients(rank, ranks, sharding, chosen=None, workload=SGD, data_dir=None):
    """After one step: the all-reduced dense gradient, what the tables lost (their gradient at rate 1), and how many
    samples changed rank. `chosen` stands in for `sharding`."""
    import torch

    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, workload, data_dir, sharding_object=chosen, sharding=sharding)
    before = trainer.strategies.embedding.state_dict()["items"]["weight"].clone()
    gradients = []

    def keep_gradients(*_):
        gradients.append(torch.cat([p.grad.flatten().clone() for p in trainer.model.parameters()]))

    trainer.optimizer.register_step_pre_hook(keep_gradients)
    driver = Driver(trainer, 0, 1)
    driver.run()
    after = trainer.strategies.embedding.state_dict()["items"]["weight"]
    close_trainer(trainer)
    return gradients[0].numpy(), (before - after).numpy(), driver.stats[0].moved


def assert_equal_in_norm(left, right, limit):
    import numpy as np

    for a, b in zip(left[:2], right[:2], strict=True):
        assert np.linalg.norm(b) > 0
        assert np.linalg.norm(a - b) <= limit * np.linalg.norm(b)


@pytest.fixture(scope="module")
def naive(ranks):
    """Gradients in arrival order, by number of ranks."""
    return {count: ranks.run(one_step_gradients, count, "naive") for count in (2, 3)}


MOVING = ["snake", "variable-batch", "karmarkar-karp", "lpt", "lpt:counts=free", "cost-aware", "cost-aware:counts=free"]


@pytest.mark.parametrize(("sharding", "count"), [*((sharding, 3) for sharding in MOVING), ("cost-aware", 2)])
def test_whoever_trains_which_sample_the_global_batch_has_the_same_gradients(ranks, naive, sharding, count):
    balanced = ranks.run(one_step_gradients, count, sharding)
    assert balanced[0][2] > 0
    for rank in range(count):
        assert_equal_in_norm(balanced[rank], naive[count][0], 1e-12)


@pytest.mark.parametrize("count", [2, 3])
def test_all_ranks_end_with_the_same_gradients(naive, count):
    assert naive[count][0][2] == 0
    for rank in range(count):
        assert_equal_in_norm(naive[count][rank], naive[count][0], 1e-15)


@pytest.mark.parametrize("holder", [0, 2])
def test_ranks_without_a_sample_change_nothing(ranks, naive, holder):
    lopsided = ranks.run(one_step_gradients, 3, "naive", support.AllOnOne(holder))[0]
    assert_equal_in_norm(lopsided, naive[3][0], 1e-12)


def test_local_pairs_has_the_gradients_of_the_samples_that_it_trains_in_the_step(ranks, naive):
    """They are other samples than those of arrival order; at a window of 1 they are the same."""
    apart = ranks.run(one_step_gradients, 3, "local-pairs:window=2")[0]
    on_one = ranks.run(one_step_gradients, 3, "naive", PairedOnOne(1))[0]
    assert_equal_in_norm(apart, on_one, 1e-12)
    with pytest.raises(AssertionError):
        assert_equal_in_norm(apart, naive[3][0], 1e-3)
    assert_equal_in_norm(ranks.run(one_step_gradients, 3, "local-pairs:window=1")[0], naive[3][0], 1e-15)


def loss_curve(rank, ranks, batch, steps, optimizer):
    from fsbench.train.driver import Driver
    from fsbench.train.session import global_losses
    from fsbench.train.trainer import close_trainer

    workload = support.TINY_LONG.replace("batch=4", f"batch={batch}") + f",table_optimizer={optimizer}"
    trainer = support.open_cell(rank, ranks, workload, sharding="cost-aware")
    driver = Driver(trainer, 0, steps)
    driver.run()
    losses = global_losses(driver)
    close_trainer(trainer)
    return losses


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise-adagrad", "lazy-adam"])
def test_two_ranks_follow_the_loss_curve_of_one(ranks, optimizer):
    alone = ranks.run(loss_curve, 1, 8, 20, optimizer)[0]
    together = ranks.run(loss_curve, 2, 4, 20, optimizer)
    assert len(alone) == 20
    assert together[0] == together[1]
    assert together[0] == pytest.approx(alone, rel=1e-9, abs=0)
    assert alone[-1] < alone[0]


def train_in_buckets(rank, ranks, bucket):
    from fsbench.train.driver import Driver
    from fsbench.train.session import global_losses
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, sync=f"allreduce:bucket={bucket}", sharding_object=support.AllOnOne(0))
    driver = Driver(trainer, 0, 5)
    driver.run()
    sent = trainer.context.lanes["dense"].log.operations()["all_reduce dense"]
    losses = global_losses(driver)
    close_trainer(trainer)
    return losses, sent


def test_dense_gradients_in_many_buckets_equal_those_in_one_also_where_a_rank_has_no_sample(ranks):
    one = ranks.run(train_in_buckets, 2, "1GiB")
    many = ranks.run(train_in_buckets, 2, "64")
    assert one[0][1] == 5
    assert many[0][1] == many[1][1] > 5 * 4
    assert many[0][0] == one[0][0]


EMPTY_AND_SHORT = [
    # user 1 has one event, user 2 two, users 3 to 6 enough to be split; user 5 sees one item only
    (1, 7, 10),
    *((2, item, item) for item in (1, 2)),
    *((3, item, 10 * item) for item in (1, 2, 3, 4, 5)),
    *((4, item, 20 * item) for item in (5, 4, 3)),
    *((5, 2, time) for time in (1, 2, 3, 4)),
    *((6, item, 5 * item) for item in (7, 1, 3, 2)),
]
TINY_ML = f"ml-100k:batch=2,{support.TINY},table_optimizer=sgd,table_lr=1"


def test_histories_of_no_and_of_one_event_train_beside_others(ranks, tmp_path):
    folder = support.write_ratings(tmp_path, EMPTY_AND_SHORT)
    naive = ranks.run(one_step_gradients, 3, "naive", None, TINY_ML, folder)[0]
    balanced = ranks.run(one_step_gradients, 3, "cost-aware", None, TINY_ML, folder)[0]
    assert_equal_in_norm(balanced, naive, 1e-12)


def test_a_catalogue_of_one_item_trains(ranks, tmp_path):
    """All IDs are equal, and every negative is the target itself: there is nothing to learn, and nothing breaks."""
    import numpy as np

    rows = [(user, 1, time) for user in range(1, 5) for time in range(4)]
    folder = support.write_ratings(tmp_path, rows)
    dense, table, _ = ranks.run(one_step_gradients, 2, "cost-aware", None, TINY_ML, folder)[0]
    assert not np.isnan(dense).any()
    assert not dense.any()
    assert not table.any()


def resumed_losses(rank, ranks, folder, steps, stop):
    """Losses of `steps` steps, with a checkpoint, a fresh trainer and a resume after `stop` of them."""
    from fsbench.train import checkpoint
    from fsbench.train.driver import Driver
    from fsbench.train.session import global_losses
    from fsbench.train.trainer import close_trainer

    first = support.open_cell(rank, ranks, sharding="cost-aware")
    driver = Driver(first, 0, stop)
    driver.run()
    checkpoint.save(first, folder / "state.pt", driver.step)
    head = global_losses(driver)
    close_trainer(first)
    second = support.open_cell(rank, ranks, sharding="cost-aware", seed=99)
    second.workload.prepare(None, 3)
    driver = Driver(second, checkpoint.load(second, folder / "state.pt"), steps)
    driver.run()
    tail = global_losses(driver)
    close_trainer(second)
    return head + tail


def test_a_resumed_run_is_bit_equal_to_an_unbroken_one(ranks, tmp_path):
    unbroken = ranks.run(loss_curve, 2, 4, 8, "lazy-adam")[0]
    assert ranks.run(resumed_losses, 2, tmp_path, 8, 5)[0] == unbroken
