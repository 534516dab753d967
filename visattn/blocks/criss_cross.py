"""Criss-cross attention (CCNet)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import at_least_float32, without_autocast


class CrissCrossAttention(Block):
    """Recurrent criss-cross attention: each position attends to its row and its column, R times.

    Over the positions j in the row and the column of i, counting i once::

        y_i = x_i + gamma sum_j softmax_j((Wq x_i) . (Wk x_j)) Wv x_j

    Initialized as the identity, with gamma = 0; gamma is from the released code, not the paper.
    Costs R n (y + x) (C + h) MACs for n = y x positions, in addition to R times its convolutions.
    The tap receives one map per recurrence. The 3 x 3 convolutions of the head are not part of the
    block.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of queries and keys, which keep at least one channel.
        recurrence: Number of recurrences R with shared weights; with two, every position reaches
            every other.

    Example:
        >>> x = torch.randn(2, 8, 5, 7)
        >>> torch.equal(CrissCrossAttention(8)(x), x)
        True

    Source:
        Huang et al. 2019, arXiv:1811.11721, equations 1 to 3, section 3.3.
    """

    info = BlockInfo("crisscross", "self_attention", "Huang et al. 2019, arXiv:1811.11721")

    def __init__(self, channels: int, *, reduction: int = 8, recurrence: int = 2) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.query = nn.Conv2d(channels, hidden, 1)
        self.key = nn.Conv2d(channels, hidden, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.gain = nn.Parameter(torch.zeros(1))
        self.recurrence = recurrence
        self.tap = Tap("tokens")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features after all recurrences."""
        for _ in range(self.recurrence):
            x = x + (self.gain * self.attend_once(x)).to(x.dtype)
        return x

    def attend_once(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the attention output of one recurrence.

        Position (y, x) reads (u, x), the column, and (y, w), the row::

            . . u .
            w w * w   the position itself is part of its row
            . . u .
        """
        height, width = x.shape[2:]
        q, k, v = (at_least_float32(conv(x)) for conv in (self.query, self.key, self.value))
        with without_autocast(x.device):
            itself = torch.eye(height, dtype=torch.bool, device=x.device)[:, None]
            column = torch.einsum("bdyx,bdux->byxu", q, k).masked_fill(itself, -torch.inf)
            row = torch.einsum("bdyx,bdyw->byxw", q, k)
            weights = torch.cat((column, row), -1).softmax(-1)
            column, row = weights[..., :height], weights[..., height:]
            output = torch.einsum("byxu,bcux->bcyx", column, v)
            output = output + torch.einsum("byxw,bcyw->bcyx", row, v)
            if self.tap.wanted:  # n² values, which are zero outside of the cross
                self.tap.grid = (height, width)
                cross = torch.einsum("byxu,xw->byxuw", column, torch.eye(width).to(v))
                cross = cross + torch.einsum("byxw,yu->byxuw", row, torch.eye(height).to(v))
                self.tap(cross.flatten(3).flatten(1, 2).to(x.dtype))
        return output.to(x.dtype)
