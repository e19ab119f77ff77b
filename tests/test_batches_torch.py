"""`BalancedBatches` under PyTorch: a `DataLoader` with workers, and gradients that do not care who trains what."""

import numpy as np
import pytest

from fsbench import BalancedBatches
from fsbench.errors import UserError
from tests.support import AllOnOne
from tests.test_batches import LENGTHS, on

torch = pytest.importorskip("torch", reason="needs torch: pip install 'fsbench[cpu]'")

DIM = 5


def loader(batches, **options):
    return torch.utils.data.DataLoader(range(100), batch_sampler=batches, collate_fn=list, **options)


def test_a_data_loader_takes_it_for_its_batch_sampler():
    batches = on(1, 3, shuffle=True)
    assert len(loader(batches)) == len(batches) == 9
    for epoch in range(2):
        batches.set_epoch(epoch)
        assert list(loader(batches)) == list(batches)


def test_workers_run_ahead_of_training_and_yet_nothing_is_lost_or_trained_twice_on_resuming():
    batches, resumed = on(1, 3, shuffle=True), on(1, 3, shuffle=True)
    under_way = iter(loader(batches, num_workers=2))
    trained = [next(under_way) for _ in range(3)]
    resumed.load_state_dict(batches.state_dict(trained=3))
    assert trained + list(loader(resumed, num_workers=2)) == list(batches)


def test_a_stream_of_torch_is_refused():
    class Stream(torch.utils.data.IterableDataset):
        def __len__(self):
            return 3

        def __iter__(self):
            return iter("abc")

    with pytest.raises(UserError, match="Stream is no map-style data set"):
        BalancedBatches(Stream(), [1, 2, 3], ranks=1, rank=0, samples_per_rank=1)


def test_lengths_may_be_a_tensor():
    assert list(on(0, 2, torch.from_numpy(LENGTHS))) == list(on(0, 2))


def summed_loss(weights, samples):
    """Over all positions of the samples, each of which is a target; 0 where there are none."""
    keyed = [np.random.default_rng(i).normal(size=(LENGTHS[i], DIM + 1)) for i in samples]
    values = torch.from_numpy(np.concatenate([np.empty((0, DIM + 1)), *keyed]))
    return ((torch.tanh(values[:, :DIM] @ weights) - values[:, DIM]) ** 2).sum()


def gradients(rank, ranks, sharding):
    """Of every batch of an epoch, summed over the ranks: [batches, DIM]."""
    weights = torch.ones(DIM, dtype=torch.float64, requires_grad=True)
    strategy = AllOnOne(1) if sharding == "all-on-one" else sharding
    batches = on(rank, ranks, each=8, targets=LENGTHS, sharding=strategy, shuffle=True)
    found = []
    for k, mine in enumerate(batches):
        loss = summed_loss(weights, mine) / batches.counts(k).targets
        (gradient,) = torch.autograd.grad(loss, weights)
        torch.distributed.all_reduce(gradient)
        found.append(gradient)
    return torch.stack(found).numpy()


@pytest.mark.distributed
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("sharding", ["naive", "cost-aware", "all-on-one"])
def test_gradients_equal_those_of_the_whole_global_batch_whatever_the_sharding(ranks, sharding, n):
    weights = torch.ones(DIM, dtype=torch.float64, requires_grad=True)
    batches = on(0, n, each=8, shuffle=True)
    found = ranks.run(gradients, n, sharding)[0]
    assert len(found) == len(batches)
    for k, gradient in enumerate(found):
        members = np.concatenate(batches.by_rank(k))
        mean_loss = summed_loss(weights, members) / LENGTHS[members].sum()
        (expected,) = torch.autograd.grad(mean_loss, weights)
        assert np.linalg.norm(gradient - expected.numpy()) <= 1e-12 * expected.norm()
