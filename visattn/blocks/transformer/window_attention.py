"""Attention inside the windows of a grid, as hierarchical transformers have it."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from visattn.blocks.tap import Tap
from visattn.blocks.transformer.token_layout import TokenLayout
from visattn.functional.attention.softmax import attention, attention_weights
from visattn.functional.attention.window import (
    check_window,
    filled_windows,
    rolled_windows,
    slots_of_places,
    unrolled_windows,
)
from visattn.functional.positions.relative import relative_biases


class _Windows(NamedTuple):
    """Queries, keys and values `[b, h, w, p, d]` of w windows of p slots, and what these hold."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    places: Int[Tensor, "w p"]
    mask: Bool[Tensor, "w p p"] | None


class WindowAttention(nn.Module):
    """Let each token take from those of its window what several heads find fitting.

    Every head adds a learnt number for where a key lies as seen from its query, the same in all
    windows. Where windows do not tile the grid, empty slots fill them up. These are seen as tokens
    of zeros would be, so that the rows of their windows sum to less than 1 over the grid: what is
    missing went to empty slots, whose value is the bias of the values.

    The values come from a fused kernel; rows that somebody wants to see are computed aside, and
    who wants gradients of them gets values that are computed with these.

    Args:
        width: Of a token.
        heads: How many there are; they divide the width.
        window: Height and width of a window.
        shift: By how much windows are moved down and to the right.
        bias: Whether queries, keys and values have a bias.

    Raises:
        ValueError: If the heads do not divide the width, a window has no places, or a shift is
            negative or not below its window.

    Example:
        >>> attend = WindowAttention(8, heads=2, window=(2, 2), shift=(1, 1))
        >>> attend(torch.zeros(1, 15, 8), TokenLayout((3, 5))).shape
        torch.Size([1, 15, 8])

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.2; `TokenAttention` has windows without empty
        slots, for models whose tokens are not all on a grid. Named as in timm but for the biases.
    """

    UNDECAYED = ("biases",)

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        window: tuple[int, int] = (7, 7),
        shift: tuple[int, int] = (0, 0),
        bias: bool = True,
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(
                f"heads must divide the width {width}, got {heads}; each takes an equal share of it"
            )
        for size, moved in zip(window, shift, strict=True):
            check_window(size, moved)
        self.heads, self.window, self.shift = heads, window, shift
        self.kind: Literal["window", "shifted"] = "shifted" if any(shift) else "window"
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.biases = nn.Parameter(torch.empty(heads, 2 * window[0] - 1, 2 * window[1] - 1))
        nn.init.trunc_normal_(self.biases, std=0.02)
        self.proj = nn.Linear(width, width)
        self.tap = Tap("tokens")

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b n c"]:
        """Return what each token takes; all tokens are of the grid."""
        windows = self._windows(x, layout)
        shown = self._show(windows, layout) if self.tap.wanted else None
        if shown is not None and self.tap.woven:
            taken = (shown @ windows.values).permute(0, 2, 3, 1, 4).flatten(3)
        else:
            taken = self._taken(windows)
        slots = slots_of_places(windows.places, x.shape[1])
        return self.proj(taken.flatten(1, 2).index_select(1, slots))

    def _windows(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> _Windows:
        """Return the parts of the tokens, window by window."""
        places, mask = filled_windows(layout.grid, self.window, self.shift, device=x.device)
        count = x.shape[1]
        if places.numel() > count:
            x = pad(x, (0, 0, 0, 1))  # the token that stands in every empty slot
        slots = torch.where(places < 0, count, places).flatten()
        parts = self.qkv(x).index_select(1, slots)
        parts = parts.unflatten(2, (3, self.heads, -1)).unflatten(1, places.shape)
        queries, keys, values = parts.permute(3, 0, 4, 1, 2, 5).unbind(0)
        return _Windows(queries, keys, values, places, mask)

    def _biases(self) -> Float[Tensor, "h p p"]:
        """Return the bias of each pair of slots, the same in all windows."""
        slots = torch.arange(self.window[0] * self.window[1], device=self.biases.device)
        return relative_biases(self.biases, slots, slots, self.window[1])

    def _taken(self, windows: _Windows) -> Float[Tensor, "b w p c"]:
        """Return what each slot takes, head beside head."""
        count, mask = windows.places.shape[0], windows.mask
        seen, _ = attention(
            *(part.flatten(1, 2) for part in windows[:3]),
            mask=None if mask is None else mask.repeat(self.heads, 1, 1),
            bias=self._biases().repeat_interleave(count, 0),
        )
        parts = seen.reshape(-1, self.heads, count, seen.shape[2], seen.shape[3])
        return parts.permute(0, 2, 3, 1, 4).flatten(3)

    def _show(self, windows: _Windows, layout: TokenLayout) -> Float[Tensor, "b h w p p"] | None:
        """Pass the rows that are wanted through the tap, and take them back into their windows."""
        wish, places = self.tap.wish, windows.places
        chosen, rows = wish.chosen_heads(self.heads), wish.rows(layout.roles, layout.tokens)
        weights = attention_weights(
            windows.queries[:, chosen],
            windows.keys[:, chosen],
            mask=windows.mask,
            bias=self._biases()[chosen].unsqueeze(1),
        )
        self.tap.grid, self.tap.roles, self.tap.shown = layout.grid, layout.roles, wish
        told = {"attention": self.kind, "window": self.window, "shift": self.shift}
        self.tap.notes = {**layout.notes, **told}
        shown = self.tap(unrolled_windows(weights, places, layout.tokens, rows))
        return rolled_windows(shown, weights, places) if self.tap.woven else None

    def extra_repr(self) -> str:
        """Return what is printed of it beside its parts."""
        return f"heads={self.heads}, window={self.window}, shift={self.shift}"
