"""Balanced batches in a PyTorch loop of your own: two ranks, DataLoader, DistributedDataParallel.

    python examples/balanced_dataloader.py

Prints how long ranks would wait for each other with and without balancing (one history may be longer than a rank's
share), and how what two balanced ranks learn differs from what one process learns of the same global batches: by
rounding only. Gradients are right, whoever trains which sample.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, Dataset

from fsbench import BalancedBatches, transformer_cost
from fsbench.metrics.balance import straggler_share

ITEMS, DIM, EPOCHS = 500, 8, 2
SAMPLES, GLOBAL_BATCH = 209, 16  # the last global batch holds one sample, so that one of two ranks gets none


class Histories(Dataset):
    """Item histories of very uneven length, and a number to predict from each."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.lengths = np.ceil(rng.gamma(0.78, 60, SAMPLES)).astype(np.int64)
        self.items = [rng.integers(ITEMS, size=length) for length in self.lengths]
        self.targets = rng.normal(size=SAMPLES)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return self.items[i], self.targets[i]


def collate(samples):
    """Jagged, nothing padded: all items end to end, where each history starts, and the targets. May be empty."""
    items = np.concatenate([np.empty(0, np.int64), *(items for items, _ in samples)])
    starts = np.cumsum([0, *(len(items) for items, _ in samples)])[:-1]
    targets = np.array([target for _, target in samples], np.float64)
    return torch.from_numpy(items), torch.from_numpy(starts), torch.from_numpy(targets)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.items = nn.EmbeddingBag(ITEMS, DIM, dtype=torch.float64)
        self.head = nn.Linear(DIM, 1, dtype=torch.float64)

    def forward(self, items, starts, targets):
        """The squared errors, one a sample."""
        return (self.head(self.items(items, starts)).squeeze(1) - targets) ** 2


def balanced(data, rank, ranks, sharding="cost-aware"):
    return BalancedBatches(
        data,
        data.lengths,
        ranks=ranks,
        rank=rank,
        samples_per_rank=GLOBAL_BATCH // ranks,
        sharding=sharding,
        cost=transformer_cost(DIM),
        shuffle=True,
    )


def train(rank, ranks, sharding="cost-aware"):
    """What the weights learned, [parameters]; with more than one rank, in a process group of that size."""
    data = Histories()
    batches = balanced(data, rank, ranks, sharding)
    loader = DataLoader(data, batch_sampler=batches, collate_fn=collate)
    model = Model()
    parallel = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    initial = parameters_to_vector(model.parameters()).detach()
    for epoch in range(EPOCHS):
        batches.set_epoch(epoch)
        for k, batch in enumerate(loader, batches.first):
            optimizer.zero_grad()
            # The sum over this rank's targets, by the targets of all ranks; DDP divides by the ranks once more.
            loss = parallel(*batch).sum() * ranks / batches.counts(k).targets
            loss.backward()
            optimizer.step()
    return parameters_to_vector(model.parameters()).detach() - initial


def run_rank(rank, ranks, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    learned = train(rank, ranks)
    if rank == 0:
        torch.save(learned, Path(folder, "learned.pt"))
    dist.destroy_process_group()


def predicted_waiting(ranks, sharding):
    """The share of the ranks' time spent waiting in an epoch, from costs."""
    data = Histories()
    costs = transformer_cost(DIM)(data.lengths)
    batches = balanced(data, 0, ranks, sharding)
    # Without the last batch: nothing can balance one sample.
    loads = [[costs[mine].sum() for mine in batches.by_rank(k)] for k in range(len(batches) - 1)]
    return straggler_share(np.array(loads))


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # both ranks are on this machine
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, args=(2, folder), nprocs=2)
        two = torch.load(Path(folder, "learned.pt"))
    one = train(0, 1)
    for sharding in ("naive", "cost-aware"):
        print(f"{sharding}: ranks would wait {100 * predicted_waiting(2, sharding):.2f} % of their time")
    print(f"what two ranks learn differs by {(two - one).norm() / one.norm():.1e} of what one process learns")


if __name__ == "__main__":
    main()
