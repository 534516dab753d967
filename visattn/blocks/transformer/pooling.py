"""Attention pooling of tokens: learned query (MAP head) and sequence pooling."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.blocks.transformer.layer import FeedForward
from visattn.blocks.transformer.token_attention import TokenLayout
from visattn.functional.attention import dot_product_attention, dot_product_attention_weights
from visattn.functional.windows import scatter_kept_weights


class AttentionPool(nn.Module):
    """Multi-head attention pooling (MAP head): a learned query attends to all patch tokens.

    The tap receives one map per head.

    Raises:
        ValueError: If `num_heads` does not divide `dim`.

    Example:
        >>> pool = AttentionPool(8, num_heads=2, hidden_dim=16)
        >>> pool(torch.zeros(1, 6, 8), TokenLayout((2, 3))).shape
        torch.Size([1, 8])

    Source:
        Zhai et al. 2021, arXiv:2106.04560, section 3.4 (MAP head); parameter names as in timm.
    """

    NO_WEIGHT_DECAY = ("latent",)

    def __init__(
        self, dim: int, *, num_heads: int, hidden_dim: int, norm_eps: float = 1e-6
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads must divide dim {dim}, got {num_heads}")
        self.num_heads = num_heads
        self.latent = nn.Parameter(torch.empty(1, 1, dim))
        nn.init.trunc_normal_(self.latent, std=dim**-0.5)
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, norm_eps)
        self.mlp = FeedForward(dim, hidden_dim)
        self.tap = Tap("tokens", single_query=True)

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b c"]:
        """Return one vector per image from its patch tokens."""
        query = self.q(self.latent).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        query = query.expand(x.shape[0], -1, -1, -1)
        keys, values = (
            self.kv(x).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        )
        weights = self._record_weights(query, keys, layout) if self.tap.wanted else None
        if weights is not None and self.tap.differentiable:
            output = weights.unsqueeze(2) @ values
        else:
            output = dot_product_attention(query, keys, values)[0]
        pooled = self.proj(output.transpose(1, 2).flatten(2))
        return (pooled + self.mlp(self.norm(pooled))).squeeze(1)

    def _record_weights(
        self,
        query: Float[Tensor, "b h 1 d"],
        keys: Float[Tensor, "b h n d"],
        layout: TokenLayout,
    ) -> Float[Tensor, "b h m"]:
        layout.check_differentiable(differentiable=self.tap.differentiable)
        weights = dot_product_attention_weights(query, keys).squeeze(2)
        if layout.keep_indices is not None:
            weights = scatter_kept_weights(
                weights,
                layout.keep_indices,
                num_tokens=layout.num_tokens - layout.num_prefix_tokens,
            )
        self.tap.grid = layout.grid
        self.tap.notes = {**layout.notes, "pool": "attention"}
        return self.tap(weights)


class SequencePool(nn.Module):
    """Sequence pooling: softmax-weighted mean of the patch tokens, with learned scores.

    The tap receives one map.

    Example:
        >>> import torch
        >>> SequencePool(4)(torch.ones(1, 6, 4), TokenLayout((2, 3)))
        tensor([[1., 1., 1., 1.]], grad_fn=<SqueezeBackward1>)

    Source:
        Hassani et al. 2021, arXiv:2104.05704, section 3.2.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)
        self.tap = Tap("tokens", single_query=True)

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b c"]:
        """Return one vector per image from its patch tokens."""
        weights = self.score(x).mT.softmax(-1)
        if self.tap.wanted:
            layout.check_differentiable(differentiable=self.tap.differentiable)
            recorded = weights.squeeze(1)
            if layout.keep_indices is not None:
                recorded = scatter_kept_weights(
                    recorded,
                    layout.keep_indices,
                    num_tokens=layout.num_tokens - layout.num_prefix_tokens,
                )
            self.tap.grid = layout.grid
            self.tap.notes = {**layout.notes, "pool": "sequence"}
            recorded = self.tap(recorded)
            weights = recorded.unsqueeze(1) if self.tap.differentiable else weights
        return (weights @ x).squeeze(1)
