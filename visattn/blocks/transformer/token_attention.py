"""Self-attention of the tokens of an image: prefix tokens, then a grid."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.attention import dot_product_attention, dot_product_attention_weights


class TokenLayout(NamedTuple):
    """Layout of tokens: prefix tokens by role, then the patch tokens of a grid in row-major order.

    Example:
        >>> TokenLayout((2, 3), ("class",)).num_tokens
        7
    """

    grid: tuple[int, int]
    """Height and width of the grid."""
    roles: tuple[str, ...] = ()
    """Roles of the prefix tokens, such as `class`."""

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before the patch tokens."""
        return len(self.roles)

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return len(self.roles) + self.grid[0] * self.grid[1]


class TokenAttention(nn.Module):
    """Multi-head self-attention among tokens.

    The output comes from a fused kernel. Recorded rows are computed separately, and only the
    requested ones; if gradients with respect to the weights are requested, the output is computed
    from them.

    Args:
        dim: Token dimension.
        num_heads: Number of heads; it divides `dim`.
        qkv_bias: Whether the query, key and value projections have biases.
        lsa: Whether to use locality self-attention: learned temperature, no self-token attention.

    Raises:
        ValueError: If `num_heads` does not divide `dim`.

    Example:
        >>> attention = TokenAttention(8, num_heads=2)
        >>> attention(torch.zeros(1, 13, 8), TokenLayout((3, 4), ("class",))).shape
        torch.Size([1, 13, 8])

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; locality: Lee et al. 2021,
        arXiv:2112.13492, section 3.2. Parameter names as in timm.
    """

    NO_WEIGHT_DECAY = ("temperature",)

    def __init__(
        self, dim: int, *, num_heads: int = 8, qkv_bias: bool = True, lsa: bool = False
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads must divide dim {dim}, got {num_heads}")
        self.num_heads = num_heads
        self.lsa = lsa
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        scale = (dim // num_heads) ** -0.5
        self.temperature = nn.Parameter(torch.full((num_heads, 1, 1), scale)) if lsa else None
        self.proj = nn.Linear(dim, dim)
        self.tap = Tap("tokens")

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b n c"]:
        """Return the attention output of each token."""
        parts = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        if self.temperature is not None:
            queries = queries * self.temperature
        weights = self._record_weights(queries, keys, layout) if self.tap.wanted else None
        if weights is not None and self.tap.differentiable:
            output = weights @ values
        else:
            mask = self._not_self(torch.arange(x.shape[1], device=x.device), x.shape[1])
            output = dot_product_attention(queries, keys, values, mask=mask, scale=self._scale)[0]
        return self.proj(output.transpose(1, 2).flatten(2))

    @property
    def _scale(self) -> float | None:
        return 1.0 if self.lsa else None

    def _not_self(self, rows: Tensor, count: int) -> Tensor | None:
        """Return which of the tokens each row may attend to; None for all."""
        return torch.arange(count, device=rows.device) != rows[:, None] if self.lsa else None

    def _record_weights(
        self, queries: Float[Tensor, "b h n d"], keys: Float[Tensor, "b h n d"], layout: TokenLayout
    ) -> Float[Tensor, "b g r n"]:
        """Pass the requested rows of the attention matrix through the tap."""
        request = self.tap.request
        selected = request.head_indices(self.num_heads)
        rows = torch.arange(keys.shape[2], device=keys.device)
        rows = rows[request.query_indices(layout.roles, layout.num_tokens)]
        weights = dot_product_attention_weights(
            queries[:, selected][:, :, rows],
            keys[:, selected],
            mask=self._not_self(rows, keys.shape[2]),
            scale=self._scale,
        )
        self.tap.grid = layout.grid
        self.tap.roles = layout.roles
        self.tap.fulfilled = request
        return self.tap(weights)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"num_heads={self.num_heads}"
