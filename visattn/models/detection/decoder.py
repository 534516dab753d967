"""Decoder layers of DETR, and sine embeddings of boxes."""

import math
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from visattn.blocks.base import check_choice
from visattn.blocks.transformer.deformable import DeformableAttention, SamplingPoints
from visattn.blocks.transformer.layer import FeedForward
from visattn.blocks.transformer.multi_head import MultiHeadAttention
from visattn.functional.positions import inverse_frequencies

CrossAttention = Literal["dense", "deformable"]
_TEMPERATURE = 20.0  # as in DAB-DETR: wavelengths from the whole image to a twentieth of a turn


class Memory(NamedTuple):
    """Image features that queries attend to."""

    features: Float[Tensor, "b c y x"]
    position: Float[Tensor, "m c"]
    """Position embedding of each cell, row by row."""

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the feature map."""
        return self.features.shape[2], self.features.shape[3]


class DetrDecoderLayer(nn.Module):
    """Post-norm decoder layer: self-attention among queries, cross-attention to the image, MLP.

    Args:
        dim: Dimension of the queries.
        num_heads: Number of heads.
        cross_attention: `dense` attention over all cells, or `deformable` attention.
        num_points: Points per head of deformable attention.
        mlp_ratio: Hidden size of the MLP, as a multiple of `dim`.

    Raises:
        ValueError: If `cross_attention` is unknown.

    Example:
        >>> layer = DetrDecoderLayer(8, num_heads=2)
        >>> memory = Memory(torch.zeros(1, 8, 2, 3), torch.zeros(6, 8))
        >>> queries, boxes = torch.zeros(1, 5, 8), torch.full((1, 5, 4), 0.5)
        >>> output, points = layer(queries, queries, boxes, memory)
        >>> output.shape, points.weights.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 5, 2, 4]))

    Source:
        Carion et al. 2020, arXiv:2005.12872, appendix A.3; Zhu et al. 2020, arXiv:2010.04159,
        section 4.1, for deformable cross-attention.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 8,
        cross_attention: CrossAttention = "deformable",
        num_points: int = 4,
        mlp_ratio: float = 4.0,
    ) -> None:
        super().__init__()
        check_choice("cross_attention", cross_attention, get_args(CrossAttention))
        self.self_attn = MultiHeadAttention(dim, num_heads=num_heads)
        self.cross_attn: DeformableAttention | MultiHeadAttention
        if cross_attention == "deformable":
            self.cross_attn = DeformableAttention(dim, num_heads=num_heads, num_points=num_points)
        else:
            self.cross_attn = MultiHeadAttention(dim, num_heads=num_heads)
            self.cross_attn.tap.kind = "queries"
        self.mlp = FeedForward(dim, round(mlp_ratio * dim))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))

    def forward(
        self,
        x: Float[Tensor, "b n c"],
        position: Float[Tensor, "*#b n c"],
        boxes: Float[Tensor, "b n 4"],
        memory: Memory,
        mask: Bool[Tensor, "b n n"] | None = None,
    ) -> tuple[Float[Tensor, "b n c"], SamplingPoints | None]:
        """Return the updated queries, and the points that deformable attention sampled.

        Args:
            x: Content of the queries.
            position: Position embedding of the queries, added to queries and keys.
            boxes: Box of each query: center x, center y, width, height, relative to the image.
            memory: Image features.
            mask: True = may attend, among queries.
        """
        query = x + position
        x = self.norm1(x + self.self_attn(query, query, x, mask=mask)[0])
        attended, points = self._attend_image(x + position, boxes, memory)
        x = self.norm2(x + attended)
        return self.norm3(x + self.mlp(x)), points

    def _attend_image(
        self, query: Float[Tensor, "b n c"], boxes: Float[Tensor, "b n 4"], memory: Memory
    ) -> tuple[Float[Tensor, "b n c"], SamplingPoints | None]:
        if isinstance(self.cross_attn, DeformableAttention):
            return self.cross_attn(query, boxes, memory.features)
        values = memory.features.flatten(2).mT
        self.cross_attn.tap.grid = memory.grid
        return self.cross_attn(query, values + memory.position, values)[0], None


def sine_embed(x: Float[Tensor, "*b s"], dim: int) -> Float[Tensor, "*b {dim}"]:
    """Return sines and cosines of each coordinate, at wavelengths from 1 to 20.

    Args:
        x: Coordinates, relative to the image.
        dim: Dimension of the result; a multiple of twice the number of coordinates.

    Raises:
        ValueError: If it is no such multiple.

    Example:
        >>> sine_embed(torch.tensor([[0.25]]), 2)
        tensor([[ 1.0000e+00, -4.3711e-08]])

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.5; Liu et al. 2022, arXiv:2201.12329
        (DAB-DETR), equation 4, for boxes, and the temperature of 20.
    """
    count, rest = divmod(dim, 2 * x.shape[-1])
    if rest:
        raise ValueError(f"dim must be a multiple of {2 * x.shape[-1]}, got {dim}")
    frequencies = inverse_frequencies(count, _TEMPERATURE, x.device).to(x)
    angles = 2 * math.pi * x[..., None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), -1).flatten(-2)


def cell_centers(grid: tuple[int, int], *, like: Tensor) -> Float[Tensor, "m 2"]:
    """Return x and y of the centers of all cells relative to the grid, row by row.

    Example:
        >>> cell_centers((1, 2), like=torch.zeros(1)).tolist()
        [[0.25, 0.5], [0.75, 0.5]]
    """
    y, x = ((torch.arange(n, device=like.device, dtype=like.dtype) + 0.5) / n for n in grid)
    return torch.stack((x.expand(len(y), -1), y[:, None].expand(-1, len(x))), -1).flatten(0, 1)
