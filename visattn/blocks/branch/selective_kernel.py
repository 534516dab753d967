"""Selective kernels: convolutions of several sizes, weighed per channel."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, hidden_width
from visattn.blocks.norm import MapNorm, VectorNorm
from visattn.blocks.tap import Tap
from visattn.functional.gates.branch import branch_shares, merged
from visattn.functional.pooling import channel_means


class SelectiveKernel(Block):
    """Convolve the features by kernels of several sizes, and mix the results per channel.

    The sizes are 3, 5, 7, ..., each a 3 x 3 kernel dilated by 1, 2, 3, ...

    Args:
        channels: Width of a feature.
        reduction: By which the hidden layer is narrower.
        branches: How many kernels.
        groups: Of the convolutions; if None, 32 or, where 32 does not divide the width, the largest
            number that divides both.
        least: Units that the hidden layer has at least.

    Raises:
        ValueError: If there is no branch, if the groups do not divide the width, or if `least` is
            below 1; in training, if the batch is a single image.

    Example:
        >>> import torch
        >>> SelectiveKernel(64)(torch.zeros(2, 64, 5, 7)).shape
        torch.Size([2, 64, 5, 7])

    Source:
        Li et al. 2019, arXiv:1903.06586, equations 1 to 6.
    """

    card: ClassVar = BlockInfo(
        name="sk",
        kind="branches",
        title="Selective kernel",
        paper="Li et al. 2019, arXiv:1903.06586",
        equation="y = sum_i a_i * u_i, u_i = relu(BN(conv3_i(x))) dilated by i,\n"
        "a = softmax_i(A_i relu(BN(W mean(sum_i u_i))))",
        parameters="M (9 C C / G + 2 C) + (M + 1) C d + 2 d, d = max(C // reduction, least)",
        deviations=(
            "where 32 does not divide the width there are as many groups as divide both",
            "it cannot learn from a batch of one image, which has no variance",
        ),
        weights=("timm SelectiveKernel with split_input=False (paths, attn)",),
        aliases=("SKNet", "SK attention", "SKConv"),
    )

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 16,
        branches: int = 2,
        groups: int | None = None,
        least: int = 32,
    ) -> None:
        super().__init__(channels)
        if branches < 1 or least < 1:
            raise ValueError(f"branches and least must be at least 1, got {branches} and {least}")
        groups = dividing_groups(channels, groups, usual=32)
        hidden = hidden_width(channels, reduction, least=least)
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=i, dilation=i, groups=groups, bias=False),
                MapNorm(channels),
                nn.ReLU(inplace=True),
            )
            for i in range(1, branches + 1)
        )
        self.squeeze = nn.Linear(channels, hidden, bias=False)
        self.norm = VectorNorm(hidden)
        self.select = nn.Linear(hidden, branches * channels, bias=False)
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the mix of what the kernels find."""
        found = [branch(x) for branch in self.branches]
        pooled = torch.stack([channel_means(part) for part in found]).sum(0)
        scores = self.select(self.norm(self.squeeze(pooled)).relu())
        weights = branch_shares(scores.unflatten(1, (len(found), self.channels)))
        return merged(found, self.tap(weights))


def dividing_groups(channels: int, groups: int | None, *, usual: int) -> int:
    """Return the groups of a convolution: those asked for, or what divides the usual number too.

    Raises:
        ValueError: If those asked for do not divide the width.

    Example:
        >>> dividing_groups(64, None, usual=32), dividing_groups(24, None, usual=32)
        (32, 8)
    """
    if groups is None:
        return math.gcd(channels, usual)
    if groups < 1 or channels % groups:
        raise ValueError(f"groups must divide the {channels} channels, got {groups}")
    return groups
