"""Selective kernel (SK) attention."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import fast_mean


class SelectiveKernel(Block):
    """Selective kernel: softmax attention per channel over convolutions of several kernel sizes.

    Branch i has 3 x 3 kernels with dilation i, that is, effective sizes 3, 5, 7, ...::

        y = sum_i a_i * u_i,  u_i = relu(BN(conv3_i(x)))
        a = softmax_i(A_i relu(BN(W mean(sum_i u_i))))

    Training needs a batch of more than one image.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layer.
        num_branches: Number of branches.
        groups: Groups of the convolutions; gcd(32, channels) if None, which is the paper's 32 if it
            divides the channels.
        min_hidden_channels: Smallest width of the hidden layer.

    Example:
        >>> SelectiveKernel(64)(torch.zeros(2, 64, 5, 7)).shape
        torch.Size([2, 64, 5, 7])

    Source:
        Li et al. 2019, arXiv:1903.06586, equations 1 to 6.
    """

    info = BlockInfo("sk", "branch", "Li et al. 2019, arXiv:1903.06586")

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 16,
        num_branches: int = 2,
        groups: int | None = None,
        min_hidden_channels: int = 32,
    ) -> None:
        super().__init__()
        groups = groups or math.gcd(channels, 32)
        hidden = max(min_hidden_channels, channels // reduction)
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=i, dilation=i, groups=groups, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            )
            for i in range(1, num_branches + 1)
        )
        self.squeeze = nn.Linear(channels, hidden, bias=False)
        self.norm = nn.BatchNorm1d(hidden)
        self.select = nn.Linear(hidden, num_branches * channels, bias=False)
        self.tap = Tap("channel")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the weighted sum of the branches."""
        outputs = [branch(x) for branch in self.branches]
        pooled = torch.stack([fast_mean(output, (2, 3)) for output in outputs]).sum(0)
        scores = self.select(self.norm(self.squeeze(pooled)).relu())
        weights = self.tap(scores.unflatten(1, (len(outputs), -1)).softmax(1))
        total = outputs[0] * weights[:, 0, :, None, None]
        for branch in range(1, len(outputs)):
            total = torch.addcmul(total, outputs[branch], weights[:, branch, :, None, None])
        return total
