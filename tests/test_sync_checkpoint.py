"""What a checkpoint keeps of replicas that step on their own, and what there is to evaluate; on real ranks."""

import pytest

torch = pytest.importorskip("torch")

from tests.sync_cells import opened, parameters  # noqa: E402

pytestmark = pytest.mark.distributed
STEPS, BROKEN_AT = 8, 4


def train_on(rank, ranks, sync, path, resumed):
    """Eight steps, or the last four of them after a checkpoint. Parameters, rounds, own steps before each sync of these
    steps, and what is evaluated."""
    from fsbench.train import checkpoint
    from fsbench.train.driver import Driver

    with opened(rank, ranks, sync) as trainer:
        strategy = trainer.strategies.sync
        if resumed:
            strategy.flat.values.zero_()
        first = checkpoint.load(trainer, path) if resumed else 0
        for end in (BROKEN_AT, STEPS)[bool(resumed) :]:
            Driver(trainer, first, end).run()
            first = end
            if end == BROKEN_AT:
                checkpoint.save(trainer, path, end)
        syncs = [one.step for one in strategy.syncs() if one.step > BROKEN_AT]
        return parameters(trainer).clone(), strategy.evidence().get("rounds"), syncs, strategy.replicas()


@pytest.mark.parametrize(
    ("sync", "count"),
    [
        ("none", 2),
        ("fr-ma:every=3,alpha=0.4", 3),
        ("fr-bmuf:every=3,alpha=0.4,momentum=0.8", 2),
        ("local-sgd:every=3", 2),
        ("diloco:every=3", 2),
        # One rank: the order in which ranks come to the servers is nobody's.
        ("fr-easgd:every=3,servers=2", 1),
    ],
)
def test_resumed_between_two_syncs_each_rank_goes_on_with_its_own_replica_to_the_last_bit(ranks, tmp_path, sync, count):
    """SGD, whose optimizer keeps nothing."""
    unbroken = ranks.run(train_on, count, sync, tmp_path / "state", False)
    resumed = ranks.run(train_on, count, sync, tmp_path / "state", True)
    for ours, theirs in zip(resumed, unbroken, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert ours[1:3] == theirs[1:3]
        assert ours[3].keys() == theirs[3].keys()
        for name, state in theirs[3].items():
            assert all(torch.equal(tensor, ours[3][name][key]) for key, tensor in state.items())


@pytest.mark.parametrize("sync", ["shadow-ma", "shadow-bmuf", "shadow-easgd:servers=2"])
def test_a_shadow_goes_on_with_its_replicas_rounds_and_global_copy(ranks, tmp_path, sync):
    ranks.run(train_on, 2, sync, tmp_path / "state", False)
    saved = torch.load(tmp_path / "state", weights_only=True)["sync"]
    for rank, (values, rounds, state) in enumerate(ranks.run(loaded, 2, sync, tmp_path / "state")):
        assert torch.equal(values, saved["replicas"][rank])
        assert rounds == saved["rounds"]
        assert state["exchange"].keys() == saved["exchange"].keys()
        assert all(torch.equal(tensor, state["exchange"][name]) for name, tensor in saved["exchange"].items())


def loaded(rank, ranks, sync, path):
    """Parameters, rounds and state after loading."""
    from fsbench.train import checkpoint

    with opened(rank, ranks, sync) as trainer:
        checkpoint.load(trainer, path)
        strategy = trainer.strategies.sync
        return parameters(trainer).clone(), strategy.evidence().get("rounds"), strategy.state_dict()


@pytest.mark.parametrize("sync", ["fr-bmuf:every=3", "fr-easgd:every=3"])
def test_on_more_ranks_or_fewer_all_go_on_with_the_mean_of_the_replicas_and_the_same_global_copy(ranks, tmp_path, sync):
    ranks.run(train_on, 2, sync, tmp_path / "state", False)
    saved = torch.load(tmp_path / "state", weights_only=True)["sync"]
    for count in (1, 3):
        for values, _, state in ranks.run(loaded, count, sync, tmp_path / "state"):
            assert torch.equal(values, saved["replicas"].mean(0))
            assert torch.equal(state["exchange"]["central"], saved["exchange"]["central"])


@pytest.mark.parametrize(
    ("sync", "names"),
    [
        ("none", ["trainer", "mean"]),
        ("fr-ma", ["trainer", "mean"]),
        ("local-sgd", ["trainer", "mean"]),
        ("shadow-ma", ["trainer", "mean"]),
        ("fr-bmuf:every=3", ["trainer", "mean", "central"]),
        ("diloco:every=3", ["trainer", "mean", "central"]),
        ("shadow-bmuf", ["trainer", "mean", "central"]),
        ("fr-easgd:every=3", ["trainer", "mean", "central"]),
        ("shadow-easgd:servers=3", ["trainer", "mean", "central"]),
    ],
)
def test_evaluated_are_rank_0s_replica_the_mean_and_the_central_copy_where_there_is_one(ranks, tmp_path, sync, names):
    found = ranks.run(train_on, 2, sync, tmp_path / "state", False)
    first, second = (values for values, *_ in found)
    for *_, replicas in found:
        flat = flatten(replicas)
        assert list(flat) == names
        assert torch.equal(flat["trainer"], first)
        torch.testing.assert_close(flat["mean"], (first + second) / 2)
        assert all(torch.equal(flat[name], in_first) for name, in_first in flatten(found[0][-1]).items())


def flatten(replicas):
    return {name: torch.cat([t.flatten() for t in state.values()]) for name, state in replicas.items()}


def test_after_a_full_step_to_it_the_global_copy_is_what_every_rank_has(ranks, tmp_path):
    for values, *_, replicas in ranks.run(train_on, 2, "diloco:every=4", tmp_path / "state", False):
        assert torch.equal(flatten(replicas)["central"], values)
