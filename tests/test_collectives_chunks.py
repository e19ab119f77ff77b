"""Which bytes of a tensor travel when."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsbench_strategies.collectives.chunks import cut


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=6),
    st.integers(1, 12),
    st.integers(0, 3),
)
def test_a_chunk_holds_the_next_bytes_of_every_block_packed_by_rank(gaps_and_lengths, most, beyond):
    gaps, lengths = np.array(gaps_and_lengths, np.int64).T
    starts = np.cumsum(gaps + lengths) - lengths
    tensor = np.arange(starts[-1] + lengths[-1])
    blocks = [tensor[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    largest = int(lengths.max()) + beyond
    chunks = cut(lengths, starts, most, largest)
    assert len(chunks) == max(1, -(-largest // most))
    for number, chunk in enumerate(chunks):
        pieces = [block[number * most : (number + 1) * most] for block in blocks]
        buffer = np.full(chunk.bytes, -1)
        for place, at, size in chunk.runs:
            buffer[at : at + size] = tensor[place : place + size]
        assert chunk.splits == [len(piece) for piece in pieces]
        assert buffer.tolist() == np.concatenate(pieces).tolist()


def test_blocks_that_lie_end_to_end_are_one_copy():
    lengths = np.array([8, 8, 0, 8, 8])
    without_own = cut(lengths * [1, 1, 1, 0, 1], np.cumsum(lengths) - lengths, most=8, largest=8)
    assert [chunk.runs for chunk in without_own] == [[(0, 0, 16), (24, 16, 8)]]
