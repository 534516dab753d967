"""Bottleneck transformer attention (BoTNet): multi-head self-attention with relative positions."""

from math import gcd
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.attention import dot_product_attention
from visattn.functional.positions import relative_position_scores


class BoTNetAttention(Block):
    """Multi-head self-attention of BoTNet: 2-D relative positions added to the content scores.

    It replaces a 3x3 convolution and has no residual connection of its own. Costs 2 n² C MACs for n
    positions and n (y + x) C for the relative positions, in addition to its projection.

    Args:
        channels: Number of input channels.
        num_heads: Number of heads; 4 if None, or 2 or 1 where 4 does not divide the channels.
        head_dim: Dimension of the queries and keys of a head; channels / num_heads if None.
        max_relative_position: Largest row or column offset with an embedding of its own; larger
            offsets share the last one. 13 covers the 14 x 14 grids of the paper at 224 pixels.

    Raises:
        ValueError: If num_heads does not divide the channels, or an argument is too small.

    Example:
        >>> BoTNetAttention(16)(torch.zeros(1, 16, 5, 7)).shape
        torch.Size([1, 16, 5, 7])

    Source:
        Srinivas et al. 2021, arXiv:2101.11605, figure 4.
    """

    info: ClassVar = BlockInfo(
        name="botnet",
        kind="self_attention",
        title="Bottleneck self-attention with relative positions (MHSA of BoTNet)",
        paper="Srinivas et al. 2021, arXiv:2101.11605",
        equation="y_i = sum_j softmax_j((q_i . k_j + q_i . (r[row j - row i] + s[column j - "
        "column i])) / sqrt(d)) v_j per head, q, k, v = W x",
        parameters="C^2 + 2 C H d + 2 (2 R + 1) d, H = num_heads, "
        "R = max_relative_position, d = C / H",
        deviations=(
            "larger offsets share the last embedding, so that any spatial size works",
            "both score terms are scaled; timm does not scale the relative term by default",
        ),
    )

    def __init__(
        self,
        channels: int,
        *,
        num_heads: int | None = None,
        head_dim: int | None = None,
        max_relative_position: int = 13,
    ) -> None:
        super().__init__(channels)
        self.num_heads = gcd(channels, 4) if num_heads is None else num_heads
        if self.num_heads < 1 or channels % self.num_heads:
            raise ValueError(f"num_heads must divide the {channels} channels, got {self.num_heads}")
        self.head_dim = channels // self.num_heads if head_dim is None else head_dim
        if self.head_dim < 1 or max_relative_position < 0:
            raise ValueError(
                "head_dim must be at least 1 and max_relative_position at least 0, got "
                f"{self.head_dim} and {max_relative_position}"
            )
        inner = self.num_heads * self.head_dim
        self.widths = (inner, inner, channels)
        self.project = nn.Conv2d(channels, sum(self.widths), 1, bias=False)
        self.rows = nn.Parameter(
            torch.randn(2 * max_relative_position + 1, self.head_dim) * self.head_dim**-0.5
        )
        self.columns = nn.Parameter(
            torch.randn(2 * max_relative_position + 1, self.head_dim) * self.head_dim**-0.5
        )
        self.tap = Tap("tokens")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the attention output of each position."""
        queries, keys, values = (
            projected.unflatten(1, (self.num_heads, -1)).mT
            for projected in self.project(x).flatten(2).split(self.widths, 1)
        )
        queries = queries * self.head_dim**-0.5
        relative_scores = relative_position_scores(
            queries.unflatten(2, x.shape[2:]), self.rows, self.columns
        )
        output, weights = dot_product_attention(
            queries, keys, values, bias=relative_scores, scale=1.0, need_weights=self.tap.wanted
        )
        if weights is not None:
            self.tap.grid = (x.shape[2], x.shape[3])
            self.tap(weights)
        return output.mT.reshape(x.shape)
