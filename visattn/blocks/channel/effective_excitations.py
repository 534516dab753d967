"""Effective squeeze and excitation."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.bases import Block
from visattn.blocks.cards import Card
from visattn.blocks.taps import Tap
from visattn.functional.channel_gates import effective_gate
from visattn.functional.pools import channel_means


class EffectiveExcitation(Block):
    """Scale each channel by a gate that knows the means of all channels, without a bottleneck.

    Args:
        channels: Width of a feature.

    Example:
        >>> import torch
        >>> EffectiveExcitation(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Lee and Park 2020, arXiv:1911.06667, section 3.3.
    """

    card: ClassVar = Card(
        name="ese",
        kind="channel",
        title="Effective squeeze-and-excitation",
        paper="Lee and Park 2020, arXiv:1911.06667",
        equation="y = x * hardsigmoid(W mean(x) + b), hardsigmoid(z) = min(max(z + 3, 0), 6) / 6",
        parameters="C C + C",
        deviations=("the sigmoid is the hard one of the released code",),
        weights=("timm EffectiveSEModule (fc as a 1x1 convolution)",),
        aliases=("effective squeeze-and-excitation", "effective_se"),
    )

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.excite = nn.Linear(channels, channels)
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, each channel scaled by its gate."""
        gate = effective_gate(channel_means(x), self.excite.weight, self.excite.bias)
        return x * self.tap(gate)[:, :, None, None]
