"""Attention among the tokens of an image: everybody with everybody, near by, or by sums."""

from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import check_choice
from visattn.blocks.tap import Tap
from visattn.blocks.transformer.token_layout import TokenLayout
from visattn.functional.attention.linear import linear_attention, linear_weights
from visattn.functional.attention.softmax import attention, attention_weights
from visattn.functional.attention.token_groups import (
    TokenGroups,
    group_pairs,
    grouped_attention,
    neighbor_groups,
    window_groups,
    without_self,
)
from visattn.functional.positions.relative import relative_biases
from visattn.functional.positions.rotary import rotated
from visattn.functional.tokens import weights_in_place

Kind = Literal["full", "window", "shifted", "neighborhood", "linear"]


class _Heads(NamedTuple):
    """Queries, keys and values `[b, h, n, d]`, and the groups within which they meet."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    groups: TokenGroups | None


class TokenAttention(nn.Module):
    """Let each token take from the others what several heads find fitting.

    The values come from a fused kernel. Rows that somebody wants to see are computed aside, and
    only these: a row costs as many numbers as there are tokens. Who wants gradients of the weights
    gets values that are computed with these. Tokens before the grid attend
    to all, and all attend to them, whatever the kind.

    Args:
        width: Of a token.
        heads: How many there are; they divide the width.
        kind: Who attends to whom: `full` everybody to everybody; `window` within the windows that
            tile the grid, `shifted` the same moved by half a window; `neighborhood` to the cells
            around; `linear` everybody to everybody without a softmax, at a cost that grows with the
            number of tokens and not with its square.
        extent: Height and width of a window or a neighborhood; of the latter both odd.
        bias: Whether queries, keys and values have a bias.
        qk_norm: Whether queries and keys are normalized, each head by itself.
        reach: Farthest vertical and horizontal offset with a learnt bias of its own, of which every
            head has a table; None for no biases.
        locality: Whether heads learn their temperature and no token attends to itself (locality
            self-attention).
        epsilon: Added to variances in the norms.

    Raises:
        ValueError: If the heads do not divide the width, the kind is unknown, or linear attention
            is to have what only a softmax takes.

    Example:
        >>> attend = TokenAttention(8, heads=2, kind="window", extent=(2, 2))
        >>> attend(torch.zeros(1, 13, 8), TokenLayout((3, 4), ("class",))).shape
        torch.Size([1, 13, 8])

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; windows and biases: Liu et al. 2021,
        arXiv:2103.14030; neighborhoods: Hassani et al. 2023, arXiv:2204.07143; sums:
        Katharopoulos et al. 2020, arXiv:2006.16236; norms: Dehghani et al. 2023, arXiv:2302.05442;
        locality: Lee et al. 2021, arXiv:2112.13492, section 3.2. Named as in timm.
    """

    UNDECAYED = ("temperature", "biases")

    def __init__(
        self,
        width: int,
        *,
        heads: int = 8,
        kind: Kind = "full",
        extent: tuple[int, int] = (7, 7),
        bias: bool = True,
        qk_norm: bool = False,
        reach: tuple[int, int] | None = None,
        locality: bool = False,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__()
        check_choice("the kind of attention", kind, get_args(Kind))
        if heads < 1 or width % heads:
            raise ValueError(
                f"heads must divide the width {width}, got {heads}; each takes an equal share of it"
            )
        if kind == "linear" and (locality or reach is not None):
            raise ValueError(
                "linear attention has no softmax, so it takes neither locality nor relative "
                "positions: drop them, or choose another kind"
            )
        self.heads, self.kind, self.extent = heads, kind, extent
        self.locality, dim = locality, width // heads
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.q_norm = nn.LayerNorm(dim, epsilon) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(dim, epsilon) if qk_norm else nn.Identity()
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), dim**-0.5)) if locality else None
        self.biases = None
        if reach is not None:
            self.biases = nn.Parameter(torch.empty(heads, 2 * reach[0] + 1, 2 * reach[1] + 1))
            nn.init.trunc_normal_(self.biases, std=0.02)
        self.proj = nn.Linear(width, width)
        self.tap = Tap("tokens")

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b n c"]:
        """Return what each token takes."""
        heads = self._projected(x, layout)
        shown = self._show(heads, layout) if self.tap.wanted else None
        if shown is not None and self.tap.woven:
            taken = shown @ heads.values
        else:
            taken = self._taken(heads, layout)
        return self.proj(taken.transpose(1, 2).flatten(2))

    def _projected(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> _Heads:
        """Return queries, keys and values, and who may look at whom."""
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        queries, keys = self.q_norm(queries), self.k_norm(keys)
        if layout.rotation is not None:
            queries, keys = (rotated(part, *layout.rotation) for part in (queries, keys))
        if self.temperature is not None:
            queries = queries * self.temperature
        return _Heads(queries, keys, values, self._groups(layout, x.device))

    def _groups(self, layout: TokenLayout, device: torch.device) -> TokenGroups | None:
        if self.kind in ("full", "linear"):
            return None
        before = layout.before
        if self.kind == "neighborhood":
            groups = neighbor_groups(layout.grid, self.extent, before=before, device=device)
        else:
            half = (self.extent[0] // 2, self.extent[1] // 2)
            shift = half if self.kind == "shifted" else (0, 0)
            groups = window_groups(layout.grid, self.extent, shift, before=before, device=device)
        return without_self(groups) if self.locality else groups

    @property
    def _scale(self) -> float | None:
        return 1.0 if self.locality else None

    def _bias(self, asking: Tensor, offered: Tensor, layout: TokenLayout) -> Tensor | None:
        if self.biases is None:
            return None
        return relative_biases(self.biases, asking, offered, layout.grid[1], before=layout.before)

    def _taken(self, heads: _Heads, layout: TokenLayout) -> Float[Tensor, "b h n d"]:
        queries, keys, values, groups = heads
        if self.kind == "linear":
            return linear_attention(queries, keys, values)[0]
        if groups is not None:
            bias = self._bias(groups.asking, groups.offered, layout)
            return grouped_attention(queries, keys, values, groups, bias=bias, scale=self._scale)
        mask = bias = None
        if self.locality or self.biases is not None:
            tokens = torch.arange(queries.shape[2], device=queries.device)
            mask = tokens != tokens[:, None] if self.locality else None
            bias = self._bias(tokens, tokens, layout)
        return attention(queries, keys, values, mask=mask, bias=bias, scale=self._scale)[0]

    def _show(self, heads: _Heads, layout: TokenLayout) -> Float[Tensor, "b h r n"]:
        """Pass the rows that are wanted through the tap."""
        layout.check_woven(woven=self.tap.woven)
        wish, count = self.tap.wish, heads.queries.shape[2]
        chosen, rows = wish.chosen_heads(self.heads), wish.rows(layout.roles, layout.tokens)
        tokens = torch.arange(count, device=heads.queries.device)
        if layout.kept is None:
            weights = self._rows(heads, tokens[rows], chosen, layout)
        else:
            weights = self._rows(heads, tokens, chosen, layout)
            for _ in range(2):  # the keys that were left out, then the queries
                weights = weights_in_place(
                    weights.mT, layout.kept, count=layout.tokens, before=layout.before
                )
            weights = weights[:, :, rows]
        self.tap.grid, self.tap.roles, self.tap.shown = layout.grid, layout.roles, wish
        self.tap.notes = {**layout.notes, "attention": self.kind}
        return self.tap(weights)

    def _rows(
        self, heads: _Heads, rows: Tensor, chosen: slice | list[int], layout: TokenLayout
    ) -> Float[Tensor, "b h r n"]:
        """Return the weights of some tokens over all, for some of the heads."""
        queries, keys = heads.queries[:, chosen][:, :, rows], heads.keys[:, chosen]
        if self.kind == "linear":
            return linear_weights(queries, keys)
        tokens = torch.arange(keys.shape[2], device=rows.device)
        if heads.groups is None:
            bias = self._bias(rows, tokens, layout)
            mask = tokens != rows[:, None] if self.locality else None
        else:
            inside = self._bias(heads.groups.asking, heads.groups.offered, layout)
            mask, bias = group_pairs(heads.groups, rows, len(tokens), inside)
        bias = None if bias is None else bias[chosen]
        return attention_weights(queries, keys, mask=mask, bias=bias, scale=self._scale)

    def extra_repr(self) -> str:
        """Return what is printed of it beside its parts."""
        return f"heads={self.heads}, kind={self.kind}"
