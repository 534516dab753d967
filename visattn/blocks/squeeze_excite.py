"""Squeeze-and-excitation and effective squeeze-and-excitation."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import hardsigmoid

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import fast_mean


class SqueezeExcite(Block):
    """Squeeze-and-excitation: channel gate by an MLP with a bottleneck on the pooled channels.

    With the sigmoid s::

        y = x * s(W2 relu(W1 mean(x) + b1) + b2)

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

    info = BlockInfo("se", "channel", "Hu et al. 2018, arXiv:1709.01507")

    def __init__(self, channels: int, *, reduction: int = 16, bias: bool = True) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.squeeze = nn.Linear(channels, hidden, bias=bias)
        self.excite = nn.Linear(hidden, channels, bias=bias)
        self.tap = Tap("channel")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate."""
        gate = self.excite(self.squeeze(fast_mean(x, (2, 3))).relu()).sigmoid()
        return x * self.tap(gate)[:, :, None, None]


class EffectiveSE(Block):
    """Effective squeeze-and-excitation: channel gate by one linear layer, without a bottleneck.

    The equation, with the hard sigmoid of the released code::

        y = x * hardsigmoid(W mean(x) + b),  hardsigmoid(z) = min(max(z + 3, 0), 6) / 6

    Args:
        channels: Number of input channels.

    Example:
        >>> import torch
        >>> EffectiveSE(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Lee and Park 2020, arXiv:1911.06667, section 3.3.
    """

    info = BlockInfo("ese", "channel", "Lee and Park 2020, arXiv:1911.06667")

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.excite = nn.Linear(channels, channels)
        self.tap = Tap("channel")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate."""
        gate = hardsigmoid(self.excite(fast_mean(x, (2, 3))))
        return x * self.tap(gate)[:, :, None, None]
