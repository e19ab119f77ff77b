"""SASRec on jagged histories: equal to one sample at a time without any grouping, causal, and whole when empty."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fsbench.workload import Batch  # noqa: E402
from fsbench_workloads.attention import causal_attention, group_by_length  # noqa: E402
from fsbench_workloads.sasrec import SASRec  # noqa: E402

DIM, HEADS, NEGATIVES, ITEMS = 8, 2, 3, 20


def slow_attention(qkv, heads, lengths):
    """Position by position, head by head, sample by sample."""
    dim = qkv.shape[1] // 3
    out = torch.zeros(len(qkv), dim, dtype=qkv.dtype)
    start = 0
    for length in lengths:
        for i in range(length):
            for head in range(heads):
                part = slice(head * dim // heads, (head + 1) * dim // heads)
                query = qkv[start + i, :dim][part]
                keys = qkv[start : start + i + 1, dim : 2 * dim][:, part]
                values = qkv[start : start + i + 1, 2 * dim :][:, part]
                weights = torch.softmax(keys @ query / (dim // heads) ** 0.5, 0)
                out[start + i, part] = weights @ values
        start += length
    return out


@given(lengths=st.lists(st.integers(0, 40), max_size=7), seed=st.integers(0, 9))
def test_grouped_attention_equals_attention_by_hand(lengths, seed):
    lengths = sorted(lengths, reverse=True)
    qkv = torch.randn(sum(lengths), 3 * DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    ours = causal_attention(qkv, HEADS, group_by_length(lengths))
    torch.testing.assert_close(ours, slow_attention(qkv, HEADS, lengths), rtol=1e-10, atol=1e-12)


@given(lengths=st.lists(st.integers(0, 3000), max_size=40))
def test_groups_cover_every_token_and_pad_little(lengths):
    lengths = sorted(lengths, reverse=True)
    groups = group_by_length(lengths)
    assert sum(group.tokens for group in groups) == sum(lengths)
    assert sum(group.count for group in groups) == sum(length > 0 for length in lengths)
    for group in groups:
        padded = group.count * group.longest
        assert padded - group.tokens <= max(16 * group.count, 0.15 * padded)


def make_model():
    torch.manual_seed(0)
    return SASRec(dim=DIM, layers=2, heads=HEADS, max_len=50, dtype=torch.float64)


def make_batch(histories, sampled):
    lengths = torch.tensor([len(h) for h in histories], dtype=torch.int64)
    ids = [item for history in histories for item in history] + [item for row in sampled for item in row]
    return Batch(None, {"items": torch.tensor(ids, dtype=torch.int64)}, {"lengths": lengths})


def table():
    return torch.randn(ITEMS, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


history = st.lists(st.integers(0, ITEMS - 1), max_size=9)


@given(histories=st.lists(history, min_size=1, max_size=6), seed=st.integers(0, 9))
def test_the_loss_of_a_batch_is_the_sum_of_the_losses_of_its_samples(histories, seed):
    model, rows = make_model(), table()
    generator = torch.Generator().manual_seed(seed)
    sampled = torch.randint(0, ITEMS, (len(histories), NEGATIVES), generator=generator).tolist()

    def loss_of(chosen, drawn):
        batch = make_batch(chosen, drawn)
        return model(batch, {"items": rows[batch.ids["items"]]}).item()

    alone = sum(loss_of([h], [n]) for h, n in zip(histories, sampled, strict=True))
    assert loss_of(histories, sampled) == pytest.approx(alone, rel=1e-10, abs=1e-12)


def test_the_loss_is_cross_entropy_over_the_target_and_the_sampled_items():
    model, rows = make_model(), table()
    batch = make_batch([[1, 2, 3]], [[2, 5, 6]])
    with torch.no_grad():
        layout_rows = {"items": rows[batch.ids["items"]]}
        first = model.encode(make_batch([[1]], [[]]), {"items": rows[[1]]})[0]
        second = model.encode(make_batch([[1, 2]], [[]]), {"items": rows[[1, 2]]})[0]
        # item 2 is the first position's own target: it is no negative of itself
        expected = torch.logsumexp(rows[[2, 5, 6]] @ first, 0) - rows[2] @ first
        expected += torch.logsumexp(rows[[3, 2, 5, 6]] @ second, 0) - rows[3] @ second
        assert model(batch, layout_rows).item() == pytest.approx(expected.item(), rel=1e-10)


def test_what_comes_later_does_not_change_what_came_before():
    model, rows = make_model(), table()
    short = model.encode(make_batch([[4, 5, 6]], [[]]), {"items": rows[[4, 5, 6]]})
    layout_long = make_batch([[4, 5, 6], [4, 5, 6, 7, 8]], [[], []])
    together = model.encode(layout_long, {"items": rows[layout_long.ids["items"]]})
    torch.testing.assert_close(short[0], together[0], rtol=1e-12, atol=1e-14)


def test_encode_keeps_the_order_of_the_samples_and_gives_zeros_for_an_empty_history():
    model, rows = make_model(), table()
    batch = make_batch([[3], [], [1, 2, 3, 4]], [[], [], []])
    encoded = model.encode(batch, {"items": rows[batch.ids["items"]]})
    alone = model.encode(make_batch([[1, 2, 3, 4]], [[]]), {"items": rows[[1, 2, 3, 4]]})
    torch.testing.assert_close(encoded[2], alone[0], rtol=1e-12, atol=1e-14)
    assert not encoded[1].any()


@pytest.mark.parametrize("histories", [[], [[]], [[], []], [[5]]])
def test_a_batch_without_targets_has_loss_zero_and_gradients_of_zero(histories):
    model = make_model()
    batch = make_batch(histories, [[1, 2, 3]] * len(histories))
    rows = table()[batch.ids["items"]].requires_grad_()
    loss = model(batch, {"items": rows})
    loss.backward()
    assert loss.item() == 0
    assert rows.grad is not None
    assert not rows.grad.any()
    for parameter in model.parameters():
        assert parameter.grad is None or not parameter.grad.any()
