"""Bottleneck attention module (BAM)."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import fast_mean


class BAM(Block):
    """Bottleneck attention module: residual gate from the sum of channel and spatial scores.

    With the sigmoid s, and BN and relu after each convolution but the last::

        y = x + x * s(Mc + Ms)
        Mc = W2 relu(BN(W1 mean(x) + b1)) + b2
        Ms = conv1(conv3(conv3(conv1(x)))), conv3 dilated

    Batch normalization follows the hidden layers, as in the authors' code; in the paper, the last
    layer of each branch. Training needs a batch of more than one image.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layers, which keep at least one channel.
        dilation: Dilation of the two 3 x 3 convolutions of the spatial branch.
        combine: Whether the scores are added, as in the paper, or multiplied (`mul`), as in the
            authors' code and weights.

    Example:
        >>> BAM(64)(torch.zeros(2, 64, 5, 7)).shape
        torch.Size([2, 64, 5, 7])

    Source:
        Park et al. 2018, arXiv:1807.06514, equations 1 to 4.
    """

    info = BlockInfo("bam", "combined", "Park et al. 2018, arXiv:1807.06514")

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 16,
        dilation: int = 4,
        combine: Literal["add", "mul"] = "add",
    ) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.multiply = {"add": False, "mul": True}[combine]
        self.channel = nn.Sequential(
            nn.Linear(channels, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, channels),
        )
        self.spatial = nn.Sequential(
            *_conv_bn_relu(nn.Conv2d(channels, hidden, 1)),
            *_conv_bn_relu(nn.Conv2d(hidden, hidden, 3, padding=dilation, dilation=dilation)),
            *_conv_bn_relu(nn.Conv2d(hidden, hidden, 3, padding=dilation, dilation=dilation)),
            nn.Conv2d(hidden, 1, 1),
        )
        self.tap = Tap("gate")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features plus the gated features."""
        channel, spatial = self.channel(fast_mean(x, (2, 3)))[:, :, None, None], self.spatial(x)
        scores = channel * spatial if self.multiply else channel + spatial
        return torch.addcmul(x, x, self.tap(scores.sigmoid()))


def _conv_bn_relu(conv: nn.Conv2d) -> tuple[nn.Module, ...]:
    return conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU(inplace=True)
