"""Coordinate attention."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import hardswish

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import fast_mean


class CoordinateAttention(Block):
    """Coordinate attention: product of a gate per row and a gate per column, for each channel.

    With the sigmoid s::

        f = hardswish(BN(F1 [mean of each row; mean of each column] + b1))
        y = x * s(Fh f_rows + bh) * s(Fw f_columns + bw)

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layer, which keeps at least 8 channels.

    Example:
        >>> CoordinateAttention(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Hou et al. 2021, arXiv:2103.02907, equations 4 to 9.
    """

    info = BlockInfo("coordinate", "combined", "Hou et al. 2021, arXiv:2103.02907")

    def __init__(self, channels: int, *, reduction: int = 32) -> None:
        super().__init__()
        hidden = max(8, channels // reduction)
        self.squeeze = nn.Conv1d(channels, hidden, 1)
        self.norm = nn.BatchNorm1d(hidden)
        self.rows = nn.Conv1d(hidden, channels, 1)
        self.columns = nn.Conv1d(hidden, channels, 1)
        self.tap = Tap("gate")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the gated features."""
        strips = torch.cat((fast_mean(x, (3,)), fast_mean(x, (2,))), 2)  # [b c y+x]
        hidden = hardswish(self.norm(self.squeeze(strips)))
        rows = self.rows(hidden[:, :, : x.shape[2]]).sigmoid()
        columns = self.columns(hidden[:, :, x.shape[2] :]).sigmoid()
        gate = rows[:, :, :, None] * columns[:, :, None]
        return x * self.tap(gate.to(x.dtype))
