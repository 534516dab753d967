"""Coordinate attention."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import hardswish

from visattn.blocks.base import Block, BlockInfo, apply_gate, reduced_channels
from visattn.blocks.tap import Tap
from visattn.functional.numerics import fast_mean


def strip_pools(
    x: Float[Tensor, "b c y x"],
) -> tuple[Float[Tensor, "b c y"], Float[Tensor, "b c x"]]:
    """Return the mean of each row and of each column.

    Example:
        >>> import torch
        >>> strip_pools(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]]))
        (tensor([[[2., 6.]]]), tensor([[[3., 5.]]]))

    Source:
        Hou et al. 2021, arXiv:2103.02907, equations 4 and 5.
    """
    return fast_mean(x, (3,)), fast_mean(x, (2,))


def coordinate_gate(
    rows: Float[Tensor, "b c y"], columns: Float[Tensor, "b c x"]
) -> Float[Tensor, "b c y x"]:
    """Return the coordinate-attention gate: row gate times column gate.

    Example:
        >>> import torch
        >>> coordinate_gate(torch.tensor([[[0.5, 1.0]]]), torch.tensor([[[0.5, 1.0]]]))
        tensor([[[[0.2500, 0.5000],
                  [0.5000, 1.0000]]]])

    Source:
        Hou et al. 2021, arXiv:2103.02907, equation 9.
    """
    return rows.unsqueeze(3) * columns.unsqueeze(2)


class CoordinateAttention(Block):
    """Coordinate attention: product of a gate per row and a gate per column, for each channel.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layer, which keeps at least 8 channels.

    Example:
        >>> import torch
        >>> CoordinateAttention(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Hou et al. 2021, arXiv:2103.02907, equations 4 to 9.
    """

    info: ClassVar = BlockInfo(
        name="coordinate",
        kind="combined",
        title="Coordinate attention",
        paper="Hou et al. 2021, arXiv:2103.02907",
        equation="y = x * s(Fh f_rows + bh) * s(Fw f_columns + bw), "
        "f = hardswish(BN(F1 [mean of each row; mean of each column] + b1))",
        parameters="C m + m + 2 m + 2 (m C + C), with m = max(8, C // reduction)",
    )

    def __init__(self, channels: int, *, reduction: int = 32) -> None:
        super().__init__(channels)
        hidden = reduced_channels(channels, reduction, minimum=8)
        self.squeeze = nn.Conv1d(channels, hidden, 1)
        self.norm = nn.BatchNorm1d(hidden)  # unchecked: a row and a column are two values
        self.rows = nn.Conv1d(hidden, channels, 1)
        self.columns = nn.Conv1d(hidden, channels, 1)
        self.tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the gated features."""
        strips = torch.cat(strip_pools(x), dim=2)
        hidden = hardswish(self.norm(self.squeeze(strips)))
        height = x.shape[2]
        rows = self.rows(hidden[:, :, :height]).sigmoid()
        columns = self.columns(hidden[:, :, height:]).sigmoid()
        return apply_gate(x, coordinate_gate(rows, columns).to(x.dtype), self.tap)
