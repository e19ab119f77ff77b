"""SASRec (Kang & McAuley 2018, arXiv 1808.09781) on jagged histories, with sampled softmax over a sharded table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from fsbench.workload import Batch
from fsbench_workloads.attention import Group, causal_attention, group_by_length


@dataclass
class Layout:
    """Where the tokens of a batch go: samples by falling length, nothing padded.

    `order`: int64[n], sample at each place. `tokens`: int64[T], place in the batch of each
    sorted token. `positions`: int64[T], place of each sorted token in its own history. `inputs`: int64[t], the sorted
    tokens that have a target, which is the token after; `targets`: how many each sample has.
    """

    targets: list[int]
    inputs: torch.Tensor
    order: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    groups: list[Group]

    @classmethod
    def of(cls, lengths: torch.Tensor) -> Layout:
        """From int64[n] lengths, on their device. Computed on the host, where sizes decide shapes."""
        device = lengths.device
        lengths = lengths.cpu()
        order = torch.argsort(lengths, descending=True, stable=True)
        sizes = lengths[order]
        starts = (lengths.cumsum(0) - lengths)[order]
        positions = torch.arange(int(sizes.sum())) - torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
        tokens = torch.repeat_interleave(starts, sizes) + positions
        has_target = positions < torch.repeat_interleave(sizes - 1, sizes)
        return cls(
            targets=(sizes - 1).clamp(min=0).tolist(),
            inputs=has_target.nonzero().flatten().to(device),
            order=order.to(device),
            tokens=tokens.to(device),
            positions=positions.to(device),
            groups=group_by_length(sizes.tolist(), device),
        )


class Block(nn.Module):
    """A pre-norm transformer layer over jagged tokens [T, dim]."""

    def __init__(self, dim: int, heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, dtype=dtype)
        self.qkv = nn.Linear(dim, 3 * dim, dtype=dtype)
        self.out = nn.Linear(dim, dim, dtype=dtype)
        self.norm2 = nn.LayerNorm(dim, dtype=dtype)
        self.up = nn.Linear(dim, 4 * dim, dtype=dtype)
        self.down = nn.Linear(4 * dim, dim, dtype=dtype)

    def forward(self, x: torch.Tensor, groups: list[Group]) -> torch.Tensor:
        x = x + self.out(causal_attention(self.qkv(self.norm1(x)), self.heads, groups))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class SASRec(nn.Module):
    """Causal next-item model; input and output share the row-sharded item table.

    Args:
        dim: width of the items and of the model.
        layers, heads: of the transformer.
        max_len: longest history.

    `batch.ids["items"]` holds the history items of all samples, then their sampled negatives, equally many a sample
    and shared by its positions.
    """

    def __init__(self, *, dim: int, layers: int, heads: int, max_len: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.position = nn.Embedding(max_len, dim, dtype=dtype)
        nn.init.normal_(self.position.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(dim, heads, dtype) for _ in range(layers))
        self.norm = nn.LayerNorm(dim, dtype=dtype)

    def forward(self, batch: Batch, rows: dict[str, torch.Tensor]) -> torch.Tensor:
        """Sum over all targets of the sampled softmax loss: scalar, also for a batch without targets."""
        lengths = batch.features["lengths"]
        layout = Layout.of(lengths)
        history, sampled = rows["items"].split([len(layout.tokens), len(rows["items"]) - len(layout.tokens)])
        history_ids, sampled_ids = batch.ids["items"].split([len(history), len(sampled)])
        items = history.index_select(0, layout.tokens)
        hidden = self._hidden(items, layout)
        drawn = (len(lengths), len(sampled) // max(1, len(lengths)))
        return sampled_softmax(
            hidden.index_select(0, layout.inputs),
            items.index_select(0, layout.inputs + 1),
            history_ids[layout.tokens[layout.inputs + 1]],
            sampled.view(*drawn, -1 if len(sampled) else items.shape[1]).index_select(0, layout.order),
            sampled_ids.view(drawn)[layout.order],
            layout.targets,
        )

    def encode(self, batch: Batch, rows: dict[str, torch.Tensor]) -> torch.Tensor:
        """[n, dim]: what scores the next item of each sample; zeros for an empty history."""
        lengths = batch.features["lengths"]
        layout = Layout.of(lengths)
        hidden = self._hidden(rows["items"].index_select(0, layout.tokens), layout)
        sizes = lengths[layout.order]
        encoded = hidden.new_zeros(len(lengths), hidden.shape[1])
        filled = sizes > 0
        encoded[layout.order[filled]] = hidden[(sizes.cumsum(0) - 1)[filled]]
        return encoded

    def _hidden(self, items: torch.Tensor, layout: Layout) -> torch.Tensor:
        x = items * items.shape[1] ** 0.5 + self.position(layout.positions)
        for block in self.blocks:
            x = block(x, layout.groups)
        return self.norm(x)


def sampled_softmax(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    target_ids: torch.Tensor,
    sampled: torch.Tensor,
    sampled_ids: torch.Tensor,
    counts: list[int],
) -> torch.Tensor:
    """Sum over positions of -log softmax of the target among itself and the items sampled for its sample.

    A sampled item that is the position's own target is left out.

    Args:
        hidden, targets: [t, dim], positions of all samples end to end, and the rows of their targets.
        target_ids: int64[t].
        sampled, sampled_ids: [n, k, dim] and int64[n, k].
        counts: positions of each sample; they sum to t.
    """
    positive = (hidden * targets).sum(1)
    scores = [h @ items.t() for h, items in zip(hidden.split(counts), sampled.unbind(0), strict=True)]
    # Touching both operands keeps the graph, and so the gradient exchange, whole on a rank without targets.
    negative = torch.cat(scores) if scores else sampled.sum(2)
    own = sampled_ids.repeat_interleave(torch.tensor(counts, dtype=torch.int64, device=hidden.device), dim=0)
    negative = negative.masked_fill(target_ids[:, None] == own, float("-inf"))
    total = torch.logaddexp(negative.logsumexp(1), positive)
    return (total - positive).sum()
