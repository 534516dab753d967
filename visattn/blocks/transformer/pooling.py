"""From tokens to one, by a learnt query."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.blocks.transformer.mlp import FeedForward
from visattn.blocks.transformer.token_layout import TokenLayout
from visattn.functional.attention.softmax import attention, attention_weights
from visattn.functional.tokens import weights_in_place


class AttentionPool(nn.Module):
    """Let a learnt query attend to all tokens of the grid, and pass what it took through a layer.

    The weights are a map, one for each head, which the tap shows.

    Args:
        width: Of a token.
        heads: How many there are; they divide the width.
        hidden: Width of the hidden layer behind the attention.
        epsilon: Added to variances in the norm.

    Raises:
        ValueError: If the heads do not divide the width.

    Example:
        >>> pool = AttentionPool(8, heads=2, hidden=16)
        >>> pool(torch.zeros(1, 6, 8), TokenLayout((2, 3))).shape
        torch.Size([1, 8])

    Source:
        Zhai et al. 2021, arXiv:2106.04560, section 3.4 (MAP head); named as in timm.
    """

    UNDECAYED = ("latent",)

    def __init__(self, width: int, *, heads: int, hidden: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"heads must divide the width {width}, got {heads}")
        self.heads = heads
        self.latent = nn.Parameter(torch.empty(1, 1, width))
        nn.init.trunc_normal_(self.latent, std=width**-0.5)
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, epsilon)
        self.mlp = FeedForward(width, hidden)
        self.tap = Tap("tokens", lone=True)

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b c"]:
        """Return one vector for each image; the tokens are those of the grid alone."""
        query = self.q(self.latent).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        query = query.expand(x.shape[0], -1, -1, -1)
        keys, values = self.kv(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        shown = self._show(query, keys, layout) if self.tap.wanted else None
        if shown is not None and self.tap.woven:
            seen = shown.unsqueeze(2) @ values
        else:
            seen = attention(query, keys, values)[0]
        taken = self.proj(seen.transpose(1, 2).flatten(2))
        return (taken + self.mlp(self.norm(taken))).squeeze(1)

    def _show(
        self,
        query: Float[Tensor, "b h 1 d"],
        keys: Float[Tensor, "b h n d"],
        layout: TokenLayout,
    ) -> Float[Tensor, "b h m"]:
        layout.check_woven(woven=self.tap.woven)
        weights = attention_weights(query, keys).squeeze(2)
        if layout.kept is not None:
            weights = weights_in_place(weights, layout.kept, count=layout.tokens - layout.before)
        self.tap.grid, self.tap.notes = layout.grid, {**layout.notes, "pool": "attention"}
        return self.tap(weights)


class SequencePool(nn.Module):
    """Take a mean of the tokens of the grid, weighted by a softmax over a linear map of each.

    The weights are a map, which the tap shows.

    Args:
        width: Of a token.

    Example:
        >>> import torch
        >>> SequencePool(4)(torch.ones(1, 6, 4), TokenLayout((2, 3)))
        tensor([[1., 1., 1., 1.]], grad_fn=<SqueezeBackward1>)

    Source:
        Hassani et al. 2021, arXiv:2104.05704, section 3.2.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)
        self.tap = Tap("tokens", lone=True)

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b c"]:
        """Return one vector for each image; the tokens are those of the grid alone."""
        weights = self.score(x).mT.softmax(-1)
        if self.tap.wanted:
            layout.check_woven(woven=self.tap.woven)
            shown = weights.squeeze(1)
            if layout.kept is not None:
                shown = weights_in_place(shown, layout.kept, count=layout.tokens - layout.before)
            self.tap.grid, self.tap.notes = layout.grid, {**layout.notes, "pool": "sequence"}
            shown = self.tap(shown)
            weights = shown.unsqueeze(1) if self.tap.woven else weights
        return (weights @ x).squeeze(1)
