"""Self-attention among the tokens of an image: full, windowed, neighborhood or linear."""

from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import check_choice
from visattn.blocks.tap import Tap
from visattn.blocks.transformer.token_layout import TokenLayout
from visattn.functional.attention.linear import linear_attention, linear_attention_weights
from visattn.functional.attention.softmax import (
    dot_product_attention,
    dot_product_attention_weights,
)
from visattn.functional.attention.token_groups import (
    TokenGroups,
    dense_mask_and_bias,
    exclude_self,
    grouped_attention,
    neighborhood_groups,
    window_groups,
)
from visattn.functional.positions.relative import relative_position_bias
from visattn.functional.positions.rotary import apply_rotary
from visattn.functional.tokens import scatter_kept_weights

AttentionType = Literal["full", "window", "shifted", "neighborhood", "linear"]


class _Projections(NamedTuple):
    """Queries, keys and values `[b, h, n, d]`, and the token groups within which they attend."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    groups: TokenGroups | None


class TokenAttention(nn.Module):
    """Multi-head self-attention among tokens, with a choice of attention patterns.

    The output comes from a fused kernel. Recorded rows are computed separately, and only the
    requested ones; if gradients with respect to the weights are requested, the output is computed
    from them. Prefix tokens attend to all tokens and all attend to them, whatever the pattern.

    Args:
        dim: Token dimension.
        num_heads: Number of heads; it divides `dim`.
        attn_type: Pattern: `full`; `window` within non-overlapping windows, `shifted` the same
            shifted by half a window; `neighborhood` within a window around each token; `linear`
            (kernelized, no softmax, linear in the number of tokens).
        window_size: Height and width of a window or neighborhood; odd for a neighborhood.
        qkv_bias: Whether the query, key and value projections have biases.
        qk_norm: Whether queries and keys are normalized per head.
        max_relative_position: Largest vertical and horizontal offset of the learned relative
            position bias; None for no bias.
        lsa: Whether to use locality self-attention: learned temperature, no self-token attention.
        norm_eps: Epsilon of the normalization layers.

    Raises:
        ValueError: If `num_heads` does not divide `dim`, `attn_type` is unknown, or linear
            attention is combined with options that need a softmax.

    Example:
        >>> attention = TokenAttention(8, num_heads=2, attn_type="window", window_size=(2, 2))
        >>> attention(torch.zeros(1, 13, 8), TokenLayout((3, 4), ("class",))).shape
        torch.Size([1, 13, 8])

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; windows and biases: Liu et al. 2021,
        arXiv:2103.14030; neighborhoods: Hassani et al. 2023, arXiv:2204.07143; linear:
        Katharopoulos et al. 2020, arXiv:2006.16236; norms: Dehghani et al. 2023, arXiv:2302.05442;
        locality: Lee et al. 2021, arXiv:2112.13492, section 3.2. Parameter names as in timm.
    """

    NO_WEIGHT_DECAY = ("temperature", "biases")

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 8,
        attn_type: AttentionType = "full",
        window_size: tuple[int, int] = (7, 7),
        qkv_bias: bool = True,
        qk_norm: bool = False,
        max_relative_position: tuple[int, int] | None = None,
        lsa: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        check_choice("attn_type", attn_type, get_args(AttentionType))
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads must divide dim {dim}, got {num_heads}")
        if attn_type == "linear" and (lsa or max_relative_position is not None):
            raise ValueError(
                "linear attention has no softmax and supports neither lsa nor relative positions: "
                "drop them, or choose another attn_type"
            )
        self.num_heads, self.attn_type, self.window_size = num_heads, attn_type, window_size
        self.lsa, head_dim = lsa, dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.q_norm = nn.LayerNorm(head_dim, norm_eps) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(head_dim, norm_eps) if qk_norm else nn.Identity()
        self.temperature = (
            nn.Parameter(torch.full((num_heads, 1, 1), head_dim**-0.5)) if lsa else None
        )
        self.biases = None
        if max_relative_position is not None:
            table_size = (2 * offset + 1 for offset in max_relative_position)
            self.biases = nn.Parameter(torch.empty(num_heads, *table_size))
            nn.init.trunc_normal_(self.biases, std=0.02)
        self.proj = nn.Linear(dim, dim)
        self.tap = Tap("tokens")

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b n c"]:
        """Return the attention output of each token."""
        heads = self._project(x, layout)
        weights = self._record_weights(heads, layout) if self.tap.wanted else None
        if weights is not None and self.tap.differentiable:
            output = weights @ heads.values
        else:
            output = self._attend(heads, layout)
        return self.proj(output.transpose(1, 2).flatten(2))

    def _project(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> _Projections:
        """Return queries, keys and values, and the groups within which they attend."""
        parts = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        queries, keys = self.q_norm(queries), self.k_norm(keys)
        if layout.rotation is not None:
            queries, keys = (apply_rotary(part, *layout.rotation) for part in (queries, keys))
        if self.temperature is not None:
            queries = queries * self.temperature
        return _Projections(queries, keys, values, self._groups(layout, x.device))

    def _groups(self, layout: TokenLayout, device: torch.device) -> TokenGroups | None:
        if self.attn_type in ("full", "linear"):
            return None
        num_prefix = layout.num_prefix_tokens
        if self.attn_type == "neighborhood":
            groups = neighborhood_groups(
                layout.grid, self.window_size, num_prefix_tokens=num_prefix, device=device
            )
        else:
            half = (self.window_size[0] // 2, self.window_size[1] // 2)
            shift = half if self.attn_type == "shifted" else (0, 0)
            groups = window_groups(
                layout.grid, self.window_size, shift, num_prefix_tokens=num_prefix, device=device
            )
        return exclude_self(groups) if self.lsa else groups

    @property
    def _scale(self) -> float | None:
        return 1.0 if self.lsa else None

    def _relative_bias(self, queries: Tensor, keys: Tensor, layout: TokenLayout) -> Tensor | None:
        if self.biases is None:
            return None
        return relative_position_bias(
            self.biases, queries, keys, layout.grid[1], num_prefix_tokens=layout.num_prefix_tokens
        )

    def _attend(self, heads: _Projections, layout: TokenLayout) -> Float[Tensor, "b h n d"]:
        queries, keys, values, groups = heads
        if self.attn_type == "linear":
            return linear_attention(queries, keys, values)[0]
        if groups is not None:
            bias = self._relative_bias(groups.queries, groups.keys, layout)
            return grouped_attention(queries, keys, values, groups, bias=bias, scale=self._scale)
        mask = bias = None
        if self.lsa or self.biases is not None:
            tokens = torch.arange(queries.shape[2], device=queries.device)
            mask = tokens != tokens[:, None] if self.lsa else None
            bias = self._relative_bias(tokens, tokens, layout)
        return dot_product_attention(
            queries, keys, values, mask=mask, bias=bias, scale=self._scale
        )[0]

    def _record_weights(self, heads: _Projections, layout: TokenLayout) -> Float[Tensor, "b h r n"]:
        """Pass the requested rows of the attention matrix through the tap."""
        layout.check_differentiable(differentiable=self.tap.differentiable)
        request, count = self.tap.request, heads.queries.shape[2]
        selected = request.head_indices(self.num_heads)
        rows = request.query_indices(layout.roles, layout.num_tokens)
        tokens = torch.arange(count, device=heads.queries.device)
        if layout.keep_indices is None:
            weights = self._attention_rows(heads, tokens[rows], selected, layout)
        else:
            weights = self._attention_rows(heads, tokens, selected, layout)
            for _ in range(2):  # restore the dropped keys, then the dropped queries
                weights = scatter_kept_weights(
                    weights.mT,
                    layout.keep_indices,
                    num_tokens=layout.num_tokens,
                    num_prefix_tokens=layout.num_prefix_tokens,
                )
            weights = weights[:, :, rows]
        self.tap.grid, self.tap.roles, self.tap.fulfilled = layout.grid, layout.roles, request
        self.tap.notes = {**layout.notes, "attention": self.attn_type}
        return self.tap(weights)

    def _attention_rows(
        self, heads: _Projections, rows: Tensor, selected: slice | list[int], layout: TokenLayout
    ) -> Float[Tensor, "b h r n"]:
        """Return the attention weights of some query tokens, for some of the heads."""
        queries, keys = heads.queries[:, selected][:, :, rows], heads.keys[:, selected]
        if self.attn_type == "linear":
            return linear_attention_weights(queries, keys)
        tokens = torch.arange(keys.shape[2], device=rows.device)
        if heads.groups is None:
            bias = self._relative_bias(rows, tokens, layout)
            mask = tokens != rows[:, None] if self.lsa else None
        else:
            group_bias = self._relative_bias(heads.groups.queries, heads.groups.keys, layout)
            mask, bias = dense_mask_and_bias(heads.groups, rows, len(tokens), group_bias)
        bias = None if bias is None else bias[selected]
        return dot_product_attention_weights(queries, keys, mask=mask, bias=bias, scale=self._scale)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"num_heads={self.num_heads}, attn_type={self.attn_type}"
