"""Style-based recalibration."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.norm import VectorNorm
from visattn.blocks.tap import Tap
from visattn.functional.gates.channel import channel_styles, style_scores


class SRM(Block):
    """Scale each channel by a gate that knows its own mean and its own spread (SRM).

    Args:
        channels: Width of a feature.

    Raises:
        ValueError: In training, if the batch is a single image.

    Example:
        >>> import torch
        >>> SRM(64)(torch.zeros(2, 64, 5, 7)).shape
        torch.Size([2, 64, 5, 7])

    Source:
        Lee et al. 2019, arXiv:1903.10829, equations 1 to 6.
    """

    card: ClassVar = BlockInfo(
        name="srm",
        kind="channel",
        title="Style-based recalibration module (SRM)",
        paper="Lee et al. 2019, arXiv:1903.10829",
        equation="y = x * s(BN(w1 mean(x) + w2 std(x))), w1 and w2 per channel",
        parameters="4 C",
        deviations=(
            "std is that of the places at hand, root of (variance + 1e-5); the released code takes "
            "one place less, which leaves a single place none",
            "w begins at random; in the released code at 0, a gate of 0.5 for every input",
            "it cannot learn from a batch of one image, which has no variance",
        ),
        weights=("style-based-recalibration-module SRMLayer (cfc, bn), but for the std",),
        aliases=("style-based recalibration module", "style recalibration module"),
    )

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.weight = nn.Parameter(torch.empty(channels, 2))
        nn.init.uniform_(self.weight, -(2**-0.5), 2**-0.5)  # two inputs: torch's for such a layer
        self.norm = VectorNorm(channels)
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, each channel scaled by its gate."""
        scores = style_scores(channel_styles(x), self.weight)
        gate = self.norm(scores).sigmoid().to(x.dtype)
        return x * self.tap(gate)[:, :, None, None]
