"""Split attention of ResNeSt."""

import math

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import fast_mean


class SplitAttention(Block):
    """Split attention: softmax attention per channel over splits of a convolution (ResNeSt).

    A single split has a sigmoid instead of the softmax::

        y = sum_i a_i * u_i,  [u_1 .. u_R] = relu(BN(conv_k(x))),  R = radix
        a = softmax_i(W2 relu(BN(W1 mean(sum_i u_i) + b1)) + b2)

    If groups * radix does not divide C, the convolution has gcd(C, groups * radix) groups. Training
    needs a batch of more than one image.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layer, relative to all splits.
        kernel_size: Kernel size of the convolution, odd.
        radix: Number of splits.
        groups: Cardinality: number of channel groups with separate attention; divides `channels`.
        min_hidden_channels: Smallest width of the hidden layer.

    Example:
        >>> import torch
        >>> SplitAttention(64)(torch.zeros(2, 64, 5, 7)).shape
        torch.Size([2, 64, 5, 7])

    Source:
        Zhang et al. 2020, arXiv:2004.08955, equations 1 to 3 and the radix-major form of its
        appendix.
    """

    info = BlockInfo("split", "branch", "Zhang et al. 2020, arXiv:2004.08955")

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 4,
        kernel_size: int = 3,
        radix: int = 2,
        groups: int = 1,
        min_hidden_channels: int = 32,
    ) -> None:
        super().__init__()
        self.radix, self.groups = radix, groups
        width = radix * channels
        hidden = max(min_hidden_channels, width // reduction)
        hidden += -hidden % groups
        conv = nn.Conv2d(
            channels,
            width,
            kernel_size,
            padding=kernel_size // 2,
            groups=math.gcd(channels, groups * radix),
            bias=False,
        )
        self.split = nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.squeeze = nn.Conv2d(channels, hidden, 1, groups=groups)
        self.norm = nn.BatchNorm2d(hidden)
        self.select = nn.Conv2d(hidden, width, 1, groups=groups)
        self.tap = Tap("channel")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the weighted sum of the splits."""
        splits = self.split(x).unflatten(1, (self.radix, -1))  # [b i c y x]
        pooled = fast_mean(splits, (3, 4)).sum(1)[:, :, None, None]
        scores = self.select(self.norm(self.squeeze(pooled)).relu()).flatten(1)
        # A grouped convolution orders its channels as [group, split, channel of the group].
        scores = scores.unflatten(1, (self.groups, self.radix, -1)).transpose(1, 2).flatten(2)
        weights = scores.softmax(1) if self.radix > 1 else scores.sigmoid()
        return (splits * self.tap(weights)[..., None, None]).sum(1)
