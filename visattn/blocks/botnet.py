"""Bottleneck transformer attention (BoTNet): multi-head self-attention with relative positions."""

from math import gcd

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.attention import dot_product_attention


class BoTNetAttention(Block):
    """Multi-head self-attention of BoTNet: 2-D relative positions added to the content scores.

    Per head, with queries, keys and values W x, and embeddings r and s of row and column offsets::

        y_i = sum_j softmax_j(q_i . (k_j + r[row j - row i] + s[column j - column i]) / sqrt(d)) v_j

    It replaces a 3 x 3 convolution and has no residual connection. Costs 2 n² C MACs for n
    positions and n (y + x) C for the relative positions, in addition to its projection. Both terms
    are scaled; timm does not scale the relative one by default.

    Args:
        channels: Number of input channels.
        num_heads: Number of heads, which must divide the channels; by default 4, or 2 or 1 if 4
            does not divide them.
        head_dim: Dimension of the queries and keys of a head; channels / num_heads if None.
        max_relative_position: Largest row or column offset with its own embedding; larger offsets
            share the last one, so that any size works. 13 covers the 14 x 14 grids of the paper at
            224 pixels.

    Example:
        >>> BoTNetAttention(16)(torch.zeros(1, 16, 5, 7)).shape
        torch.Size([1, 16, 5, 7])

    Source:
        Srinivas et al. 2021, arXiv:2101.11605, figure 4.
    """

    info = BlockInfo("botnet", "self_attention", "Srinivas et al. 2021, arXiv:2101.11605")

    def __init__(
        self,
        channels: int,
        *,
        num_heads: int | None = None,
        head_dim: int | None = None,
        max_relative_position: int = 13,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads or gcd(channels, 4)
        self.head_dim = head_dim or channels // self.num_heads
        inner = self.num_heads * self.head_dim
        self.widths = (inner, inner, channels)
        self.project = nn.Conv2d(channels, sum(self.widths), 1, bias=False)
        offsets = 2 * max_relative_position + 1
        self.rows = nn.Parameter(torch.randn(offsets, self.head_dim) * self.head_dim**-0.5)
        self.columns = nn.Parameter(torch.randn(offsets, self.head_dim) * self.head_dim**-0.5)
        self.tap = Tap("tokens")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the attention output of each position."""
        parts = self.project(x).flatten(2).split(self.widths, 1)
        q, k, v = (part.unflatten(1, (self.num_heads, -1)).mT for part in parts)  # [b h n d]
        q = q * self.head_dim**-0.5
        output, weights = dot_product_attention(
            q,
            k,
            v,
            bias=self.relative_scores(q.unflatten(2, x.shape[2:])),
            scale=1.0,
            need_weights=self.tap.wanted,
        )
        if weights is not None:
            self.tap.grid = (x.shape[2], x.shape[3])
            self.tap(weights)
        return output.mT.reshape(x.shape)

    def relative_scores(self, queries: Float[Tensor, "b h y x d"]) -> Float[Tensor, "b h n n"]:
        """Return the dot product of each query with the embedding of each offset from it.

        q · (r + s) = q · r + q · s: a product per row offset and one per column offset are added,
        instead of one per pair of positions.
        """
        rows = _by_offset(self.rows, queries.shape[2])
        columns = _by_offset(self.columns, queries.shape[3])
        by_row = torch.einsum("bhyxd,yud->bhyxu", queries, rows)
        by_column = torch.einsum("bhyxd,xwd->bhyxw", queries, columns)
        return (by_row[..., None] + by_column[..., None, :]).flatten(4).flatten(2, 3)


def _by_offset(table: Float[Tensor, "r d"], size: int) -> Float[Tensor, "size size d"]:
    """Return the embedding of each key (dim 1) from each query (dim 0) along an axis."""
    largest = len(table) // 2
    index = torch.arange(size, device=table.device)
    return table[(index - index[:, None]).clamp(-largest, largest) + largest]
