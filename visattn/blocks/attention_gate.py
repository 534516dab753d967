"""Additive attention gate of Attention U-Net."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap


class AttentionGate(Block):
    """Additive attention gate: spatial gate from features and a gating signal (Attention U-Net).

    With the sigmoid s and the gating signal g, by default x itself::

        y = x * s(p . relu(Wx x + Wg g + b) + c)

    The gate is computed at the resolution of the features, or at half of it with `stride=2`, as in
    the paper. The authors' code adds a convolution and a normalization after the gate.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the inner features, which keep at least one channel.
        signal_channels: Channels of the gating signal; `channels` if None.
        stride: Stride of the grid on which the gate is computed.

    Example:
        >>> import torch
        >>> gate = AttentionGate(64, signal_channels=128)
        >>> gate(torch.zeros(1, 64, 10, 14), torch.zeros(1, 128, 5, 7)).shape
        torch.Size([1, 64, 10, 14])

    Source:
        Oktay et al. 2018, arXiv:1804.03999, equations 1 and 2.
    """

    info = BlockInfo("gate", "spatial", "Oktay et al. 2018, arXiv:1804.03999")

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 2,
        signal_channels: int | None = None,
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.stride = stride
        hidden = max(1, channels // reduction)
        self.theta = nn.Conv2d(channels, hidden, stride, stride=stride, bias=False)
        self.phi = nn.Conv2d(signal_channels or channels, hidden, 1)
        self.psi = nn.Conv2d(hidden, 1, 1)
        self.tap = Tap("gate")

    def gate(
        self, x: Float[Tensor, "b c y x"], signal: Float[Tensor, "b g _y _x"] | None = None
    ) -> Float[Tensor, "b y x"]:
        """Return the spatial gate in (0, 1).

        Args:
            x: Features.
            signal: Gating signal of any size that covers the same image; `x` itself if None.
        """
        features, projected = self.theta(x), self.phi(x if signal is None else signal)
        if signal is not None or self.stride > 1:
            projected = interpolate(projected, features.shape[2:], mode="bilinear")
        gate = self.psi((features + projected).relu()).sigmoid()
        if self.stride > 1:
            gate = interpolate(gate, x.shape[2:], mode="bilinear")
        return self.tap(gate.squeeze(1))

    def forward(
        self, x: Float[Tensor, "b c y x"], signal: Float[Tensor, "b g _y _x"] | None = None
    ) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the spatial gate; arguments are those of `gate`."""
        return x * self.gate(x, signal)[:, None]
