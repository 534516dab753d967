"""Style-based recalibration module (SRM)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.norm import CheckedBatchNorm1d
from visattn.blocks.tap import Tap
from visattn.functional.gates.channel import style_pool, style_scores


class SRM(Block):
    """Style-based recalibration: channel gate from the mean and standard deviation of each channel.

    Args:
        channels: Number of input channels.

    Raises:
        ValueError: In training mode, if the batch is a single image.

    Example:
        >>> import torch
        >>> SRM(64)(torch.zeros(2, 64, 5, 7)).shape
        torch.Size([2, 64, 5, 7])

    Source:
        Lee et al. 2019, arXiv:1903.10829, equations 1 to 6.
    """

    info: ClassVar = BlockInfo(
        name="srm",
        kind="channel",
        title="Style-based recalibration module (SRM)",
        paper="Lee et al. 2019, arXiv:1903.10829",
        equation="y = x * s(BN(w1 mean(x) + w2 std(x))), w1 and w2 per channel",
        parameters="4 C",
        deviations=(
            "std is the biased estimate, sqrt(variance + 1e-5); the released code uses the "
            "unbiased one, which is undefined for a single position",
            "w is initialized at random; in the released code with 0, a gate of 0.5",
            "it cannot be trained with a batch of one image, which has no variance",
        ),
        compatible_weights=(
            "style-based-recalibration-module SRMLayer (cfc, bn), except for the std",
        ),
        aliases=("style-based recalibration module", "style recalibration module"),
    )

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.weight = nn.Parameter(torch.empty(channels, 2))
        nn.init.uniform_(self.weight, -(2**-0.5), 2**-0.5)  # default of nn.Linear for two inputs
        self.norm = CheckedBatchNorm1d(channels)
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate."""
        scores = style_scores(style_pool(x), self.weight)
        gate = self.norm(scores).sigmoid().to(x.dtype)
        return x * self.tap(gate)[:, :, None, None]
