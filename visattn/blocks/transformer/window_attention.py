"""Shifted window attention of Swin transformers."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from visattn.blocks.tap import Tap
from visattn.blocks.transformer.token_attention import TokenLayout
from visattn.functional.attention import dot_product_attention, dot_product_attention_weights
from visattn.functional.positions import relative_position_bias
from visattn.functional.windows import (
    check_window,
    dense_to_window_weights,
    padded_window_indices,
    window_slots,
    window_weights_to_dense,
)


class _Windows(NamedTuple):
    """Queries, keys, values `[b, h, w, p, d]` of w windows, and the token in each of p slots."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    places: Int[Tensor, "w p"]
    mask: Bool[Tensor, "w p p"] | None


class WindowAttention(nn.Module):
    """Multi-head self-attention within (shifted) windows, with relative position bias.

    Where windows do not tile the grid, padding slots fill them. As in Swin they count as zero
    tokens in the softmax, so that the rows of their windows sum to less than 1 over the grid; the
    remainder went to padding slots, whose value is the bias of the values.

    The output comes from a fused kernel. Recorded rows are computed separately; if gradients with
    respect to the weights are requested, the output is computed from them.

    Args:
        dim: Token dimension.
        num_heads: Number of heads; divides `dim`.
        window_size: Height and width of a window.
        shift_size: Vertical and horizontal shift of the windows.
        qkv_bias: Whether the query, key and value projections have biases.

    Raises:
        ValueError: If `num_heads` does not divide `dim`, a window is empty, or a shift is negative
            or not smaller than its window.

    Example:
        >>> attention = WindowAttention(8, num_heads=2, window_size=(2, 2), shift_size=(1, 1))
        >>> attention(torch.zeros(1, 15, 8), TokenLayout((3, 5))).shape
        torch.Size([1, 15, 8])

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.2; `TokenAttention` has windows without
        padding and supports prefix tokens. Parameter names as in timm, except `biases`.
    """

    NO_WEIGHT_DECAY = ("biases",)

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        window_size: tuple[int, int] = (7, 7),
        shift_size: tuple[int, int] = (0, 0),
        qkv_bias: bool = True,
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads must divide dim {dim}, got {num_heads}")
        for size, shift in zip(window_size, shift_size, strict=True):
            check_window(size, shift)
        self.num_heads = num_heads
        self.window_size = window_size
        self.shift_size = shift_size
        self.attn_type: Literal["window", "shifted"] = "shifted" if any(shift_size) else "window"
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.biases = nn.Parameter(
            torch.empty(num_heads, 2 * window_size[0] - 1, 2 * window_size[1] - 1)
        )
        nn.init.trunc_normal_(self.biases, std=0.02)
        self.proj = nn.Linear(dim, dim)
        self.tap = Tap("tokens")

    def forward(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> Float[Tensor, "b n c"]:
        """Return the attention output of each token; there are no prefix tokens."""
        windows = self._project_windows(x, layout)
        weights = self._record_weights(windows, layout) if self.tap.wanted else None
        if weights is not None and self.tap.differentiable:
            output = (weights @ windows.values).permute(0, 2, 3, 1, 4).flatten(3)
        else:
            output = self._attend(windows)
        slots = window_slots(windows.places, x.shape[1])
        return self.proj(output.flatten(1, 2).index_select(1, slots))

    def _project_windows(self, x: Float[Tensor, "b n c"], layout: TokenLayout) -> _Windows:
        """Return queries, keys and values, window by window."""
        places, mask = padded_window_indices(
            layout.grid, self.window_size, self.shift_size, device=x.device
        )
        count = x.shape[1]
        if places.numel() > count:
            x = pad(x, (0, 0, 0, 1))  # the zero token of every padding slot
        slots = torch.where(places < 0, count, places).flatten()
        # Projected once per token, the zero token included, and handed out to the slots afterwards.
        parts = self.qkv(x).index_select(1, slots)
        parts = parts.unflatten(2, (3, self.num_heads, -1)).unflatten(1, places.shape)
        queries, keys, values = parts.permute(3, 0, 4, 1, 2, 5).unbind(0)
        return _Windows(queries, keys, values, places, mask)

    def _window_bias(self) -> Float[Tensor, "h p p"]:
        """Return the relative position bias of each pair of slots."""
        slots = torch.arange(self.window_size[0] * self.window_size[1], device=self.biases.device)
        return relative_position_bias(self.biases, slots, slots, self.window_size[1])

    def _attend(self, windows: _Windows) -> Float[Tensor, "b w p c"]:
        """Return the attention output of each slot, with heads concatenated."""
        count = windows.places.shape[0]
        mask = windows.mask
        output, _ = dot_product_attention(
            *(tensor.flatten(1, 2) for tensor in windows[:3]),
            mask=None if mask is None else mask.repeat(self.num_heads, 1, 1),
            bias=self._window_bias().repeat_interleave(count, 0),
        )
        parts = output.reshape(-1, self.num_heads, count, output.shape[2], output.shape[3])
        return parts.permute(0, 2, 3, 1, 4).flatten(3)

    def _record_weights(
        self, windows: _Windows, layout: TokenLayout
    ) -> Float[Tensor, "b h w p p"] | None:
        """Pass the requested rows through the tap; return the weights by window."""
        request = self.tap.request
        places = windows.places
        heads = request.head_indices(self.num_heads)
        rows = request.query_indices(layout.roles, layout.num_tokens)
        weights = dot_product_attention_weights(
            windows.queries[:, heads],
            windows.keys[:, heads],
            mask=windows.mask,
            bias=self._window_bias()[heads].unsqueeze(1),
        )
        self.tap.grid = layout.grid
        self.tap.roles = layout.roles
        self.tap.fulfilled = request
        settings = {
            "attention": self.attn_type,
            "window": self.window_size,
            "shift": self.shift_size,
        }
        self.tap.notes = {**layout.notes, **settings}
        recorded = self.tap(window_weights_to_dense(weights, places, layout.num_tokens, rows))
        return (
            dense_to_window_weights(recorded, weights, places) if self.tap.differentiable else None
        )

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        sizes = f"window_size={self.window_size}, shift_size={self.shift_size}"
        return f"num_heads={self.num_heads}, {sizes}"
