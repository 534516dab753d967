"""Encoder layer of a transformer, with its MLP, and paths that are dropped in training."""

from collections.abc import Iterable
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from visattn.blocks.transformer.token_attention import TokenAttention, TokenLayout
from visattn.blocks.transformer.window_attention import WindowAttention
from visattn.functional.windows import random_token_indices


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


class PatchDropout(nn.Module):
    """Patch dropout: keeps a random subset of the patch tokens per image in training.

    Prefix tokens are kept. The layout stores the kept indices, so that maps can place them. At
    least one patch is kept.

    Raises:
        ValueError: If it is not at least 0 and below 1.

    Example:
        >>> x, layout = PatchDropout(0.5)(torch.zeros(1, 5, 3), TokenLayout((2, 2), ("class",)))
        >>> x.shape, layout.keep_indices.shape
        (torch.Size([1, 3, 3]), torch.Size([1, 2]))

    Source:
        Liu et al. 2022, arXiv:2208.07220, section 3.2. Position embeddings are not recomputed.
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        if not 0 <= drop_prob < 1:
            raise ValueError(f"drop_prob must be in [0, 1), got {drop_prob}")
        self.drop_prob = drop_prob

    def forward(
        self, x: Float[Tensor, "b n c"], layout: TokenLayout
    ) -> tuple[Float[Tensor, "b m c"], TokenLayout]:
        """Return the kept tokens in their order, and their layout."""
        if not self.training or self.drop_prob == 0:
            return x, layout
        before = layout.num_prefix_tokens
        patches = x.shape[1] - layout.num_prefix_tokens
        count = max(1, int(patches * (1 - self.drop_prob)))
        kept = random_token_indices(x.shape[0], patches, count, device=x.device)
        prefix = torch.arange(before, device=x.device).expand(x.shape[0], -1)
        indices = torch.cat((prefix, kept + before), 1)
        layout = layout._replace(
            keep_indices=kept, rotation=_select_rotations(layout.rotation, indices)
        )
        return x.gather(1, indices.unsqueeze(-1).expand(-1, -1, x.shape[2])), layout

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"{self.drop_prob:g}"


def _select_rotations(
    rotation: tuple[Tensor, Tensor] | None, indices: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Return the rotary embeddings of the kept tokens of each image."""
    if rotation is None:
        return None
    cosines, sines = (table[0, 0][indices].unsqueeze(1) for table in rotation)
    return cosines, sines


class LayerScale(nn.Module):
    """Layer scale: multiplies each channel by a learned factor.

    Example:
        >>> LayerScale(2, 0.5)(torch.ones(1, 1, 2))
        tensor([[[0.5000, 0.5000]]], grad_fn=<MulBackward0>)

    Source:
        Touvron et al. 2021, arXiv:2103.17239, equation 4.
    """

    def __init__(self, dim: int, init_value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), float(init_value)))

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        """Return the scaled branch."""
        return x * self.gamma


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them.

    Example:
        >>> import torch
        >>> FeedForward(4, 8)(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 4])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.1.
    """

    def __init__(self, dim: int, hidden_dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim, bias=bias)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim, bias=bias)

    def forward(self, x: Float[Tensor, "*b c"]) -> Float[Tensor, "*b c"]:
        """Return the output of the residual branch."""
        return self.fc2(self.act(self.fc1(x)))


class SwiGLU(nn.Module):
    """SwiGLU feed-forward layer: SiLU(gate) * value, then a linear layer.

    Example:
        >>> import torch
        >>> SwiGLU(4, 8)(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 4])

    Source:
        Shazeer 2020, arXiv:2002.05202, equation 6; gate and value in one linear layer, the gate
        first, as in DINOv2.
    """

    def __init__(self, dim: int, hidden_dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * hidden_dim, bias=bias)
        self.fc2 = nn.Linear(hidden_dim, dim, bias=bias)

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        """Return the output of the residual branch."""
        gate, value = self.fc1(x).chunk(2, -1)
        return self.fc2(silu(gate) * value)


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
