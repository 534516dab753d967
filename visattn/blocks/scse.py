"""Concurrent spatial and channel squeeze-and-excitation (scSE)."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import fast_mean


class SCSE(Block):
    """Concurrent spatial and channel squeeze-and-excitation: both gates in parallel (scSE).

    With the sigmoid s::

        y = x * s(W2 relu(W1 mean(x) + b1) + b2) + x * s(w . x)

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layer of the channel gate, which keeps at least one
            channel.
        combine: Whether the two gated features are added, as in the paper, or reduced by an
            elementwise maximum (`max`), as in the authors' code.

    Example:
        >>> SCSE(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Roy et al. 2018, arXiv:1803.02579, section 2; for the maximum, Roy et al. 2019,
        arXiv:1808.08127.
    """

    info = BlockInfo("scse", "combined", "Roy et al. 2018, arXiv:1803.02579")

    def __init__(
        self, channels: int, *, reduction: int = 2, combine: Literal["add", "max"] = "add"
    ) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.maximum = {"add": False, "max": True}[combine]
        self.squeeze = nn.Linear(channels, hidden)
        self.excite = nn.Linear(hidden, channels)
        self.channel_tap = Tap("channel")
        self.project = nn.Conv2d(channels, 1, 1, bias=False)
        self.spatial_tap = Tap("gate")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the combination of the two gated features."""
        channel = self.excite(self.squeeze(fast_mean(x, (2, 3))).relu()).sigmoid()
        channel = self.channel_tap(channel)[:, :, None, None]
        spatial = self.spatial_tap(self.project(x).sigmoid().squeeze(1))[:, None]
        if self.maximum:
            return torch.maximum(x * channel, x * spatial)
        return x * (channel + spatial)
