"""Bottleneck attention module (BAM)."""

from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import (
    Block,
    BlockInfo,
    check_choice,
    reduced_channels,
)
from visattn.blocks.tap import Tap
from visattn.functional.numerics import channel_means

CombineMode = Literal["add", "mul"]


def bam_gate(
    channel: Float[Tensor, "b c"], place: Float[Tensor, "b y x"], *, combine: CombineMode = "add"
) -> Float[Tensor, "b c y x"]:
    """Return the gate of BAM, in (0, 1), from channel and spatial logits.

    Args:
        combine: Whether the logits are added, as in the paper, or multiplied.

    Example:
        >>> bam_gate(torch.zeros(1, 1), torch.zeros(1, 1, 2))
        tensor([[[[0.5000, 0.5000]]]])

    Source:
        Park et al. 2018, arXiv:1807.06514, equation 2.
    """
    by_channel = channel[:, :, None, None]
    by_place = place[:, None]
    score = by_channel + by_place if combine == "add" else by_channel * by_place
    return score.sigmoid()


class BAM(Block):
    """Bottleneck attention module: residual gate from the sum of channel and spatial scores (BAM).

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layers, which keep at least one channel.
        dilation: Dilation of the two 3x3 convolutions of the spatial branch.
        combine: Whether the scores are added, as in the paper, or multiplied, as in the
            authors' code and weights.

    Raises:
        ValueError: If the dilation is below 1 or there is no such combination; in training, if the
            batch is a single image.

    Example:
        >>> import torch
        >>> BAM(64)(torch.zeros(2, 64, 5, 7)).shape
        torch.Size([2, 64, 5, 7])

    Source:
        Park et al. 2018, arXiv:1807.06514, equations 1 to 4.
    """

    info: ClassVar = BlockInfo(
        name="bam",
        kind="combined",
        title="Bottleneck attention module (BAM)",
        paper="Park et al. 2018, arXiv:1807.06514",
        equation="y = x + x * s(Mc + Ms), Mc = W2 relu(BN(W1 mean(x) + b1)) + b2,\n"
        "Ms = conv1(conv3(conv3(conv1 x))), each but the last with BN and relu, dilated 3 x 3",
        parameters="3 C h + 18 h h + 13 h + C + 1, with h = max(1, C // reduction)",
        deviations=(
            "batch normalization follows the hidden layers, as in the authors' code; in the paper "
            "it follows the last layer of each branch",
            "combine='mul' multiplies the scores, as the authors' code does",
            "it cannot be trained with a batch of one image, which has no variance",
        ),
    )

    def __init__(
        self, channels: int, *, reduction: int = 16, dilation: int = 4, combine: CombineMode = "add"
    ) -> None:
        super().__init__(channels)
        check_choice("combine", combine, get_args(CombineMode))
        if dilation < 1:
            raise ValueError(f"dilation must be at least 1, got {dilation}")
        hidden = reduced_channels(channels, reduction)
        self.combine: CombineMode = combine
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

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return x + x * gate."""
        channel = self.channel(channel_means(x))
        spatial = self.spatial(x).squeeze(1)
        return torch.addcmul(x, x, self.tap(bam_gate(channel, spatial, combine=self.combine)))


def _conv_bn_relu(conv: nn.Conv2d) -> tuple[nn.Module, ...]:
    return conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU(inplace=True)
