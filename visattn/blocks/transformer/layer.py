"""Encoder layer of a transformer, with its MLP, and paths that are dropped in training."""

from collections.abc import Iterable
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from visattn.blocks.transformer.token_attention import TokenAttention, TokenLayout


class DropPath(nn.Module):
    """Stochastic depth: drops a residual branch per sample in training and rescales the others.

    Raises:
        ValueError: If the probability is not in [0, 1].

    Example:
        >>> import torch
        >>> DropPath(1.0)(torch.ones(2, 1)), DropPath(1.0).eval()(torch.ones(1, 1))
        (tensor([[0.], [0.]]), tensor([[1.]]))

    Source:
        Huang et al. 2016, arXiv:1603.09382, section 3. Deviation: branches are scaled in
        training, as in dropout, and not at inference.
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        if not 0 <= drop_prob <= 1:
            raise ValueError(f"drop_prob must be in [0, 1], got {drop_prob}")
        self.drop_prob = drop_prob

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Return the branch, zero for dropped samples."""
        if not self.training or self.drop_prob == 0:
            return x
        keep_prob = 1 - self.drop_prob
        mask = x.new_empty((x.shape[0], *(1,) * (x.ndim - 1))).bernoulli_(keep_prob)
        return x * (mask / keep_prob if keep_prob else mask)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"{self.drop_prob:g}"


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them.

    Example:
        >>> import torch
        >>> FeedForward(4, 8)(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 4])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.1.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Float[Tensor, "*b c"]) -> Float[Tensor, "*b c"]:
        """Return the output of the residual branch."""
        return self.fc2(self.act(self.fc1(x)))


class EncoderLayer(nn.Module):
    """Pre-norm transformer encoder layer.

    Args:
        dim: Token dimension.
        attention: Attention module; called with tokens and their layout.
        feed_forward: Feed-forward module; called with tokens.
        drop_path: Stochastic depth probability of each branch.

    Example:
        >>> from visattn.blocks.transformer.layer import FeedForward
        >>> layer = EncoderLayer(8, TokenAttention(8, num_heads=2), FeedForward(8, 16))
        >>> layer(torch.zeros(1, 6, 8), TokenLayout((2, 3))).shape
        torch.Size([1, 6, 8])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929, equations 2 and 3; parameter names as in timm.
    """

    def __init__(
        self,
        dim: int,
        attention: TokenAttention,
        feed_forward: nn.Module,
        *,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, 1e-6)
        self.attn = attention
        self.norm2 = nn.LayerNorm(dim, 1e-6)
        self.mlp = feed_forward
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b n c"]:
        """Return the updated tokens."""
        x = x + self.drop_path(self.attn(self.norm1(x), layout))
        return x + self.drop_path(self.mlp(self.norm2(x)))


def run_layers(
    layers: Iterable[nn.Module],
    x: Float[Tensor, "b n c"],
    layout: TokenLayout,
    *,
    grad_checkpointing: bool = False,
) -> Float[Tensor, "b n c"]:
    """Apply encoder layers in sequence.

    With `grad_checkpointing` activations are computed again in the backward pass, but not those of
    a layer that is being recorded, or it would be recorded twice.

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
