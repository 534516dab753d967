"""Attention of the tokens of an image: prefix tokens, grid, dropped patches."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from visattn.blocks.base import check_choice
from visattn.blocks.tap import Tap
from visattn.functional.attention import dot_product_attention, dot_product_attention_weights
from visattn.functional.numerics import at_least_float32, without_autocast
from visattn.functional.positions import apply_rotary, relative_position_bias
from visattn.functional.windows import check_odd_kernel, scatter_kept_weights, window_indices


class TokenLayout(NamedTuple):
    """Layout of tokens: prefix tokens by role, then the patch tokens of a grid in row-major order.

    Example:
        >>> TokenLayout((2, 3), ("class",)).num_tokens
        7
    """

    grid: tuple[int, int]
    """Height and width of the grid."""
    roles: tuple[str, ...] = ()
    """Roles of the prefix tokens: `class`, `distillation`, `register`."""
    keep_indices: Int[Tensor, "b m"] | None = None
    """Indices of the kept patch tokens of each image; None if all are kept."""
    rotation: tuple[Tensor, Tensor] | None = None
    """Cosines and sines of the rotary position embedding, `[#b, 1, n, d / 2]`."""
    notes: Mapping[str, Any] = {}
    """Metadata of the tokens, in plain values; copied to recorded maps."""

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before the patch tokens."""
        return len(self.roles)

    @property
    def num_tokens(self) -> int:
        """Number of tokens, including dropped ones."""
        return len(self.roles) + self.grid[0] * self.grid[1]

    def check_differentiable(self, *, differentiable: bool) -> None:
        """Raise if weights must be differentiable but patches were dropped.

        Raises:
            ValueError: If both are the case.
        """
        if differentiable and self.keep_indices is not None:
            raise ValueError(
                "gradients with respect to attention weights need all patch tokens, but some were "
                "dropped: call model.eval(), or set the patch dropout rate to 0"
            )


AttentionType = Literal["full", "window", "shifted", "neighborhood", "linear"]


class TokenGroups(NamedTuple):
    """Queries and keys of w groups of tokens.

    Prefix tokens, such as a class token, come before the tokens of the grid. They are keys of every
    group, and their queries attend to all tokens.
    """

    queries: Int[Tensor, "w q"]
    """Tokens of the grid that are queries, each once; -1 is padding."""
    keys: Int[Tensor, "w m"]
    """Tokens to which they may attend; -1 is padding."""
    mask: Bool[Tensor, "w q m"] | None
    """True = may attend; None if all queries of a group may attend to all its keys."""
    num_prefix_tokens: int
    """Number of tokens before the grid."""
    exclude_self: bool = False
    """Whether no token may attend to itself, prefix tokens included."""


def window_groups(
    grid: tuple[int, int],
    window_size: tuple[int, int],
    shift_size: tuple[int, int] = (0, 0),
    *,
    num_prefix_tokens: int = 0,
    device: torch.device | None = None,
) -> TokenGroups:
    """Return the windows of a grid as groups; see `window_indices`.

    Raises:
        ValueError: If a window is empty, or a shift is negative or not below the window size.

    Example:
        >>> window_groups((1, 4), (1, 2), num_prefix_tokens=1).keys
        tensor([[0, 1, 2], [0, 3, 4]])
    """
    indices, mask = window_indices(grid, window_size, shift_size, device=device)
    return _add_prefix(indices, indices, mask, num_prefix_tokens)


def neighborhood_groups(
    grid: tuple[int, int],
    kernel_size: tuple[int, int],
    *,
    num_prefix_tokens: int = 0,
    device: torch.device | None = None,
) -> TokenGroups:
    """Return groups in which each cell of a grid attends to its neighborhood.

    The cells of a tile as large as a neighborhood form a group, and a mask selects the neighborhood
    of each within the union. This computes up to four times as many products as single
    neighborhoods, but copies each key four times instead of once per neighbor. The kernel has odd
    sides and is limited to the grid; near a border it shifts inwards.

    Raises:
        ValueError: If the kernel size is not odd.

    Example:
        >>> groups = neighborhood_groups((1, 4), (1, 3))
        >>> groups.queries, groups.keys
        (tensor([[ 0,  1,  2], [ 3, -1, -1]]), tensor([[0, 1, 2, 3], [0, 1, 2, 3]]))
        >>> groups.mask[0].int()
        tensor([[1, 1, 1, 0], [1, 1, 1, 0], [0, 1, 1, 1]], dtype=torch.int32)
    """
    check_odd_kernel(kernel_size)
    query_rows, key_rows, row_mask = _tile_axis(grid[0], kernel_size[0], device)
    query_columns, key_columns, column_mask = _tile_axis(grid[1], kernel_size[1], device)
    queries = query_rows[:, None, :, None] * grid[1] + query_columns[None, :, None, :]
    valid = (query_rows >= 0)[:, None, :, None] & (query_columns >= 0)[None, :, None, :]
    queries = torch.where(valid, queries, -1).flatten(2).flatten(0, 1)
    keys = (key_rows[:, None, :, None] * grid[1] + key_columns[None, :, None, :]).flatten(2)
    mask = row_mask[:, None, :, None, :, None] & column_mask[None, :, None, :, None, :]
    mask = mask.flatten(4).flatten(2, 3).flatten(0, 1)
    return _add_prefix(queries, keys.flatten(0, 1), mask, num_prefix_tokens)


def _tile_axis(
    size: int, kernel: int, device: torch.device | None
) -> tuple[Int[Tensor, "w t"], Int[Tensor, "w p"], Bool[Tensor, "w t p"]]:
    """Return the queries of each tile of an axis (-1: padding), their keys, and the mask."""
    # An axis of 7 with neighborhoods of 3. Three queries in a row have at most 5 neighbors, which
    # they share; near a border they stand together with others, and the mask tells them apart.
    #
    #     queries   0 1 2        3 4 5        6 - -        (- is padding)
    #     keys      0 1 2 3 4    2 3 4 5 6    2 3 4 5 6
    #     mask      x x x . .    x x x . .    . . x x x    row by row, one per query
    #               x x x . .    . x x x .
    #               . x x x .    . . x x x
    tile = min(kernel, size)
    length = min(size, 2 * tile - 1)
    starts = torch.arange(0, size, tile, device=device).unsqueeze(1)
    queries = starts + torch.arange(tile, device=device)
    keys = (starts - kernel // 2).clamp(0, size - length)
    keys = keys + torch.arange(length, device=device)
    offset = keys.unsqueeze(1) - (queries - kernel // 2).clamp(0, size - tile).unsqueeze(2)
    return torch.where(queries < size, queries, -1), keys, (offset >= 0) & (offset < tile)


def _add_prefix(
    queries: Int[Tensor, "w q"],
    keys: Int[Tensor, "w p"],
    mask: Bool[Tensor, "w q p"] | None,
    num_prefix_tokens: int,
) -> TokenGroups:
    """Return groups of grid cells as groups of tokens, with the prefix tokens as keys of each."""
    prefix = torch.arange(num_prefix_tokens, device=keys.device).expand(keys.shape[0], -1)
    queries, keys = (
        torch.where(cells >= 0, cells + num_prefix_tokens, -1) for cells in (queries, keys)
    )
    if mask is not None:
        mask = torch.cat((mask.new_ones((*mask.shape[:2], num_prefix_tokens)), mask), -1)
    return TokenGroups(queries, torch.cat((prefix, keys), 1), mask, num_prefix_tokens)


def exclude_self(groups: TokenGroups) -> TokenGroups:
    """Return the groups in which no token may attend to itself.

    Example:
        >>> exclude_self(neighborhood_groups((1, 2), (1, 3))).mask
        tensor([[[False,  True], [ True, False]]])
    """
    other = groups.queries.unsqueeze(-1) != groups.keys.unsqueeze(-2)
    mask = other if groups.mask is None else groups.mask & other
    return groups._replace(mask=mask, exclude_self=True)


def grouped_attention(
    queries: Float[Tensor, "b h n d"],
    keys: Float[Tensor, "b h n d"],
    values: Float[Tensor, "b h n e"],
    groups: TokenGroups,
    *,
    bias: Float[Tensor, "h w q m"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "b h n e"]:
    """Return attention of each token to its group; prefix tokens attend to all tokens.

    With m keys per group this takes n m (d + e) multiplications, plus n (d + e) per prefix token. A
    single group of all tokens is full attention. The scale is 1 / sqrt(d) by default.

    Example:
        >>> x = torch.tensor([1.0, 3.0, 5.0, 7.0]).reshape(1, 1, 4, 1)
        >>> zero = torch.zeros_like(x)
        >>> grouped_attention(zero, zero, x, window_groups((1, 4), (1, 2))).flatten()
        tensor([2., 2., 6., 6.])
    """
    heads = queries.shape[1]
    width = values.shape[3]
    # Heads and groups are one axis, all groups of the first head before those of the second: each
    # head repeats the mask, while each head has biases of its own.
    output, _ = dot_product_attention(
        _gather_groups(queries, groups.queries),
        _gather_groups(keys, groups.keys),
        _gather_groups(values, groups.keys),
        mask=None if groups.mask is None else groups.mask.repeat(heads, 1, 1),
        bias=None if bias is None else bias.flatten(0, 1),
        scale=scale,
    )
    slots = _query_slots(groups, queries.shape[2])
    output = output.reshape(-1, heads, groups.queries.numel(), width).index_select(2, slots)
    if not groups.num_prefix_tokens:
        return output
    rows = torch.arange(groups.num_prefix_tokens, device=queries.device)
    mask = _not_self(rows, queries.shape[2]) if groups.exclude_self else None
    prefix = dot_product_attention(
        queries[:, :, : groups.num_prefix_tokens], keys, values, mask=mask, scale=scale
    )[0]
    return torch.cat((prefix, output), 2)


def dense_mask_and_bias(
    groups: TokenGroups,
    rows: Int[Tensor, " r"],
    count: int,
    bias: Float[Tensor, "h w q m"] | None = None,
) -> tuple[Bool[Tensor, "r {count}"], Float[Tensor, "h r {count}"] | None]:
    """Return mask and bias of groups as dense rows over all tokens.

    Example:
        >>> dense_mask_and_bias(window_groups((1, 4), (1, 2)), torch.tensor([2]), 4)[0]
        tensor([[False, False,  True,  True]])
    """
    num_prefix = groups.num_prefix_tokens
    # Rows of prefix tokens borrow the slot of cell 0, and are replaced below.
    slots = _query_slots(groups, count)[(rows - num_prefix).clamp(min=0)]
    group = slots // groups.queries.shape[1]
    slot = slots % groups.queries.shape[1]
    group_keys = groups.keys[group]
    valid = group_keys >= 0
    valid = valid if groups.mask is None else valid & groups.mask[group, slot]
    keys = group_keys.clamp(min=0)
    # Added, since padding is clamped to token 0 and must not overwrite what token 0 has.
    mask = torch.zeros(len(rows), count, dtype=torch.long, device=rows.device)
    mask = mask.scatter_add(1, keys, valid.long()) > 0
    prefix = (rows < num_prefix).unsqueeze(1)
    mask = torch.where(prefix, _not_self(rows, count) if groups.exclude_self else prefix, mask)
    if bias is None:
        return mask, None
    row_bias = bias[:, group, slot].masked_fill(~valid | prefix, 0.0)
    dense = row_bias.new_zeros((*row_bias.shape[:2], count))
    return mask, dense.scatter_add(2, keys.expand(row_bias.shape), row_bias)


def _not_self(rows: Int[Tensor, " r"], count: int) -> Bool[Tensor, "r {count}"]:
    return torch.arange(count, device=rows.device) != rows.unsqueeze(1)


def _gather_groups(
    part: Float[Tensor, "b h n d"], indices: Int[Tensor, "w p"]
) -> Float[Tensor, "b h*w p d"]:
    """Return the vectors of each group, by head and group."""
    gathered = part.index_select(2, indices.clamp(min=0).flatten())
    groups = part.shape[1] * indices.shape[0]
    return gathered.reshape(-1, groups, indices.shape[1], part.shape[3])


def _query_slots(groups: TokenGroups, count: int) -> Int[Tensor, " _"]:
    """Return the query slot of each token of the grid, counted group by group."""
    # Padding is -1 and sorts to the front; behind it the slots follow in the order of the tokens.
    flat = groups.queries.flatten()
    return flat.argsort()[flat.numel() - (count - groups.num_prefix_tokens) :]


def linear_attention(
    queries: Float[Tensor, "*b n d"], keys: Float[Tensor, "*b m d"], values: Float[Tensor, "*b m e"]
) -> Float[Tensor, "*b n e"]:
    """Return attention with weights proportional to f(q) · f(k), where f(x) = elu(x) + 1.

    This takes (n + m) d e multiplications and d e numbers instead of n m (d + e) and n m. Sums run
    in float32 at least, also under autocast.

    Example:
        >>> q, k = torch.zeros(1, 1), torch.tensor([[0.0], [2.0]])  # f(k) is 1 and 3
        >>> linear_attention(q, k, torch.tensor([[0.0], [4.0]]))
        tensor([[3.]])

    Source:
        Katharopoulos et al. 2020, arXiv:2006.16236, equations 4 to 7.
    """
    query_features = _feature_map(at_least_float32(queries))
    key_features = _feature_map(at_least_float32(keys))
    with without_autocast(values.device):
        total = query_features @ key_features.sum(-2).unsqueeze(-1)
        total = torch.where(total > 0, total, 1.0)  # features may underflow: the output is zero
        output = query_features @ (key_features.mT @ at_least_float32(values)) / total
        return output.to(values.dtype)


def linear_attention_weights(
    queries: Float[Tensor, "*b n d"], keys: Float[Tensor, "*b m d"]
) -> Float[Tensor, "*b n m"]:
    """Return the weights of `linear_attention` alone, for any subset of the queries.

    Example:
        >>> linear_attention_weights(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]))
        tensor([[0.2500, 0.7500]])

    Source:
        Katharopoulos et al. 2020, arXiv:2006.16236, equation 4.
    """
    query_features = _feature_map(at_least_float32(queries))
    key_features = _feature_map(at_least_float32(keys))
    with without_autocast(queries.device):
        weights = query_features @ key_features.mT
        return (weights / weights.sum(-1, keepdim=True)).to(queries.dtype)


def _feature_map(x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
    """Return elu(x) + 1, computed as exp(x) below zero, where it keeps full precision."""
    # The clamp keeps exp from overflow: its gradient would be NaN though `where` takes the other
    # side.
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


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
        self.num_heads = num_heads
        self.attn_type = attn_type
        self.window_size = window_size
        self.lsa = lsa
        head_dim = dim // num_heads
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
            queries, keys = (apply_rotary(tensor, *layout.rotation) for tensor in (queries, keys))
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
            return linear_attention(queries, keys, values)
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
        request = self.tap.request
        count = heads.queries.shape[2]
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
        self.tap.grid = layout.grid
        self.tap.roles = layout.roles
        self.tap.fulfilled = request
        self.tap.notes = {**layout.notes, "attention": self.attn_type}
        return self.tap(weights)

    def _attention_rows(
        self, heads: _Projections, rows: Tensor, selected: slice | list[int], layout: TokenLayout
    ) -> Float[Tensor, "b h r n"]:
        """Return the attention weights of some query tokens, for some of the heads."""
        queries = heads.queries[:, selected][:, :, rows]
        keys = heads.keys[:, selected]
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
