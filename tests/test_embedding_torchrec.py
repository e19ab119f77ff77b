"""torchrec's exchange equals the plain one to rounding, is observed as any other is, and trains from others' state."""

from __future__ import annotations

import importlib.util

import pytest

from fsbench.options import Spec
from fsbench.plugins import create
from tests import support

HERE = importlib.util.find_spec("torchrec") and importlib.util.find_spec("fbgemm_gpu")
needs_torchrec = pytest.mark.skipif(not HERE, reason="needs torchrec, not installed: make install-torchrec")
on_ranks = [needs_torchrec, pytest.mark.distributed, pytest.mark.timeout(120)]
pytestmark = on_ranks

EXACT = 1e-5
STRATEGIES = ("torchrec", "torchrec-pipelined")
OPTIMIZERS = ("sgd", "rowwise-adagrad")


def scripted(script, optimizer, tables=2):
    """In float32, which is all that torchrec has."""
    from tests.scripted import Scripted

    workload = Scripted(script, tables, optimizer)
    workload.options = Scripted.Options(dtype="float32")
    return workload


def train(rank, ranks, embedding, script, optimizer, steps, *, all_on=None, stop_at=None, then=None, folder=None):
    """What training leaves. With `stop_at`, through a checkpoint, which the embedding strategy `then` goes on from."""
    import torch

    from fsbench.train import checkpoint
    from fsbench.train.driver import Driver
    from fsbench.train.session import global_losses
    from fsbench.train.trainer import close_trainer

    def fresh(spec):
        chosen = None if all_on is None else support.AllOnOne(all_on)
        return support.open_workload(rank, ranks, scripted(script, optimizer), sharding_object=chosen, embedding=spec)

    trainer, first, losses = fresh(embedding), 0, []
    if stop_at is not None:
        driver = Driver(trainer, 0, stop_at)
        driver.run()
        losses = global_losses(driver)
        checkpoint.save(trainer, folder / "state", driver.step)
        close_trainer(trainer)
        trainer = fresh(then)
        first = checkpoint.load(trainer, folder / "state")
    driver = Driver(trainer, first, steps)
    driver.run()
    left = {
        "losses": losses + global_losses(driver),
        "tables": flat(trainer.strategies.embedding.state_dict()),
        "dense": torch.cat([tensor.flatten() for tensor in trainer.model.state_dict().values()]).numpy(),
        "sent": trainer.context.lanes["exchange"].log.sent(),
        "sequence": trainer.context.lanes["exchange"].log.sequence(),
        "evidence": trainer.strategies.embedding.evidence(),
    }
    close_trainer(trainer)
    return left


def flat(state):
    return {f"{table}.{name}": tensor.numpy().copy() for table, of in state.items() for name, tensor in of.items()}


def assert_equal(ours, reference, limit=EXACT):
    import numpy as np

    assert ours["losses"] == pytest.approx(reference["losses"], rel=limit, abs=limit * reference["losses"][0])
    assert ours["tables"].keys() == reference["tables"].keys()
    for name, values in {**reference["tables"], "dense": reference["dense"]}.items():
        found = ours["dense"] if name == "dense" else ours["tables"][name]
        assert np.linalg.norm(found - values) <= limit * np.linalg.norm(values), name


@pytest.fixture(scope="module")
def four_ranks():
    """A pool of four ranks."""
    from fsbench.testing.pool import RankPool

    pool = RankPool(4)
    yield pool
    pool.close()


# equality with plain


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_fifty_steps_equal_plain_with_every_optimizer_on_every_pattern_of_ids(four_ranks, count):
    """Repeated IDs, ranks without one, one row that all want, rows that come back: the script changes on the way."""
    for optimizer in OPTIMIZERS:
        plain = four_ranks.run(train, count, "plain", "varied", optimizer, 50)
        for strategy in STRATEGIES:
            ours = four_ranks.run(train, count, strategy, "varied", optimizer, 50)
            for one, reference in zip(ours, plain, strict=True):
                assert_equal(one, reference)


@pytest.mark.parametrize(
    "spec", ["torchrec:dedup=false", "torchrec:sharding=planner", "torchrec-pipelined:dedup=false"]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_options_that_move_other_bytes_change_no_result(ranks, spec, optimizer):
    plain = ranks.run(train, 3, "plain", "one_row", optimizer, 50)
    for ours, reference in zip(ranks.run(train, 3, spec, "one_row", optimizer, 50), plain, strict=True):
        assert_equal(ours, reference)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_rank_that_has_every_sample_trains_as_with_plain(ranks, strategy):
    plain = ranks.run(_on_one, 3, "plain")
    for ours, reference in zip(ranks.run(_on_one, 3, strategy), plain, strict=True):
        assert_equal(ours, reference)


def _on_one(rank, ranks, embedding):
    return train(rank, ranks, embedding, "returning", "rowwise-adagrad", 12, all_on=1)


def undivided(rank, ranks):
    from torchrec.distributed import comm_ops

    comm_ops.set_gradient_division(False)
    try:
        return train(rank, ranks, "torchrec", "returning", "sgd", 12)
    finally:
        comm_ops.set_gradient_division(True)


def test_gradients_have_one_scale_whether_torchrec_divides_them_or_not(ranks):
    for ours, reference in zip(
        ranks.run(undivided, 3), ranks.run(train, 3, "plain", "returning", "sgd", 12), strict=True
    ):
        assert_equal(ours, reference)


def train_a_real_model(rank, ranks, embedding):
    """A SASRec whose table is called `items`, a name that torchrec's modules cannot bear."""
    from fsbench.train.driver import Driver
    from fsbench.train.session import global_losses
    from fsbench.train.trainer import close_trainer

    workload = support.with_options(support.TINY_LONG, dtype="float32", table_optimizer="rowwise-adagrad")
    trainer = support.open_cell(rank, ranks, workload, sharding="cost-aware", embedding=embedding)
    driver = Driver(trainer, 0, 20)
    driver.run()
    losses = global_losses(driver)
    close_trainer(trainer)
    return losses


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sequence_model_with_moving_samples_follows_the_losses_of_plain(ranks, strategy):
    plain = ranks.run(train_a_real_model, 2, "plain")[0]
    assert ranks.run(train_a_real_model, 2, strategy)[0] == pytest.approx(plain, rel=1e-4)


# the pipeline


def by_torchrec_alone(rank, ranks, optimizer, steps):
    """Losses a target of ours and of torchrec's own pipeline, from one state."""
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer
    from tests import torchrec_pipeline

    workload = scripted("returning", optimizer)
    trainer = support.open_workload(rank, ranks, workload, embedding="torchrec-pipelined")
    tables = trainer.strategies.embedding.state_dict()
    dense = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    driver = Driver(trainer, 0, steps)
    driver.run()
    ours = sum_over_ranks(driver.losses)
    close_trainer(trainer)
    return ours, torchrec_pipeline.train(rank, ranks, workload, tables, dense, steps)


def sum_over_ranks(losses):
    import torch
    import torch.distributed as dist

    total = torch.stack(losses).double()
    dist.all_reduce(total)
    return total.tolist()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_losses_equal_those_of_torchrecs_own_pipeline(ranks, optimizer, count):
    ours, theirs = ranks.run(by_torchrec_alone, count, optimizer, 20)[0]
    assert len(theirs) == 20
    assert theirs[-1] < theirs[0]
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_ids_of_the_next_batch_leave_behind_this_one_and_in_the_order_of_torchrecs_pipeline(ranks):
    def kinds(strategy):
        sequence = ranks.run(train, 2, strategy, "returning", "sgd", 3)[0]["sequence"]
        return [kind for name, kind, _ in sequence if name == "all_to_all"]

    counts = lengths = values = "ids"
    assert kinds("torchrec") == [counts, lengths, values, "rows", "gradients"] * 3
    first = [counts, lengths, values]
    middle = [counts, "rows", lengths, values, "gradients"]
    assert kinds("torchrec-pipelined") == [*first, *middle, *middle, "rows", "gradients"]


# what is observed


def observe(rank, ranks, embedding):
    """By step: labels of the main thread with their nanoseconds; and on which lanes it waited."""
    from fsbench.metrics.trace import LABELS
    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer

    trainer = support.open_workload(rank, ranks, scripted("same", "sgd"), embedding=embedding)
    Driver(trainer, 0, 4).run()
    timeline = trainer.context.timeline
    trace = timeline.trace()
    waits = [
        {timeline.lanes[lane] for lane in trace.lanes[trace.step_of == step].tolist() if lane >= 0} for step in range(4)
    ]
    labels = {LABELS[label] for label in trace.labels.tolist()}
    threads = trainer.context.lanes["exchange"].log.operations()
    close_trainer(trainer)
    return waits, labels, threads


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_waits_of_the_main_thread_are_those_of_the_lane(ranks, strategy):
    for waits, labels, operations in ranks.run(observe, 2, strategy):
        assert all("exchange" in lanes for lanes in waits)
        assert {"strategy", "wait", "compute"} <= labels
        assert operations["all_to_all rows"] == operations["all_to_all gradients"] == 4


def test_bytes_are_those_of_each_row_once_or_of_every_id(ranks):
    once = ranks.run(train, 2, "torchrec", "all_equal", "sgd", 4)[0]["sent"]
    each = ranks.run(train, 2, "torchrec:dedup=false", "all_equal", "sgd", 4)[0]["sent"]
    plain = ranks.run(train, 2, "plain", "all_equal", "sgd", 4)
    assert once["gradients"] == 4 * 4 * 4  # row 17 is on rank 0, its mirror image on rank 1: one row a step
    assert each["gradients"] == once["gradients"] * 6  # samples of this rank have 1, 2 and 3 IDs
    # plain shards by a hash, so that other ranks own the rows
    assert sum(rank["sent"]["gradients"] for rank in plain) == 2 * once["gradients"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_narrower_rows_and_gradients_halve_the_bytes_and_are_not_called_exact(ranks, precision):
    exact = ranks.run(train, 2, "torchrec", "returning", "rowwise-adagrad", 12)
    narrow = ranks.run(train, 2, f"torchrec:qcomm={precision}", "returning", "rowwise-adagrad", 12)
    for ours, reference in zip(narrow, exact, strict=True):
        for kind in ("rows", "gradients"):
            assert 2 * ours["sent"][kind] == reference["sent"][kind] > 0
        assert_equal(ours, reference, limit=3e-2)
        with pytest.raises(AssertionError):
            assert_equal(ours, reference)


def test_only_fp32_is_called_exact():
    exact = {
        precision: create("embedding", Spec.parse(f"torchrec:qcomm={precision}")).exact
        for precision in ("fp32", "bf16", "fp16")
    }
    assert exact == {"fp32": True, "bf16": False, "fp16": False}


def test_the_plan_is_in_the_evidence(ranks):
    rows = ranks.run(train, 2, "torchrec", "same", "sgd", 1)[0]["evidence"]
    planned = ranks.run(train, 2, "torchrec:sharding=planner", "same", "sgd", 1)
    assert rows == {"plan": {"t0": "row_wise", "t1": "row_wise"}}
    assert planned[0]["evidence"] == planned[1]["evidence"]
    assert set(planned[0]["evidence"]["plan"].values()) <= {"row_wise", "table_wise"}


# state


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("plain", "torchrec"),
        ("torchrec", "plain"),
        ("prioritized", "torchrec"),
        ("torchrec:sharding=planner", "torchrec-pipelined"),
    ],
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_checkpoint_of_one_strategy_goes_on_with_another(ranks, tmp_path, before, after, optimizer):
    unbroken = ranks.run(train, 3, "plain", "returning", optimizer, 12)
    broken = ranks.run(_resumed, 3, before, after, optimizer, tmp_path)
    for ours, reference in zip(broken, unbroken, strict=True):
        assert_equal(ours, reference)


def _resumed(rank, ranks, before, after, optimizer, folder):
    return train(rank, ranks, before, "returning", optimizer, 12, stop_at=5, then=after, folder=folder)


def load_into_a_collection(rank, ranks, embedding):
    """Rows that torchrec's unsharded collection gives after it took the strategy's state, and the state's own."""
    import torch
    from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor

    from fsbench.train.driver import Driver
    from fsbench.train.trainer import close_trainer
    from tests.scripted import DIM, ROWS

    trainer = support.open_workload(rank, ranks, scripted("same", "rowwise-adagrad"), embedding=embedding)
    Driver(trainer, 0, 3).run()
    state = trainer.strategies.embedding.state_dict()
    close_trainer(trainer)
    names = list(state)
    configs = [EmbeddingConfig(name=n, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[n]) for n in names]
    collection = EmbeddingCollection(tables=configs)
    collection.load_state_dict({f"embeddings.{name}.weight": parts["weight"] for name, parts in state.items()})
    ids = torch.tensor([5, 59, 0, 5])
    wanted = KeyedJaggedTensor(keys=names, values=ids.repeat(len(names)), lengths=torch.tensor([4] * len(names)))
    rows = collection(wanted)
    return [(rows[n].values().tolist(), state[n]["weight"][ids].tolist()) for n in names]


@pytest.mark.parametrize("embedding", ["plain", "torchrec"])
def test_the_state_loads_into_torchrecs_unsharded_collection(ranks, embedding):
    for theirs, ours in ranks.run(load_into_a_collection, 2, embedding)[0]:
        assert theirs == ours


def load_another_optimizers(rank, ranks):
    from fsbench.train.trainer import close_trainer

    trainers = [
        support.open_workload(rank, ranks, scripted("same", optimizer), embedding="torchrec")
        for optimizer in OPTIMIZERS
    ]
    state = trainers[0].strategies.embedding.state_dict()
    try:
        trainers[1].strategies.embedding.load_state_dict(state)
        message = "no error"
    except ValueError as error:
        message = str(error)
    for trainer in trainers:
        close_trainer(trainer)
    return message


def test_a_state_of_another_optimizer_is_refused(ranks):
    assert ranks.run(load_another_optimizers, 1) == [
        "table t0: the checkpoint holds ['weight'], optimizer rowwise-adagrad needs ['sum', 'weight']"
    ]


# tables of every shape


def shapes(rank, ranks, embedding):
    """Tables of several dimensions, optimizers and sizes, some with fewer rows than there are ranks."""
    import torch

    from fsbench.axes import TableSpec, TargetCounts
    from fsbench.train.trainer import close_trainer

    trainer = support.open_workload(rank, ranks, scripted("same", "sgd"), embedding="plain")
    specs = [
        TableSpec("one", 1, 4, "sgd", 0.1),
        TableSpec("two", 2, 8, "rowwise-adagrad", 0.1),
        TableSpec("values", 70_000, 4, "rowwise-adagrad", 0.2),
        TableSpec("items", 7, 4, "sgd", 0.3),
    ]
    strategy = create("embedding", Spec.parse(embedding))
    strategy.setup(trainer.context)
    strategy.build(specs)
    for step in range(3):
        ids = {spec.name: (torch.arange(5) * 7919 + rank + step) % spec.rows for spec in specs}
        ids["one"], ids["items"] = ids["one"][: rank * 5], ids["items"][: step * 5]
        rows = strategy.lookup(step, ids)
        loss = torch.stack([part.square().sum() * (place + 1) for place, part in enumerate(rows.values())]).sum()
        assert list(rows) == list(ids)
        loss.backward()
        strategy.update(step, TargetCounts(10, 5))
    left = flat(strategy.state_dict())
    close_trainer(trainer)
    return left


@pytest.mark.parametrize("spec", ["torchrec", "torchrec:sharding=planner", "torchrec:dedup=false"])
def test_tables_of_any_name_size_dimension_and_optimizer_beside_each_other(ranks, spec):
    import numpy as np

    plain, ours = ranks.run(shapes, 3, "plain")[0], ranks.run(shapes, 3, spec)
    for rank in range(3):
        for name, values in plain.items():
            assert np.linalg.norm(ours[rank][name] - values) <= EXACT * np.linalg.norm(values), name


# where it cannot run


def test_what_torchrec_cannot_do_is_unsupported_with_the_reason(ranks):
    from fsbench.testing.pool import TaskFailed

    wrong = {
        "lazy-adam": "optimizer lazy-adam of table items; it can do sgd, rowwise-adagrad",
        "float64": "dtype float64 of table items; it can do float32",
    }
    for what, reason in wrong.items():
        with pytest.raises(TaskFailed, match=f"embedding TorchRec: {reason}") as failed:
            ranks.run(open_with, 2, what)
        assert failed.value.unsupported


def open_with(rank, ranks, what):
    options = {"dtype": "float32", "table_optimizer": "sgd"}
    options |= {"dtype": what} if what == "float64" else {"table_optimizer": what}
    support.open_cell(rank, ranks, support.with_options(support.TINY_LONG, **options), embedding="torchrec")
