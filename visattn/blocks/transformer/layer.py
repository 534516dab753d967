"""One layer of a transformer: among the tokens, then for each by itself."""

from collections.abc import Iterable
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from visattn.blocks.transformer.attention import TokenAttention
from visattn.blocks.transformer.drop import DropPath, LayerScale
from visattn.blocks.transformer.token_layout import TokenLayout
from visattn.blocks.transformer.window_attention import WindowAttention


class EncoderLayer(nn.Module):
    """Add to the tokens what attention makes of their norm, then what a feed-forward layer does.

    Args:
        width: Of a token.
        attention: Takes tokens and their layout.
        feed_forward: Takes tokens.
        layer_scale: What the scales of both branches are at first; None for no scales.
        drop_path: How likely each branch is left out in training.
        epsilon: Added to variances in the norms.

    Example:
        >>> from visattn.blocks.transformer.mlp import FeedForward
        >>> layer = EncoderLayer(8, TokenAttention(8, heads=2), FeedForward(8, 16))
        >>> layer(torch.zeros(1, 6, 8), TokenLayout((2, 3))).shape
        torch.Size([1, 6, 8])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929, equations 2 and 3; named as in timm.
    """

    def __init__(
        self,
        width: int,
        attention: TokenAttention | WindowAttention,
        feed_forward: nn.Module,
        *,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, epsilon)
        self.attn = attention
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.norm2 = nn.LayerNorm(width, epsilon)
        self.mlp = feed_forward
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b n c"]:
        """Return the tokens, changed."""
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x), layout)))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


def through_layers(
    layers: Iterable[nn.Module],
    x: Float[Tensor, "b n c"],
    layout: TokenLayout,
    *,
    again: bool = False,
) -> Float[Tensor, "b n c"]:
    """Return the tokens behind several layers.

    Args:
        layers: Each an `EncoderLayer`.
        x: Tokens.
        layout: How they lie.
        again: Whether to compute layers again for their gradients and keep less in memory. A layer
            whose weights somebody records is computed once, since it would be seen twice.

    Example:
        >>> through_layers((), torch.ones(1, 6, 2), TokenLayout((2, 3))).shape
        torch.Size([1, 6, 2])
    """
    again = again and torch.is_grad_enabled()
    for layer in layers:
        if again and not cast("EncoderLayer", layer).attn.tap.wanted:
            x = cast("Tensor", checkpoint(layer, x, layout, use_reentrant=False))
        else:
            x = layer(x, layout)
    return x
