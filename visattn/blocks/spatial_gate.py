"""Spatial gates: the spatial gate of CBAM and spatial squeeze-and-excitation (sSE)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import fast_amax, fast_mean


class SpatialGate(Block):
    """Spatial gate of CBAM: convolution over the maximum and the mean of the channels.

    With the sigmoid s::

        y = x * s(BN(conv_k([max_c x; mean_c x])))

    Batch normalization is from the authors' code; the paper has none. It has an initial weight of 1
    and momentum 0.1; in the authors' networks, a weight of 0 (a gate of 0.5) and momentum 0.01.

    Args:
        channels: Number of input channels; no parameter depends on it.
        kernel_size: Kernel size, odd.

    Example:
        >>> SpatialGate(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Woo et al. 2018, arXiv:1807.06521, equation 3.
    """

    info = BlockInfo("spatial", "spatial", "Woo et al. 2018, arXiv:1807.06521")

    def __init__(self, channels: int, *, kernel_size: int = 7) -> None:  # noqa: ARG002
        super().__init__()
        self.conv = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = nn.BatchNorm2d(1)
        self.tap = Tap("gate")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the spatial gate."""
        pools = torch.stack((fast_amax(x, 1), fast_mean(x, (1,))), 1)
        gate = self.norm(self.conv(pools)).sigmoid()
        return x * self.tap(gate.squeeze(1))[:, None]


class SpatialSE(Block):
    """Spatial squeeze-and-excitation: spatial gate by a 1 x 1 convolution (sSE).

    With the sigmoid s::

        y = x * s(w . x)

    Args:
        channels: Number of input channels.

    Example:
        >>> SpatialSE(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Roy et al. 2018, arXiv:1803.02579, section 2.2 (sSE).
    """

    info = BlockInfo("sse", "spatial", "Roy et al. 2018, arXiv:1803.02579")

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, 1, 1, bias=False)
        self.tap = Tap("gate")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the spatial gate."""
        gate = self.squeeze(x).sigmoid()
        return x * self.tap(gate.squeeze(1))[:, None]
