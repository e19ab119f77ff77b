"""Exchanges to hold strategies of the collectives axis against each other by: splits, rows of any bits, training."""

from __future__ import annotations

import numpy as np

from tests import support

DTYPES = ("bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
ROWS = ((), (3,), (2, 5))


def random_bits(rows, row, dtype, seed, device="cpu"):
    """Rows of any bits that the dtype has, NaNs of all kinds among them."""
    import torch

    kind = getattr(torch, dtype)
    size = torch.empty(int(rows), *row, dtype=kind).nbytes
    generator = torch.Generator().manual_seed(int(seed))
    bits = torch.randint(0, 2 if dtype == "bool" else 256, (size,), generator=generator, dtype=torch.uint8)
    return bits.view(kind).view(int(rows), *row).to(device)


def same_bits(left, right):
    import torch

    def bits(tensor):
        return tensor.cpu().contiguous().view(-1).view(torch.uint8)

    return (left.dtype, left.shape, left.device) == (right.dtype, right.shape, right.device) and bits(left).equal(
        bits(right)
    )


def uneven(ranks, seed):
    return np.random.default_rng(seed).integers(0, 9, (ranks, ranks))


def mute(ranks, seed):
    splits = uneven(ranks, seed)
    splits[seed % ranks] = 0
    return splits


SPLITS = {
    "uneven": uneven,
    "zeros": lambda ranks, seed: uneven(ranks, seed) * np.random.default_rng(seed + 1).integers(0, 2, (ranks, ranks)),
    "one sends nothing": mute,
    "one receives nothing": lambda ranks, seed: mute(ranks, seed).T,
    "all to one": lambda ranks, seed: 7 * np.eye(ranks, dtype=np.int64)[[seed % ranks] * ranks],
    "each to itself": lambda ranks, seed: 5 * np.eye(ranks, dtype=np.int64),
    "one row": lambda ranks, seed: np.eye(ranks, k=1, dtype=np.int64),
    "nothing": lambda ranks, seed: np.zeros((ranks, ranks), np.int64),
}
"""Rows from each rank to each rank, of (ranks, seed)."""


def exchange(strategy, lane, rank, splits, send, kind="rows"):
    largest = int(splits.max())
    there, back = splits[rank].tolist(), splits[:, rank].tolist()
    return strategy.all_to_all(lane, send, there, back, largest_split=largest, kind=kind)


CASES = [(name, row, dtype) for name in SPLITS for row in ROWS for dtype in DTYPES]


def train(rank, ranks, device, axes):
    """Loss curve, and which lanes ran on what."""
    from fsbench.train.driver import Driver
    from fsbench.train.session import global_losses
    from fsbench.train.trainer import close_trainer

    trainer = support.open_cell(rank, ranks, sharding="cost-aware", device=device, **axes)
    driver = Driver(trainer, 0, 12)
    driver.run()
    losses = global_losses(driver)
    lanes = {name: lane.group.getBackendName() for name, lane in trainer.context.lanes.items()}
    close_trainer(trainer)
    return losses, lanes


def train_with(ranks, count, device, embedding, collectives):
    return ranks.run(train, count, device, {"embedding": embedding, "collectives": collectives}, limit_s=120)
