"""Worker threads over one copy of the dense parameters, on real ranks."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests import support  # noqa: E402
from tests.test_embedding_parameter_server import all_updates  # noqa: E402

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]
DENSE = "dense:batch=4,inputs=6,hidden=5,layers=1,dtype=float64"
CTR = "ctr:batch=4,rows=50,dim=4,hidden=8,eval_samples=100"


def prepared(workload=DENSE):
    from fsbench.options import Spec
    from fsbench.plugins import create

    made = create("workloads", Spec.parse(workload))
    made.prepare(None, 3)
    return made


def train(trainer, steps, first=0):
    """All members of a crew, as a run does it; returns their drivers."""
    from fsbench.train.driver import Driver

    drivers = [Driver(member, first, steps) for member in trainer.members]
    trainer.crew.run(drivers, lambda done: None)
    return drivers


def flat(model):
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def addresses(model):
    return [p.data_ptr() for p in model.parameters()]


@contextlib.contextmanager
def one_step_at_a_time(members):
    """Optimizers step in turn, so that no update is lost to a race; nothing else does."""
    lock = threading.Lock()
    hooks = []
    for member in members:
        hooks.append(member.optimizer.register_step_pre_hook(lambda *_: lock.acquire() and None))
        hooks.append(member.optimizer.register_step_post_hook(lambda *_: lock.release()))
    yield
    for hook in hooks:
        hook.remove()


def loaded(rank, ranks, workers, steps):
    """What each worker of this rank trains in each step, as sample numbers; and what torch threads it has."""
    with support.opened_cell(rank, ranks, prepared(), workers=workers, sync="none") as trainer:
        seen = [[] for _ in trainer.members]
        for member, own in zip(trainer.members, seen, strict=True):
            member.model.register_forward_pre_hook(
                lambda _, inputs, own=own: own.append((inputs[0].samples.index.tolist(), torch.get_num_threads()))
            )
        train(trainer, steps)
        return seen


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_train_what_as_many_ranks_would_load_each_its_own_share_with_one_torch_thread(ranks, workers):
    steps, workload = 3, prepared()
    everyone = [worker for of_rank in ranks.run(loaded, 2, workers, steps) for worker in of_rank]
    assert len(everyone) == 2 * workers
    for reader, worker in enumerate(everyone):
        share = [workload.load(step, reader, 2 * workers).index.tolist() for step in range(steps)]
        assert worker == [(samples, 1) for samples in share]


def share(rank, ranks, sync):
    with support.opened_cell(rank, ranks, prepared(), workers=3, sync=sync) as trainer:
        first, *others = trainer.members
        at = addresses(first.model)
        before = flat(first.model)
        train(trainer, 6)
        trainer.strategies.sync.replicas()
        return {
            "same place": [addresses(member.model) == at for member in trainer.members],
            "same numbers": [np.array_equal(flat(member.model), flat(trainer.model)) for member in others],
            "learned": not np.array_equal(before, flat(trainer.model)),
            "own gradients": len({id(p.grad) for m in trainer.members for p in m.model.parameters()}),
            "own optimizers": len({id(member.optimizer) for member in trainer.members}),
            "parameters": len(at),
        }


@pytest.mark.parametrize("sync", ["none", "shadow-ma:duty=1", "fr-ma:every=4"])
def test_models_of_all_workers_lie_in_one_place_for_good_and_have_gradients_and_optimizers_of_their_own(ranks, sync):
    for found in ranks.run(share, 2, sync):
        assert found["same place"] == [True] * 3
        assert found["same numbers"] == [True] * 2
        assert found["learned"]
        assert found["own gradients"] == 3 * found["parameters"]
        assert found["own optimizers"] == 3


def write_between(rank, ranks):
    """A step of one worker between forward and backward of another, whose gradient is of what it saw in its forward."""
    with support.opened_cell(rank, ranks, prepared(), workers=2, sync="none") as trainer:
        first, second = trainer.members
        batch = trainer.workload.build_batch(trainer.workload.load(0, 0, 1), torch.float64)
        second.model(batch, {}).backward()
        first.model(batch, {})  # warm
        loss = first.model(batch, {})
        before = flat(first.model)
        second.optimizer.step()
        loss.backward()
        return before.tolist() == flat(first.model).tolist(), [p.grad.norm().item() for p in first.model.parameters()]


def test_a_step_of_another_worker_between_forward_and_backward_does_not_raise(ranks):
    ((unmoved, gradients),) = ranks.run(write_between, 1)
    assert not unmoved
    assert min(gradients) > 0


class OwnPlace(torch.nn.Module):
    """The loss is linear: gradients do not depend on the weights, so neither does it matter who comes first."""

    def __init__(self, dtype):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(7, dtype=dtype))

    def forward(self, batch, rows):
        places = torch.from_numpy(batch.samples.index) % 7
        return self.weights[places].sum()


def train_linear(rank, ranks, workers, steps):
    """Weights before and after, of a rank whose workers' steps all count."""
    workload = prepared()
    workload.build_model = OwnPlace
    with support.opened_cell(rank, ranks, workload, workers=workers, sync="none") as trainer:
        before = flat(trainer.model)
        with one_step_at_a_time(trainer.members):
            train(trainer, steps)
        return before, flat(trainer.model)


def test_each_worker_divides_its_gradients_by_its_own_targets_and_all_of_them_move_the_one_copy(ranks):
    workers, steps, workload = 3, 4, prepared()
    for rank, (before, after) in enumerate(ranks.run(train_linear, 2, workers, steps)):
        expected = before.copy()
        for step in range(steps):
            for worker in range(workers):
                index = workload.load(step, rank * workers + worker, 2 * workers).index
                np.subtract.at(expected, index % 7, workload.options.lr / len(index))
        np.testing.assert_allclose(after, expected, rtol=1e-12)


def train_tables(rank, ranks, workers, embedding, steps):
    """Table t0 before and after; and what the last of the workers' rows lacked."""
    from tests.scripted import Linear

    workload = Linear("drifting", 1, "sgd")
    cell = {"embedding": embedding, "sync": "none", "workers": workers}
    with support.opened_cell(rank, ranks, workload, **cell) as trainer:
        tables = trainer.strategies.embedding
        initial = tables.state_dict()["t0"]["weight"].numpy()
        train(trainer, steps)
        asked = [sum(map(sum, member.strategies.embedding.rows_asked())) for member in trainer.members]
        lanes = len(trainer.lanes)
        return initial, tables.state_dict()["t0"]["weight"].numpy(), asked, lanes


@pytest.mark.parametrize("prefetch", [0, 1])
def test_every_update_of_every_worker_arrives_once_at_the_servers_on_lanes_of_its_own(ranks, prefetch):
    embedding = f"parameter-server:servers=2,prefetch={prefetch}"
    for initial, final, asked, lanes in ranks.run(train_tables, 2, 2, embedding, 7):
        np.testing.assert_allclose(final, initial + all_updates(4, "drifting", 7), rtol=1e-12, atol=1e-14)
        assert min(asked) > 0
        assert lanes == 2 + 2 + 1 + 2  # control and shuffle; a worker's two servers; the other's shuffle and servers


def synced(rank, ranks, sync, workers, steps):
    with support.opened_cell(rank, ranks, prepared(), workers=workers, sync=sync) as trainer:
        train(trainer, steps)
        return flat(trainer.model), [one.step for one in trainer.strategies.sync.syncs()]


def test_a_sync_at_a_fixed_rate_counts_the_steps_of_all_workers(ranks):
    for _, steps in ranks.run(synced, 2, "fr-ma:every=4", 3, 6):
        assert steps == [4, 8, 12, 16]


def test_after_a_foreground_round_in_the_last_step_of_all_the_replicas_are_one(ranks):
    """Nobody trains in a round: a step that was under way would be in one replica and not in the other."""
    (first, _), (second, _) = ranks.run(synced, 2, "fr-ma:every=18", 3, 6)
    assert np.array_equal(first, second)


def foreground(rank, ranks, workers, steps):
    """How many rounds there were; of each, how many workers were in a step that they had begun and not ended."""
    with support.opened_cell(rank, ranks, prepared(), workers=workers, sync="fr-ma:every=2") as trainer:
        under_way, seen, collectives = set(), [], trainer.context.collectives
        reduce = collectives.all_reduce

        def look(*operands, **kind):
            seen.append(len(under_way))
            return reduce(*operands, **kind)

        collectives.all_reduce = look
        for number, member in enumerate(trainer.members):
            member.model.register_forward_pre_hook(lambda *_, number=number: under_way.add(number))
            member.optimizer.register_step_post_hook(lambda *_, number=number: under_way.discard(number))
        train(trainer, steps)
        return seen


def test_in_a_foreground_round_no_other_worker_is_in_a_step(ranks):
    for seen in ranks.run(foreground, 2, 3, 30):
        assert seen == [0] * 45


def test_a_shadow_averages_beside_all_workers_as_often_on_every_rank(ranks):
    (_, first), (_, second) = ranks.run(synced, 2, "shadow-ma:duty=1", 2, 40)
    assert len(first) == len(second) > 0
    assert max(first) <= 80


def restore(rank, ranks, folder):
    """What was saved after some steps, and what a fresh crew has that loads it."""
    from fsbench.train import checkpoint

    cell = {"embedding": "parameter-server", "sync": "none", "workers": 2}
    with support.opened_cell(rank, ranks, prepared(CTR), **cell) as trainer:
        train(trainer, 3)
        checkpoint.save(trainer, folder / "state", 3)
        saved = flat(trainer.model)
    with support.opened_cell(rank, ranks, prepared(CTR), seed=4, **cell) as trainer:
        step = checkpoint.load(trainer, folder / "state")
        loaded = [flat(member.model) for member in trainer.members]
        states = [member.optimizer.state_dict()["state"] for member in trainer.members]
        steps = [int(state[0]["step"]) for state in states]
        train(trainer, 5, first=step)
        return saved, loaded, steps, addresses(trainer.members[0].model) == addresses(trainer.members[1].model)


def test_a_checkpoint_is_of_the_one_copy_and_every_worker_goes_on_from_it(ranks, tmp_path):
    ((saved, loaded, steps, in_one_place),) = ranks.run(restore, 1, tmp_path)
    assert all(np.array_equal(values, saved) for values in loaded)
    assert steps == [3, 3]
    assert in_one_place


def report_of(rank, ranks, workload, cell, workers, steps, folder):
    from fsbench.launch.heartbeat import Heartbeat, read_beats
    from fsbench.train.report import build_report
    from fsbench.train.session import TrainingRun

    with support.opened_cell(rank, ranks, prepared(workload), workers=workers, **cell) as trainer:
        finished = TrainingRun(trainer, steps, Heartbeat(folder, rank)).execute()
        beats = [beat.phase for beat in read_beats(folder, ranks)]
        return build_report(trainer, finished), beats, finished.losses


def test_a_report_is_about_every_worker_of_every_rank(ranks, tmp_path):
    cell = {"embedding": "parameter-server", "sync": "fr-ma:every=5"}
    (report, _, losses), (nothing, *_) = ranks.run(report_of, 2, CTR, cell, 2, 20, tmp_path)
    assert nothing is None
    metrics = report["metrics"]
    assert [(row["rank"], row["worker"]) for row in report["per_rank"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(row["window_ms"] > 0 and row["compute_ms"] > 0 for row in report["per_rank"])
    assert metrics["elp"] == 4 * 2 * 2
    assert report["observed"]["sharding"]["samples"] == 20 * 4 * 2 * 2
    assert metrics["sync_gap_mean"] == 5
    assert len(losses) == 20
    assert 0 < metrics["blocked_share"] < 1
    assert metrics["bubble"] == pytest.approx(sum(v for k, v in metrics.items() if k.startswith("bubble_")))
    # A worker's own rate is of its own time: windows and what lies between them, no more than that of all workers.
    rates = [metrics["steps_measured"] * 4 * 1e3 / row["window_ms"] for row in report["per_rank"]]
    assert metrics["samples_per_s"] <= metrics["examples_per_s"] <= sum(rates)
    assert report["observed"]["embedding"]["operations"]["send requests"] > 0
    assert metrics["ne"] is not None


def test_one_worker_is_the_trainer_itself(ranks):
    ((crew, alone),) = ranks.run(without_a_crew, 1)
    assert crew is None
    assert alone


def without_a_crew(rank, ranks):
    with support.opened_cell(rank, ranks, prepared(), sync="none") as trainer:
        return trainer.crew, trainer.members == [trainer]


class Refuses(Exception):
    pass


def fail(rank, ranks, fault):
    """What training raises when worker 1 fails in its third step while worker 0 goes on; what threads remain after."""
    from fsbench.errors import WorkerFailed

    with support.opened_cell(rank, ranks, prepared(), workers=3, sync="none") as trainer:
        calls = []

        def break_down(*_):
            calls.append(1)
            if len(calls) == 3:
                raise fault

        trainer.members[1].model.register_forward_pre_hook(break_down)
        with pytest.raises(WorkerFailed) as failed:
            train(trainer, 10**6)
    workers = [thread.name for thread in threading.enumerate() if thread.name.startswith("worker")]
    from fsbench.train.last_words import kind_of

    return str(failed.value), kind_of(failed.value), len(calls), workers


@pytest.mark.parametrize(
    ("fault", "message", "kind"),
    [
        (ValueError("enough"), "worker 1: ValueError: enough", "failed"),
        (MemoryError(), "worker 1: MemoryError", "oom"),
    ],
)
def test_what_one_worker_raises_ends_the_training_of_all_and_names_it(ranks, fault, message, kind):
    for found in ranks.run(fail, 2, fault):
        assert found == (message, kind, 3, [])


def refuse(rank, ranks, cell, workload):
    from fsbench.errors import Unsupported

    with pytest.raises(Unsupported) as refused, support.opened_cell(rank, ranks, prepared(workload), workers=2, **cell):
        pass
    return str(refused.value)


def refuse_gpus(rank, ranks):
    from fsbench.errors import Unsupported
    from fsbench.train.trainer import open_trainer

    where = {"rank": rank, "ranks": ranks, "seed": 3, "timeout": support.LIMIT, "device": torch.device("cuda")}
    with pytest.raises(Unsupported) as refused:
        open_trainer(prepared(), support.strategies(sync="none"), others=[support.strategies(sync="none")], **where)
    return str(refused.value)


def test_threads_of_a_rank_do_not_share_a_gpu(ranks):
    (reason,) = ranks.run(refuse_gpus, 1)
    assert reason == "workers=2: threads of a rank train on a CPU only, and this rank has a GPU"


def test_a_rank_refuses_what_cannot_be_trained_by_several_workers(ranks):
    (reason,) = ranks.run(refuse, 1, {"sync": "none"}, CTR)
    assert reason.startswith("embedding Plain: with workers=2 each thread")
