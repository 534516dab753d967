"""Additive attention gates: places pass as far as they fit a signal from elsewhere."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, hidden_width
from visattn.blocks.tap import Tap
from visattn.functional.gates.spatial import additive_gate, resampled


class AttentionGate(Block):
    """Scale each place by how well it fits a gating signal, which may come from a coarser layer.

    Args:
        channels: Width of a feature.
        reduction: By which the width where both meet is narrower; it keeps at least one unit.
        signal: Width of the signal; that of the features if None.
        stride: By which the grid where both meet is coarser than that of the features.

    Raises:
        ValueError: If the signal or the stride are below 1.

    Example:
        >>> import torch
        >>> gate = AttentionGate(64, signal=128)
        >>> gate(torch.zeros(1, 64, 10, 14), torch.zeros(1, 128, 5, 7)).shape
        torch.Size([1, 64, 10, 14])

    Source:
        Oktay et al. 2018, arXiv:1804.03999, equations 1 and 2.
    """

    card: ClassVar = BlockInfo(
        name="gate",
        kind="spatial",
        title="Additive attention gate (Attention U-Net)",
        paper="Oktay et al. 2018, arXiv:1804.03999",
        equation="y = x * s(p . relu(Wx x + Wg g + b) + c), g the signal, or x itself without one",
        parameters="(C + G + 2) h + 1, with h = max(1, C // reduction) and G the signal's width",
        deviations=(
            "without a signal the features gate themselves",
            "both meet on the grid of the features; the paper's is twice as coarse: stride=2",
            "no convolution and normalization after the gate, which the authors' code has",
        ),
        weights=("Attention-Gated-Networks in 2-D (theta, phi, psi), with stride=2",),
        aliases=("additive attention gate", "Attention U-Net", "AG"),
    )

    def __init__(
        self, channels: int, *, reduction: int = 2, signal: int | None = None, stride: int = 1
    ) -> None:
        super().__init__(channels)
        self.signal = channels if signal is None else signal
        if self.signal < 1 or stride < 1:
            raise ValueError(f"signal and stride must be at least 1, got {signal} and {stride}")
        self.stride = stride
        hidden = hidden_width(channels, reduction)
        self.theta = nn.Conv2d(channels, hidden, stride, stride=stride, bias=False)
        self.phi = nn.Conv2d(self.signal, hidden, 1)
        self.psi = nn.Conv2d(hidden, 1, 1)
        self.tap = Tap("gate")

    def forward(
        self,
        x: Float[Tensor, "b c y x"],
        signal: Float[Tensor, "b g _y _x"] | None = None,
    ) -> Float[Tensor, "b c y x"]:
        """Return the features, each place scaled by how well it fits the signal.

        Args:
            x: Features.
            signal: On a grid of any size that covers the same image; the features if None.

        Raises:
            ValueError: If a width is not that which the block is made for, if the batches differ,
                or if the grid is smaller than the stride.
        """
        self._check(x)
        self._check_signal(x, x if signal is None else signal)
        gate = self._gate(x, signal)
        return x * self.tap(gate)[:, None]

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, gated by themselves."""
        return x * self.tap(self._gate(x, None))[:, None]

    def _gate(
        self, x: Float[Tensor, "b c y x"], signal: Float[Tensor, "b g _y _x"] | None
    ) -> Float[Tensor, "b y x"]:
        features = self.theta(x)
        told = self.phi(x if signal is None else signal)
        if signal is not None or self.stride > 1:
            told = resampled(told, (features.shape[2], features.shape[3]))
        gate = additive_gate(features, told, self.psi.weight.flatten(), self.psi.bias)
        if self.stride > 1:
            gate = resampled(gate[:, None], (x.shape[2], x.shape[3])).squeeze(1)
        return gate

    def _check_signal(self, x: Float[Tensor, "b c y x"], signal: Tensor) -> None:
        width, many = self.signal, x.shape[0]
        if signal.ndim != 4 or signal.shape[1] != width or signal.shape[0] != many:
            raise ValueError(
                f"the signal must be [{many}, {width}, height, width], "
                f"got {list(signal.shape)}; say signal={signal.shape[1:2].numel()} when it is made"
            )
        if self.stride > 1 and min(x.shape[2:]) < self.stride:
            raise ValueError(
                f"the features must be at least {self.stride} x {self.stride} places, as the "
                f"stride, got {x.shape[2]} x {x.shape[3]}; use stride=1"
            )
