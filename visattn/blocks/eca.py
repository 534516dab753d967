"""Efficient channel attention (ECA)."""

import math

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import fast_mean


class ECA(Block):
    """Efficient channel attention: channel gate by a 1-D convolution along the pooled channels.

    With the sigmoid s::

        y = x * s(conv_k(mean(x))),  k = the odd one of t and t + 1,  t = floor(log2(C) / 2 + 1 / 2)

    The formula for k is applied as published: it gives 1 below 8 channels, where timm uses 3. The
    authors' ResNet-50 does not follow it: its stages have 3, 5, 5, 7; the formula gives 5, 5, 5, 7.

    Args:
        channels: Number of input channels.
        kernel_size: Kernel size of the convolution, odd; by the formula if None.

    Example:
        >>> import torch
        >>> ECA(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Wang et al. 2020, arXiv:1910.03151, equations 9 and 12.
    """

    info = BlockInfo("eca", "channel", "Wang et al. 2020, arXiv:1910.03151")

    def __init__(self, channels: int, *, kernel_size: int | None = None) -> None:
        super().__init__()
        if kernel_size is None:
            kernel_size = int(math.log2(channels) / 2 + 1 / 2) // 2 * 2 + 1
        self.conv = nn.Conv1d(1, 1, kernel_size, padding=kernel_size // 2, bias=False)
        self.tap = Tap("channel")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate."""
        gate = self.conv(fast_mean(x, (2, 3))[:, None]).squeeze(1).sigmoid()
        return x * self.tap(gate)[:, :, None, None]
