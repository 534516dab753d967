"""Channel gate without mixing between channels (SE-Var2)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.pooling import channel_means


def mean_gate(pooled: Float[Tensor, "b c"], scale: Float[Tensor, " c"]) -> Float[Tensor, "b c"]:
    """Return the gate of each channel, in (0, 1), from its own mean.

    Example:
        >>> mean_gate(torch.zeros(1, 2), torch.ones(2))
        tensor([[0.5000, 0.5000]])

    Source:
        Wang et al. 2020, arXiv:1910.03151, table 1 (SE-Var2).
    """
    return (pooled * scale).sigmoid()


class MeanGate(Block):
    """Gate of each channel from its own mean, without mixing between channels.

    Args:
        channels: Number of input channels.

    Example:
        >>> MeanGate(16)(torch.zeros(1, 16, 5, 7)).shape
        torch.Size([1, 16, 5, 7])

    Source:
        Wang et al. 2020, arXiv:1910.03151, table 1 (SE-Var2).
    """

    info: ClassVar = BlockInfo(
        name="meangate",
        kind="channel",
        title="Gate of channel means",
        paper="Wang et al. 2020, arXiv:1910.03151",
        equation="y = x * s(w mean(x))",
        parameters="C",
    )

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.scale = nn.Parameter(torch.ones(channels))
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate."""
        return x * self.tap(mean_gate(channel_means(x), self.scale))[:, :, None, None]
