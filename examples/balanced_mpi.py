"""Balanced batches with mpi4py: data-parallel least squares in numpy.

    pip install mpi4py mpich
    mpiexec -n 2 python examples/balanced_mpi.py

No rank is told what another reads: each computes all batches from the lengths, and takes its own.
"""

import numpy as np
from mpi4py import MPI

from fsbench import BalancedBatches

SAMPLES, SAMPLES_PER_RANK, DIM = 201, 8, 6


def histories():
    """Vectors to sum up, [length, DIM] for each sample, of very uneven length; and a number to predict from each."""
    rng = np.random.default_rng(0)
    lengths = np.ceil(rng.gamma(0.78, 60, SAMPLES)).astype(int)
    return [rng.normal(size=(length, DIM)) for length in lengths], rng.normal(size=SAMPLES)


def train(comm, global_batch):
    """The weights after an epoch, float64[DIM], and how many vectors this rank summed up."""
    data, targets = histories()
    batches = BalancedBatches(
        data, len, ranks=comm.size, rank=comm.rank, samples_per_rank=global_batch // comm.size, shuffle=True
    )
    weights, work = np.zeros(DIM), 0
    for k, mine in enumerate(batches):
        gradient = np.zeros(DIM)  # of the sum over this rank's samples, which may be none
        for i in mine:
            features = data[i].mean(axis=0)
            gradient += (features @ weights - targets[i]) * features
            work += len(data[i])
        comm.Allreduce(MPI.IN_PLACE, gradient)
        weights -= 0.1 * gradient / batches.counts(k).samples
    return weights, work


def main():
    global_batch = SAMPLES_PER_RANK * MPI.COMM_WORLD.size
    weights, work = train(MPI.COMM_WORLD, global_batch)
    alone, _ = train(MPI.COMM_SELF, global_batch)
    work = MPI.COMM_WORLD.gather(work)
    if MPI.COMM_WORLD.rank == 0:
        away = np.linalg.norm(weights - alone) / np.linalg.norm(alone)
        print(f"{len(work)} ranks end {away:.1e} of the norm away from one; vectors summed by each: {work}")


if __name__ == "__main__":
    main()
