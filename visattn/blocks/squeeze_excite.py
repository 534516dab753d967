"""Squeeze-and-excitation and effective squeeze-and-excitation."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import hardsigmoid, linear

from visattn.blocks.base import Block, BlockInfo, reduced_channels
from visattn.blocks.tap import Tap
from visattn.functional.gates import squeeze_excitation_gate
from visattn.functional.numerics import channel_means


def effective_se_gate(
    pooled: Float[Tensor, "b c"],
    weight: Float[Tensor, "c c"],
    bias: Float[Tensor, " c"] | None = None,
) -> Float[Tensor, "b c"]:
    """Return the effective SE gate of each channel, in [0, 1]: one linear map and a hard sigmoid.

    Example:
        >>> import torch
        >>> effective_se_gate(torch.tensor([[-9.0, 0.0, 9.0]]), torch.eye(3))
        tensor([[0.0000, 0.5000, 1.0000]])

    Source:
        Lee and Park 2020, arXiv:1911.06667, section 3.3.
    """
    return hardsigmoid(linear(pooled, weight, bias))


class SqueezeExcite(Block):
    """Squeeze-and-excitation: channel gate by an MLP with a bottleneck on the pooled channels.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layer, which keeps at least one channel.
        bias: Whether both linear layers have biases, as in the released weights.

    Example:
        >>> import torch
        >>> SqueezeExcite(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Hu et al. 2018, arXiv:1709.01507, equations 2 to 4.
    """

    info: ClassVar = BlockInfo(
        name="se",
        kind="channel",
        title="Squeeze-and-excitation",
        paper="Hu et al. 2018, arXiv:1709.01507",
        equation="y = x * s(W2 relu(W1 mean(x) + b1) + b2)",
        parameters="2 C h + h + C, with h = max(1, C // reduction)",
        deviations=("bias=False leaves the biases out, as several ports do",),
    )

    def __init__(self, channels: int, *, reduction: int = 16, bias: bool = True) -> None:
        super().__init__(channels)
        hidden = reduced_channels(channels, reduction)
        self.squeeze = nn.Linear(channels, hidden, bias=bias)
        self.excite = nn.Linear(hidden, channels, bias=bias)
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate."""
        gate = squeeze_excitation_gate(
            channel_means(x),
            self.squeeze.weight,
            self.excite.weight,
            self.squeeze.bias,
            self.excite.bias,
        )
        return x * self.tap(gate)[:, :, None, None]


class EffectiveSE(Block):
    """Effective squeeze-and-excitation: channel gate by one linear layer, without a bottleneck.

    Args:
        channels: Number of input channels.

    Example:
        >>> import torch
        >>> EffectiveSE(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Lee and Park 2020, arXiv:1911.06667, section 3.3.
    """

    info: ClassVar = BlockInfo(
        name="ese",
        kind="channel",
        title="Effective squeeze-and-excitation",
        paper="Lee and Park 2020, arXiv:1911.06667",
        equation="y = x * hardsigmoid(W mean(x) + b), hardsigmoid(z) = min(max(z + 3, 0), 6) / 6",
        parameters="C C + C",
        deviations=("the sigmoid is the hard one of the released code",),
    )

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.excite = nn.Linear(channels, channels)
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate."""
        gate = effective_se_gate(channel_means(x), self.excite.weight, self.excite.bias)
        return x * self.tap(gate)[:, :, None, None]
