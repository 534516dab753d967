"""Transformer encoder layer: pre-norm attention and feed-forward with residual connections."""

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
    """Pre-norm transformer encoder layer.

    Args:
        dim: Token dimension.
        attention: Attention module; called with tokens and their layout.
        feed_forward: Feed-forward module; called with tokens.
        layer_scale: Initial value of the layer scale of both branches; None for no layer scale.
        drop_path: Stochastic depth probability of each branch.
        norm_eps: Epsilon of the layer norms.

    Example:
        >>> from visattn.blocks.transformer.mlp import FeedForward
        >>> layer = EncoderLayer(8, TokenAttention(8, num_heads=2), FeedForward(8, 16))
        >>> layer(torch.zeros(1, 6, 8), TokenLayout((2, 3))).shape
        torch.Size([1, 6, 8])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929, equations 2 and 3; parameter names as in timm.
    """

    def __init__(
        self,
        dim: int,
        attention: TokenAttention | WindowAttention,
        feed_forward: nn.Module,
        *,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, norm_eps)
        self.attn = attention
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, norm_eps)
        self.mlp = feed_forward
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b n c"]:
        """Return the updated tokens."""
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x), layout)))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


def run_layers(
    layers: Iterable[nn.Module],
    x: Float[Tensor, "b n c"],
    layout: TokenLayout,
    *,
    grad_checkpointing: bool = False,
) -> Float[Tensor, "b n c"]:
    """Apply encoder layers in sequence.

    Args:
        layers: `EncoderLayer` modules.
        x: Tokens.
        layout: Layout of the tokens.
        grad_checkpointing: Whether to recompute activations in the backward pass to save memory. A
            layer that is being recorded is not checkpointed, or it would be recorded twice.

    Example:
        >>> run_layers((), torch.ones(1, 6, 2), TokenLayout((2, 3))).shape
        torch.Size([1, 6, 2])
    """
    grad_checkpointing = grad_checkpointing and torch.is_grad_enabled()
    for layer in layers:
        if grad_checkpointing and not cast("EncoderLayer", layer).attn.tap.wanted:
            x = cast("Tensor", checkpoint(layer, x, layout, use_reentrant=False))
        else:
            x = layer(x, layout)
    return x
