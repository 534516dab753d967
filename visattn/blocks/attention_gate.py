"""Additive attention gate of Attention U-Net."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, reduced_channels
from visattn.blocks.tap import Tap
from visattn.functional.gates import resize_bilinear, spatial_squeeze_gate


def additive_gate(
    features: Float[Tensor, "b h y x"],
    signal: Float[Tensor, "b h #y #x"],
    weight: Float[Tensor, " h"],
    bias: Float[Tensor, " 1"] | None = None,
) -> Float[Tensor, "b y x"]:
    """Return the additive attention gate of each position, in (0, 1), from features and signal.

    Both are already projected to the same number of channels, the signal with its bias.

    Args:
        signal: What it is gated by, projected and on the same grid; or one place for all.
        weight: What a place that fits looks like after the ReLU.

    Example:
        >>> additive_gate(torch.zeros(1, 3, 1, 2), torch.zeros(1, 3, 1, 1), torch.ones(3))
        tensor([[[0.5000, 0.5000]]])

    Source:
        Oktay et al. 2018, arXiv:1804.03999, equations 1 and 2.
    """
    return spatial_squeeze_gate((features + signal).relu(), weight, bias)


class AttentionGate(Block):
    """Additive attention gate: spatial gate from features and a gating signal (Attention U-Net).

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the inner features, which keep at least one channel.
        signal_channels: Channels of the gating signal; `channels` if None.
        stride: Stride of the grid on which the gate is computed.

    Raises:
        ValueError: If the signal channels or the stride are below 1.

    Example:
        >>> import torch
        >>> gate = AttentionGate(64, signal_channels=128)
        >>> gate(torch.zeros(1, 64, 10, 14), torch.zeros(1, 128, 5, 7)).shape
        torch.Size([1, 64, 10, 14])

    Source:
        Oktay et al. 2018, arXiv:1804.03999, equations 1 and 2.
    """

    info: ClassVar = BlockInfo(
        name="gate",
        kind="spatial",
        title="Additive attention gate (Attention U-Net)",
        paper="Oktay et al. 2018, arXiv:1804.03999",
        equation="y = x * s(p . relu(Wx x + Wg g + b) + c), g the signal, or x itself without one",
        parameters="(C + G + 2) h + 1, with h = max(1, C // reduction) and G the signal's width",
        deviations=(
            "without a signal the features gate themselves",
            "computed at the resolution of the features; stride=2 for half of it, as in the paper",
            "no convolution and normalization after the gate, unlike the authors' code",
        ),
    )

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 2,
        signal_channels: int | None = None,
        stride: int = 1,
    ) -> None:
        super().__init__(channels)
        self.signal_channels = channels if signal_channels is None else signal_channels
        if self.signal_channels < 1 or stride < 1:
            raise ValueError(
                f"signal and stride must be at least 1, got {signal_channels} and {stride}"
            )
        self.stride = stride
        hidden = reduced_channels(channels, reduction)
        self.theta = nn.Conv2d(channels, hidden, stride, stride=stride, bias=False)
        self.phi = nn.Conv2d(self.signal_channels, hidden, 1)
        self.psi = nn.Conv2d(hidden, 1, 1)
        self.tap = Tap("gate")

    def forward(
        self,
        x: Float[Tensor, "b c y x"],
        signal: Float[Tensor, "b g _y _x"] | None = None,
    ) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the spatial gate.

        Args:
            x: Features.
            signal: Gating signal of any size that covers the same image; `x` itself if None.

        Raises:
            ValueError: If a number of channels does not match, if the batch sizes differ, or if the
                features are smaller than the stride.
        """
        return x * self.gate(x, signal)[:, None]

    def gate(
        self,
        x: Float[Tensor, "b c y x"],
        signal: Float[Tensor, "b g _y _x"] | None = None,
    ) -> Float[Tensor, "b y x"]:
        """Return the spatial gate in (0, 1); arguments and errors are those of `forward`."""
        self._check_features(x)
        self._check_signal(x, x if signal is None else signal)
        return self.tap(self._gate(x, signal))

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features gated by themselves."""
        return x * self.tap(self._gate(x, None))[:, None]

    def _gate(
        self, x: Float[Tensor, "b c y x"], signal: Float[Tensor, "b g _y _x"] | None
    ) -> Float[Tensor, "b y x"]:
        features = self.theta(x)
        projected = self.phi(x if signal is None else signal)
        if signal is not None or self.stride > 1:
            projected = resize_bilinear(projected, (features.shape[2], features.shape[3]))
        gate = additive_gate(features, projected, self.psi.weight.flatten(), self.psi.bias)
        if self.stride > 1:
            gate = resize_bilinear(gate[:, None], (x.shape[2], x.shape[3])).squeeze(1)
        return gate

    def _check_signal(self, x: Float[Tensor, "b c y x"], signal: Tensor) -> None:
        channels = self.signal_channels
        batch = x.shape[0]
        if signal.ndim != 4 or signal.shape[1] != channels or signal.shape[0] != batch:
            raise ValueError(
                f"the signal must be [{batch}, {channels}, height, width], got "
                f"{list(signal.shape)}; create the block with "
                f"signal_channels={signal.shape[1:2].numel()}"
            )
        if self.stride > 1 and min(x.shape[2:]) < self.stride:
            raise ValueError(
                f"the features must be at least {self.stride} x {self.stride} positions, the "
                f"stride, got {x.shape[2]} x {x.shape[3]}; use stride=1"
            )
