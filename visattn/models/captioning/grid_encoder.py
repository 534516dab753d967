"""Self-attention layers on a feature grid, with memory slots."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.transformer.layer import EncoderLayer, FeedForward
from visattn.blocks.transformer.token_attention import TokenAttention, TokenLayout
from visattn.functional.attention import dot_product_attention


class MemoryAttention(nn.Module):
    """Multi-head self-attention whose keys and values include learned memory slots.

    Without slots it equals `TokenAttention` with the same weights. It passes no weights to
    recorders: attention to a slot has no place in the image.

    Args:
        dim: Dimension of the places.
        num_heads: Number of heads; it divides `dim`.
        memory_slots: Number of slots.

    Example:
        >>> MemoryAttention(12, num_heads=3, memory_slots=5)(torch.zeros(1, 6, 12)).shape
        torch.Size([1, 6, 12])

    Source:
        Cornia et al. 2020, arXiv:1912.08226, equations 2 and 3; initial values and scales as in
        the authors' code.
    """

    def __init__(self, dim: int, *, num_heads: int, memory_slots: int) -> None:
        super().__init__()
        self.num_heads, head_dim = num_heads, dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.memory_keys = nn.Parameter(torch.randn(num_heads, memory_slots, head_dim))
        self.memory_values = nn.Parameter(torch.randn(num_heads, memory_slots, head_dim))

    def forward(
        self,
        x: Float[Tensor, "b n c"],
        layout: TokenLayout | None = None,  # noqa: ARG002 (the signature of `TokenAttention`)
    ) -> Float[Tensor, "b n c"]:
        """Return the attention output of each place."""
        parts = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, keys, values = parts.unbind(0)
        keys = torch.cat((keys, self.memory_keys.expand(len(x), -1, -1, -1)), -2)
        values = torch.cat((values, self.memory_values.expand(len(x), -1, -1, -1)), -2)
        output, _ = dot_product_attention(query, keys, values)
        return self.proj(output.transpose(1, 2).flatten(2))


class GridEncoder(nn.Module):
    """Pre-norm transformer encoder on the places of a feature grid; returns every layer.

    Args:
        dim: Dimension of the places.
        num_heads: Number of heads; it divides `dim`.
        num_layers: Number of layers; without any, the places are returned unchanged.
        mlp_ratio: Hidden size of the feed-forward layers, as a multiple of `dim`.
        memory_slots: Learned keys and values beside those of the places, in each layer.

    Example:
        >>> encoder = GridEncoder(12, num_heads=3, num_layers=2, memory_slots=5)
        >>> [level.shape for level in encoder(torch.zeros(1, 6, 12), (2, 3))]
        [torch.Size([1, 6, 12]), torch.Size([1, 6, 12])]

    Source:
        Cornia et al. 2020, arXiv:1912.08226, section 3.1. Deviation: pre-norm layers.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_layers: int,
        *,
        mlp_ratio: float = 4.0,
        memory_slots: int = 0,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(
                dim,
                MemoryAttention(dim, num_heads=num_heads, memory_slots=memory_slots)
                if memory_slots
                else TokenAttention(dim, num_heads=num_heads),  # pyright: ignore[reportArgumentType] (the same call)
                FeedForward(dim, round(mlp_ratio * dim)),
            )
            for _ in range(num_layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(num_layers))

    def forward(
        self, places: Float[Tensor, "b n c"], grid_size: tuple[int, int]
    ) -> list[Float[Tensor, "b n c"]]:
        """Return the normalized output of each layer; without layers, the places."""
        layout = TokenLayout(grid_size)
        levels: list[Tensor] = []
        for layer, norm in zip(self.layers, self.norms, strict=True):
            places = layer(places, layout)
            levels.append(norm(places))
        return levels or [places]
