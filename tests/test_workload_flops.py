"""Floating-point operations, against a count product by product."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsbench_workloads.flops import causal_transformer


def product(rows: int, inner: int, columns: int) -> int:
    return 2 * rows * inner * columns


def counted(length, targets, dim, layers, ffn, negatives):
    forward = 0
    for _ in range(layers):
        forward += 4 * product(length, dim, dim)
        for query in range(length):
            forward += product(1, dim, query + 1) + product(1, query + 1, dim)
        forward += product(length, dim, ffn) + product(length, ffn, dim)
    forward += targets * product(1, dim, negatives + 1)
    return 3 * forward


@given(st.integers(0, 30), st.integers(1, 8), st.integers(1, 3), st.integers(1, 16), st.integers(1, 9))
def test_every_product_counts_once_forward_and_twice_backward(length, dim, layers, ffn, negatives):
    targets = max(length - 1, 0)
    sizes = {"dim": dim, "layers": layers, "ffn": ffn, "negatives": negatives}
    got = causal_transformer(np.array([length]), np.array([targets]), **sizes)
    assert got.dtype == np.float64
    assert got.tolist() == [counted(length, targets, **sizes)]


def test_no_samples_cost_nothing():
    none = np.zeros(0, np.int64)
    assert causal_transformer(none, none, dim=4, layers=1, ffn=16, negatives=2).shape == (0,)
