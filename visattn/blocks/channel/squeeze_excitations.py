"""Squeeze and excitation."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.bases import Block, hidden_width
from visattn.blocks.cards import Card
from visattn.blocks.taps import Tap
from visattn.functional.channel_gates import squeeze_excitation_gate
from visattn.functional.pools import channel_means


class SqueezeExcitation(Block):
    """Scale each channel by a gate that knows the means of all channels.

    Args:
        channels: Width of a feature.
        reduction: By which the hidden layer is narrower; it keeps at least one unit.
        bias: Whether both layers have biases, as the released weights do.

    Example:
        >>> import torch
        >>> SqueezeExcitation(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Hu et al. 2018, arXiv:1709.01507, equations 2 to 4.
    """

    card: ClassVar = Card(
        name="se",
        kind="channel",
        title="Squeeze-and-excitation",
        paper="Hu et al. 2018, arXiv:1709.01507",
        equation="y = x * s(W2 relu(W1 mean(x) + b1) + b2)",
        parameters="2 C h + h + C, with h = max(1, C // reduction)",
        deviations=("bias=False leaves the biases out, as several ports do",),
        weights=("timm SEModule (fc1, fc2 as 1x1 convolutions)",),
        aliases=("squeeze-and-excitation", "squeeze_excite", "SENet", "SE layer"),
    )

    def __init__(self, channels: int, *, reduction: int = 16, bias: bool = True) -> None:
        super().__init__(channels)
        hidden = hidden_width(channels, reduction)
        self.squeeze = nn.Linear(channels, hidden, bias=bias)
        self.excite = nn.Linear(hidden, channels, bias=bias)
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, each channel scaled by its gate."""
        gate = squeeze_excitation_gate(
            channel_means(x),
            self.squeeze.weight,
            self.excite.weight,
            self.squeeze.bias,
            self.excite.bias,
        )
        return x * self.tap(gate)[:, :, None, None]
