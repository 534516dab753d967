"""Convolutional block attention module (CBAM)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import fast_amax, fast_mean


class CBAM(Block):
    """Convolutional block attention module: a channel gate, then a spatial gate.

    With the sigmoid s::

        z = x * s(mlp(mean x) + mlp(max x)),  mlp(p) = W2 relu(W1 p + b1) + b2
        y = z * s(BN(conv_k([max_c z; mean_c z])))

    As in the authors' code, the mlp has biases and batch normalization replaces the bias of the
    convolution; the paper shows neither. The normalization has an initial weight of 1 and momentum
    0.1; in the authors' networks, a weight of 0 (a gate of 0.5 everywhere) and momentum 0.01.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layer, which keeps at least one channel.
        kernel_size: Kernel size of the spatial gate, odd.

    Example:
        >>> CBAM(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Woo et al. 2018, arXiv:1807.06521, equations 1 to 3.
    """

    info = BlockInfo("cbam", "combined", "Woo et al. 2018, arXiv:1807.06521")

    def __init__(self, channels: int, *, reduction: int = 16, kernel_size: int = 7) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.squeeze = nn.Linear(channels, hidden)
        self.excite = nn.Linear(hidden, channels)
        self.channel_tap = Tap("channel")
        self.conv = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = nn.BatchNorm2d(1)
        self.spatial_tap = Tap("gate")

    def mlp(self, pooled: Float[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        """Return the channel scores of one kind of pooling."""
        return self.excite(self.squeeze(pooled).relu())

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate, then by the spatial gate."""
        scores = self.mlp(fast_mean(x, (2, 3))) + self.mlp(fast_amax(x.flatten(2), 2))
        z = x * self.channel_tap(scores.sigmoid())[:, :, None, None]
        pools = torch.stack((fast_amax(z, 1), fast_mean(z, (1,))), 1)
        gate = self.norm(self.conv(pools)).sigmoid()
        return z * self.spatial_tap(gate.squeeze(1))[:, None]
