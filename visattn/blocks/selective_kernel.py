"""Selective kernel (SK) attention."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import (
    Block,
    BlockInfo,
    reduced_channels,
)
from visattn.blocks.tap import Tap
from visattn.functional.gates import branch_softmax, merge_branches
from visattn.functional.numerics import channel_means


class SelectiveKernel(Block):
    """Selective kernel: softmax attention per channel over convolutions of several kernel sizes.

    The branches have 3 x 3 kernels with dilation 1, 2, 3, ..., that is sizes 3, 5, 7, ...

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layer.
        num_branches: Number of branches.
        groups: Groups of the convolutions; gcd(32, channels) if None.
        min_hidden_channels: Smallest width of the hidden layer.

    Raises:
        ValueError: If there is no branch, if the groups do not divide the width, or if `least` is
            below 1; in training mode, if the batch is a single image.

    Example:
        >>> import torch
        >>> SelectiveKernel(64)(torch.zeros(2, 64, 5, 7)).shape
        torch.Size([2, 64, 5, 7])

    Source:
        Li et al. 2019, arXiv:1903.06586, equations 1 to 6.
    """

    info: ClassVar = BlockInfo(
        name="sk",
        kind="branch",
        title="Selective kernel",
        paper="Li et al. 2019, arXiv:1903.06586",
        equation="y = sum_i a_i * u_i, u_i = relu(BN(conv3_i(x))) dilated by i,\n"
        "a = softmax_i(A_i relu(BN(W mean(sum_i u_i))))",
        parameters="M (9 C C / G + 2 C) + (M + 1) C d + 2 d, "
        "d = max(C // reduction, min_hidden_channels)",
        deviations=(
            "gcd(32, C) groups where 32 does not divide the channels",
            "it cannot be trained with a batch of one image, which has no variance",
        ),
    )

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 16,
        num_branches: int = 2,
        groups: int | None = None,
        min_hidden_channels: int = 32,
    ) -> None:
        super().__init__(channels)
        if num_branches < 1 or min_hidden_channels < 1:
            raise ValueError(
                "num_branches and min_hidden_channels must be at least 1, got "
                f"{num_branches} and {min_hidden_channels}"
            )
        groups = resolve_groups(channels, groups, usual=32)
        hidden = reduced_channels(channels, reduction, minimum=min_hidden_channels)
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

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the weighted sum of the branches."""
        outputs = [branch(x) for branch in self.branches]
        # The mean of the sum, without a sum as large as a branch.
        pooled = torch.stack([channel_means(output) for output in outputs]).sum(0)
        scores = self.select(self.norm(self.squeeze(pooled)).relu())
        weights = branch_softmax(scores.unflatten(1, (len(outputs), self.channels)))
        return merge_branches(outputs, self.tap(weights))


def resolve_groups(channels: int, groups: int | None, *, usual: int) -> int:
    """Return the number of groups of a convolution.

    By default it is the greatest common divisor of `usual` and the channels.

    Raises:
        ValueError: If the requested groups do not divide the channels.

    Example:
        >>> resolve_groups(64, None, usual=32), resolve_groups(24, None, usual=32)
        (32, 8)
    """
    if groups is None:
        return math.gcd(channels, usual)
    if groups < 1 or channels % groups:
        raise ValueError(f"groups must divide the {channels} channels, got {groups}")
    return groups
