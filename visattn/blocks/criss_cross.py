"""Criss-cross attention (CCNet)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, reduced_channels
from visattn.blocks.tap import Tap
from visattn.functional.numerics import at_least_float32, without_autocast


def criss_cross_attention(
    queries: Float[Tensor, "b d y x"],
    keys: Float[Tensor, "b d y x"],
    values: Float[Tensor, "b e y x"],
    *,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "b e y x"], Float[Tensor, "b y*x y*x"] | None]:
    """Return criss-cross attention: each position attends to its row and its column.

    One softmax runs over row and column; the position itself counts once, with its row. Products
    are not scaled and computed in float32 at least. For n = y x positions this takes
    n (y + x) (d + e) multiplications and n (y + x) weights.

    Args:
        need_weights: Whether to return dense weights over all pairs of positions, n² numbers that
            are zero off the cross. The values are the same either way.

    Example:
        >>> flat = torch.zeros(1, 1, 2, 3)
        >>> criss_cross_attention(flat, flat, flat, need_weights=True)[1][0, 0]
        tensor([0.2500, 0.2500, 0.2500, 0.2500, 0.0000, 0.0000])

    Source:
        Huang et al. 2019, arXiv:1811.11721, equations 1 and 2.
    """
    height = queries.shape[2]
    float_values = at_least_float32(values)
    with without_autocast(values.device):
        down, across = _cross_scores(at_least_float32(queries), at_least_float32(keys))
        weights = torch.cat((down, across), -1).softmax(-1)
        down = weights[..., :height]
        across = weights[..., height:]
        output = torch.einsum("byxu,beux->beyx", down, float_values)
        output = output + torch.einsum("byxw,beyw->beyx", across, float_values)
        dense = _dense_weights(down, across).to(values.dtype) if need_weights else None
    return output.to(values.dtype), dense


def _cross_scores(
    queries: Float[Tensor, "b d y x"], keys: Float[Tensor, "b d y x"]
) -> tuple[Float[Tensor, "b y x y"], Float[Tensor, "b y x x"]]:
    """Return scores for the keys of the column, without the position itself, and of the row."""
    down = torch.einsum("bdyx,bdux->byxu", queries, keys)
    across = torch.einsum("bdyx,bdyw->byxw", queries, keys)
    diagonal = torch.eye(queries.shape[2], dtype=torch.bool, device=queries.device)
    return down.masked_fill(diagonal[:, None, :], -torch.inf), across


def _dense_weights(
    down: Float[Tensor, "b y x y"], across: Float[Tensor, "b y x x"]
) -> Float[Tensor, "b y*x y*x"]:
    """Return the weights over columns and rows as weights over the whole grid."""
    same_row = torch.eye(down.shape[1], dtype=down.dtype, device=down.device)
    same_column = torch.eye(down.shape[2], dtype=down.dtype, device=down.device)
    # Weights of a column belong to the column of their query, those of a row to its row: there, and
    # nowhere else, the identities are 1.
    dense = torch.einsum("byxu,xw->byxuw", down, same_column)
    dense = dense + torch.einsum("byxw,yu->byxuw", across, same_row)
    return dense.flatten(3).flatten(1, 2)


class CrissCrossAttention(Block):
    """Recurrent criss-cross attention: each position attends to its row and column, R times.

    Initialized as the identity (the residual scale is zero). Costs R n (y + x) (C + h) MACs for
    n = y x positions, in addition to R times its convolutions. The tap receives one map per
    recurrence.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of queries and keys, which keep at least one channel.
        recurrence: Number of recurrences R with shared weights; with two, every position reaches
            every other.

    Raises:
        ValueError: If recurrence is below 1.

    Example:
        >>> x = torch.randn(2, 8, 5, 7)
        >>> torch.equal(CrissCrossAttention(8)(x), x)
        True

    Source:
        Huang et al. 2019, arXiv:1811.11721, equations 1 to 3, section 3.3.
    """

    info: ClassVar = BlockInfo(
        name="crisscross",
        kind="self_attention",
        title="Recurrent criss-cross attention",
        paper="Huang et al. 2019, arXiv:1811.11721",
        equation="y_i = x_i + gamma sum_j softmax_j((Wq x_i) . (Wk x_j)) Wv x_j over the row and "
        "the column of i, itself once; R times; gamma = 0 at first",
        parameters="2 (C h + h) + C^2 + C + 1, with h = max(1, C // reduction)",
        deviations=(
            "the residual scale gamma is from the released code; the paper has none",
            "the 3x3 convolutions of the head are not part of the block",
        ),
    )

    def __init__(self, channels: int, *, reduction: int = 8, recurrence: int = 2) -> None:
        super().__init__(channels)
        if recurrence < 1:
            raise ValueError(f"recurrence must be at least 1, got {recurrence}")
        hidden = reduced_channels(channels, reduction)
        self.query = nn.Conv2d(channels, hidden, 1)
        self.key = nn.Conv2d(channels, hidden, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.gain = nn.Parameter(torch.zeros(1))
        self.recurrence = recurrence
        self.tap = Tap("tokens")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features after all recurrences."""
        for _ in range(self.recurrence):
            x = x + (self.gain * self._attend_once(x)).to(x.dtype)
        return x

    def _attend_once(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        output, weights = criss_cross_attention(
            self.query(x), self.key(x), self.value(x), need_weights=self.tap.wanted
        )
        if weights is not None:
            self.tap.grid = (x.shape[2], x.shape[3])
            self.tap(weights)
        return output
