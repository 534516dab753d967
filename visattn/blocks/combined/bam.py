"""BAM: one gate per channel and place, from a score of either."""

from typing import ClassVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_choice, hidden_width
from visattn.blocks.norm import MapNorm, VectorNorm
from visattn.blocks.tap import Tap
from visattn.functional.gates.combined import Joint, joint_gate
from visattn.functional.pooling import channel_means


class BAM(Block):
    """Amplify each channel at each place by a gate, from a score of the one and of the other (BAM).

    Args:
        channels: Width of a feature.
        reduction: By which the hidden layers are narrower; they keep at least one unit.
        dilation: Of the two convolutions that score the places.
        combine: Whether the scores are added, as the paper has it, or multiplied, as its authors'
            weights were trained.

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

    card: ClassVar = BlockInfo(
        name="bam",
        kind="both",
        title="Bottleneck attention module (BAM)",
        paper="Park et al. 2018, arXiv:1807.06514",
        equation="y = x + x * s(Mc + Ms), Mc = W2 relu(BN(W1 mean(x) + b1)) + b2,\n"
        "Ms = conv1(conv3(conv3(conv1 x))), each but the last with BN and relu, dilated 3 x 3",
        parameters="3 C h + 18 h h + 13 h + C + 1, with h = max(1, C // reduction)",
        deviations=(
            "batch normalization after the hidden layers, as in the authors' code; the paper "
            "writes one after the last of either side",
            "combine='mul' multiplies the scores, as the authors' code does",
            "it cannot learn from a batch of one image, which has no variance",
        ),
        weights=("attention-module BAM (channel_att.gate_c, spatial_att.gate_s), combine='mul'",),
        aliases=("bottleneck attention module",),
    )

    def __init__(
        self, channels: int, *, reduction: int = 16, dilation: int = 4, combine: Joint = "add"
    ) -> None:
        super().__init__(channels)
        check_choice("combine", combine, get_args(Joint))
        if dilation < 1:
            raise ValueError(f"dilation must be at least 1, got {dilation}")
        hidden = hidden_width(channels, reduction)
        self.combine: Joint = combine
        self.channel = nn.Sequential(
            nn.Linear(channels, hidden),
            VectorNorm(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, channels),
        )
        self.spatial = nn.Sequential(
            *_layer(nn.Conv2d(channels, hidden, 1)),
            *_layer(nn.Conv2d(hidden, hidden, 3, padding=dilation, dilation=dilation)),
            *_layer(nn.Conv2d(hidden, hidden, 3, padding=dilation, dilation=dilation)),
            nn.Conv2d(hidden, 1, 1),
        )
        self.tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features plus their gated selves."""
        channel, place = self.channel(channel_means(x)), self.spatial(x).squeeze(1)
        return torch.addcmul(x, x, self.tap(joint_gate(channel, place, combine=self.combine)))


def _layer(conv: nn.Conv2d) -> tuple[nn.Module, ...]:
    return conv, MapNorm(conv.out_channels), nn.ReLU(inplace=True)
