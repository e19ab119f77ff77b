"""Balanced batches with tf.data: a data set of this rank's ragged batches.

python examples/balanced_tf_data.py
"""

import numpy as np
import tensorflow as tf

from fsbench import BalancedBatches


def dataset(histories, *, rank, ranks, samples_per_rank, epoch=0):
    """The batches of this rank: ragged rows of `histories` (a list of lists of item IDs), [batch, None]."""
    lengths = np.array([len(history) for history in histories])
    batches = BalancedBatches(
        histories, lengths, ranks=ranks, rank=rank, samples_per_rank=samples_per_rank, shuffle=True
    )
    batches.set_epoch(epoch)
    indices = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=tf.TensorSpec([None], tf.int64))
    rows = tf.ragged.constant(histories, dtype=tf.int64)
    return indices.map(lambda mine: tf.gather(rows, mine)).prefetch(2)


def main():
    rng = np.random.default_rng(0)
    histories = [rng.integers(500, size=length).tolist() for length in np.ceil(rng.gamma(0.78, 60, 200)).astype(int)]
    tokens = [[int(tf.size(b)) for b in dataset(histories, rank=r, ranks=2, samples_per_rank=8)] for r in range(2)]
    for rank, of_batches in enumerate(tokens):
        print(f"rank {rank}: tokens of its batches {of_batches}")


if __name__ == "__main__":
    main()
