"""Coordinate attention."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import hardswish

from visattn.blocks.base import Block, BlockInfo, hidden_width, scaled
from visattn.blocks.tap import Tap
from visattn.functional.gates.combined import coordinate_gate, strip_means


class CoordinateAttention(Block):
    """Scale each place in each channel by a gate of its row times a gate of its column.

    Args:
        channels: Width of a feature.
        reduction: By which the hidden layer is narrower; it keeps at least 8 units.

    Example:
        >>> import torch
        >>> CoordinateAttention(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Hou et al. 2021, arXiv:2103.02907, equations 4 to 9.
    """

    card: ClassVar = BlockInfo(
        name="coordinate",
        kind="both",
        title="Coordinate attention",
        paper="Hou et al. 2021, arXiv:2103.02907",
        equation="y = x * s(Fh f_rows + bh) * s(Fw f_columns + bw), "
        "f = hardswish(BN(F1 [mean of each row; mean of each column] + b1))",
        parameters="C m + m + 2 m + 2 (m C + C), with m = max(8, C // reduction)",
        weights=(
            "CoordAttention CoordAtt (conv1, bn1, conv_h, conv_w)",
            "timm CoordAttn with rd_channels=m and bias=True, or without: a bias of 0",
        ),
        aliases=("coord", "CoordAtt", "CoordAttn"),
    )

    def __init__(self, channels: int, *, reduction: int = 32) -> None:
        super().__init__(channels)
        hidden = hidden_width(channels, reduction, least=8)
        self.squeeze = nn.Conv1d(channels, hidden, 1)
        self.norm = nn.BatchNorm1d(hidden)
        self.rows = nn.Conv1d(hidden, channels, 1)
        self.columns = nn.Conv1d(hidden, channels, 1)
        self.tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, each scaled by its gate."""
        strips = torch.cat(strip_means(x), dim=2)
        hidden = hardswish(self.norm(self.squeeze(strips)))
        height = x.shape[2]
        rows = self.rows(hidden[:, :, :height]).sigmoid()
        columns = self.columns(hidden[:, :, height:]).sigmoid()
        return scaled(x, coordinate_gate(rows, columns).to(x.dtype), self.tap)
