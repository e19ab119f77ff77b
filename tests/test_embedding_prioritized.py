"""Prioritised exchange equals the plain one, bit for bit: losses, tables, optimizer state, dense weights."""

from __future__ import annotations

import threading

import pytest

from tests import support
from tests.scripted import assert_same_bits, train_scripted

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


def train(rank, ranks, embedding, *, steps=50, evaluate_at=None, sharding="cost-aware", all_on=None, **options):
    """Everything that training leaves behind, after `steps` steps."""
    from fsbench.train.driver import Driver
    from fsbench.train.evaluation import evaluate
    from fsbench.train.session import global_losses
    from fsbench.train.trainer import close_trainer

    chosen = None if all_on is None else support.AllOnOne(all_on)
    workload = support.with_options(support.TINY_LONG, **options)
    trainer = support.open_cell(rank, ranks, workload, sharding_object=chosen, sharding=sharding, embedding=embedding)
    driver = Driver(trainer, 0, steps)
    counts = []

    def count_ranks(step):
        if step == evaluate_at:
            counts.append(evaluate(trainer, trainer.workload.evaluation())[:, :2])

    driver.run(count_ranks)
    tables = trainer.strategies.embedding.state_dict()["items"]
    left = {
        "losses": global_losses(driver),
        "tables": {name: tensor.numpy() for name, tensor in tables.items()},
        "dense": {name: tensor.numpy() for name, tensor in trainer.model.state_dict().items()},
        "counts": counts,
        "moved": sum(step.moved for step in driver.stats),
    }
    close_trainer(trainer)
    return left


def compare(ranks, count, **how):
    call = lambda embedding: ranks.run(_call, count, embedding, how, limit_s=60)  # noqa: E731
    plain, prioritized = call("plain"), call("prioritized:check=true")
    for rank in range(count):
        assert_same_bits(prioritized[rank], plain[rank])
    return plain[0]


def _call(rank, ranks, embedding, how):
    return train(rank, ranks, embedding, **how)


@pytest.mark.parametrize(
    ("count", "sharding", "optimizer"), [(2, "naive", "lazy-adam"), (3, "cost-aware", "rowwise-adagrad")]
)
def test_fifty_steps_are_bit_equal_to_plain(ranks, optimizer, count, sharding):
    reference = compare(
        ranks, count, sharding=sharding, table_optimizer=optimizer, items=3000, categories=50, max_len=60
    )
    assert (reference["moved"] > 0) == (sharding == "cost-aware")
    assert reference["losses"][-1] != reference["losses"][0]


def test_an_evaluation_in_the_middle_changes_nothing_and_sees_every_update(ranks):
    with_one = compare(ranks, 2, evaluate_at=25, items=500)
    without = ranks.run(_call, 2, "prioritized", {"items": 500})[0]
    assert len(with_one["counts"]) == 1
    assert with_one["losses"] == without["losses"]


@pytest.mark.parametrize("holder", [0, 2])
def test_ranks_without_a_sample_take_part(ranks, holder):
    compare(ranks, 3, steps=8, all_on=holder)


@pytest.mark.parametrize("stop_at", [1, 5, 11])
def test_a_checkpoint_and_a_resume_in_the_middle_are_bit_equal(ranks, tmp_path, stop_at):
    unbroken = ranks.run(train_scripted, 2, "plain", "returning", 2, "lazy-adam", 12)
    broken = ranks.run(train_scripted, 2, "prioritized:check=true", "returning", 2, "lazy-adam", 12, stop_at, tmp_path)
    for ours, reference in zip(broken, unbroken, strict=True):
        assert_same_bits(ours, reference)


def train_without_a_table(rank, ranks, embedding):
    """Some batches lack table `t1`; updates on `exchange` let the next read on `critical` pass, if it would."""
    from fsbench.train.driver import Driver
    from tests.scripted import Absent, left_behind

    workload = Absent("same", "sgd", ranks, empty=False)
    with support.opened_cell(rank, ranks, workload, embedding=embedding) as trainer:
        if embedding != "plain":
            for table in trainer.strategies.embedding._tables.values():
                let_reads_pass(table)
        driver = Driver(trainer, 0, 10)
        driver.run()
        return left_behind(trainer, driver)


def let_reads_pass(table):
    passed, read, update = threading.Event(), table.read_shared, table.update_rest

    def read_shared(met):
        rows = read(met)
        passed.set()
        return rows

    def update_rest(met, gradients, scale):
        passed.clear()
        passed.wait(0.05)
        update(met, gradients, scale)

    table.read_shared, table.update_rest = read_shared, update_rest


def test_a_table_that_comes_back_is_read_behind_its_last_update_however_late_that_is(ranks):
    plain, late = (ranks.run(train_without_a_table, 2, name) for name in ("plain", "prioritized:check=true"))
    for ours, reference in zip(late, plain, strict=True):
        assert_same_bits(ours, reference)


def classes_of(rank, ranks, script):
    """Bytes by kind, of all lanes."""
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer
    from tests.scripted import Scripted

    workload = Scripted(script, 1, "sgd")
    trainer = support.open_workload(rank, ranks, workload, embedding="prioritized")
    Driver(trainer, 0, 6).run()
    kinds = sorted(set().union(*(lane.log.kinds() for lane in trainer.context.lanes.values())))
    sent = dict.fromkeys(kinds, 0)
    for lane in trainer.context.lanes.values():
        ops = lane.log.arrays(kinds)
        for kind, size in zip(ops.kinds.tolist(), ops.bytes_sent.tolist(), strict=True):
            sent[kinds[kind]] += size
    close_trainer(trainer)
    return sent


def test_rows_that_never_collide_travel_as_exclusive_and_those_that_always_do_as_collision(ranks):
    never = ranks.run(classes_of, 2, "disjoint")[0]
    always = ranks.run(classes_of, 2, "same")[0]
    assert never["gradients.collision"] == 0
    assert never["rows.exclusive"] > 0
    assert always["rows.exclusive"] == 0
    assert always["gradients.collision"] > 0
    # the first batch is all collision, after the last one all gradients are exclusive
    assert never["rows.collision"] > 0
    assert always["gradients.exclusive"] > 0


def violated(rank, ranks):
    import torch

    from fsbench_strategies.embedding.checks import ReadAfterWrite
    from fsbench_strategies.embedding.classes import Bits

    checks = ReadAfterWrite(10)
    slots, none = torch.tensor([3, 4]), torch.zeros(2, dtype=torch.bool)
    checks.expect(0, slots, None, Bits(~none, ~none))
    checks.read(0, slots)
    messages = []
    try:
        checks.expect(1, slots, slots, Bits(none, none))
    except AssertionError as error:
        messages.append(str(error))
    checks.expect(1, slots, slots, Bits(~none, ~none))
    for act in (lambda: checks.read(1, slots), lambda: checks.written(0, slots), lambda: checks.written(0, slots)):
        try:
            act()
        except AssertionError as error:
            messages.append(str(error))
    checks.read(1, slots)
    return messages


def test_debug_mode_notices_a_wrong_class_an_early_read_and_a_double_update(ranks):
    assert ranks.run(violated, 1)[0] == [
        "step 1: a row is in the wrong class",
        "step 1: row in slot 3 is read before its last write",
        "step 0: row in slot 3 is updated twice",
    ]
