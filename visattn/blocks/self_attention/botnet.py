"""Multi-head self-attention with relative positions, as in bottleneck transformers."""

from math import gcd
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.attention.softmax import attention
from visattn.functional.positions.relative import relative_position_scores


class BoTNetAttention(Block):
    """Give each place what it takes from all places, by what they hold and by where they lie.

    It stands in the place of a 3x3 convolution and adds nothing to its input: a network's own
    shortcut runs around it. Costs 2 n² C multiplications for n places, and n (y + x) C for their
    positions, beside its convolution.

    Args:
        channels: Width of a feature.
        heads: How many look at once; 4 if None, or 2 or 1 where 4 does not divide the channels.
        dim: Width of the queries and keys of a head; channels / heads if None.
        reach: Farthest offset, down or across, that has a vector of its own; those beyond share the
            last one. 13 covers the grids of 14 x 14 where the paper has it at 224 pixels.

    Raises:
        ValueError: If heads do not divide the channels, or heads, dim or reach are too small.

    Example:
        >>> BoTNetAttention(16)(torch.zeros(1, 16, 5, 7)).shape
        torch.Size([1, 16, 5, 7])

    Source:
        Srinivas et al. 2021, arXiv:2101.11605, figure 4.
    """

    card: ClassVar = BlockInfo(
        name="botnet",
        kind="grid",
        title="Bottleneck self-attention with relative positions (MHSA of BoTNet)",
        paper="Srinivas et al. 2021, arXiv:2101.11605",
        equation="y_i = sum_j softmax_j((q_i . k_j + q_i . (r[row j - row i] + s[column j - "
        "column i])) / sqrt(d)) v_j per head, q, k, v = W x",
        parameters="C^2 + 2 C H d + 2 (2 reach + 1) d, with H heads and d = C / H if not said",
        deviations=(
            "offsets beyond reach share the last vector, so that any size will do",
            "both terms are scaled; timm leaves that of the positions unscaled by default",
        ),
        aliases=("BoT", "bottleneck transformer", "BoTNet MHSA"),
    )

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        dim: int | None = None,
        reach: int = 13,
    ) -> None:
        super().__init__(channels)
        self.heads = gcd(channels, 4) if heads is None else heads
        if self.heads < 1 or channels % self.heads:
            raise ValueError(f"heads must divide the {channels} channels, got {self.heads}")
        self.dim = channels // self.heads if dim is None else dim
        if self.dim < 1 or reach < 0:
            raise ValueError(
                f"dim must be at least 1 and reach at least 0, got dim={self.dim}, reach={reach}"
            )
        inner = self.heads * self.dim
        self.widths = (inner, inner, channels)
        self.project = nn.Conv2d(channels, sum(self.widths), 1, bias=False)
        self.rows = nn.Parameter(torch.randn(2 * reach + 1, self.dim) * self.dim**-0.5)
        self.columns = nn.Parameter(torch.randn(2 * reach + 1, self.dim) * self.dim**-0.5)
        self.tap = Tap("tokens")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return what each place takes from all places."""
        queries, keys, values = (
            part.unflatten(1, (self.heads, -1)).mT
            for part in self.project(x).flatten(2).split(self.widths, 1)
        )
        queries = queries * self.dim**-0.5
        places = relative_position_scores(
            queries.unflatten(2, x.shape[2:]), self.rows, self.columns
        )
        seen, weights = attention(
            queries, keys, values, bias=places, scale=1.0, need_weights=self.tap.wanted
        )
        if weights is not None:
            self.tap.grid = (x.shape[2], x.shape[3])
            self.tap(weights)
        return seen.mT.reshape(x.shape)
