"""SimAM: attention without parameters."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from visattn.blocks.base import Block, BlockInfo, scaled
from visattn.blocks.tap import Tap
from visattn.functional.gates.combined import energy_gate


class SimAM(Block):
    """Scale each place in each channel by how much it stands out there (SimAM).

    Args:
        channels: Width of a feature.
        smoothing: Added to the variance of a channel (the paper's lambda). The authors' ImageNet
            networks were trained with 0.1.

    Raises:
        ValueError: If the smoothing is not above 0.

    Example:
        >>> import torch
        >>> SimAM(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Yang et al. 2021, "SimAM: A Simple, Parameter-Free Attention Module for Convolutional Neural
        Networks", equations 5 and 6.
    """

    card: ClassVar = BlockInfo(
        name="simam",
        kind="both",
        title="SimAM",
        paper="Yang et al. 2021, ICML, proceedings.mlr.press/v139/yang21o",
        equation="y = x * s(d / (4 (v + lambda)) + 1 / 2), d = (x - mean(x))^2, "
        "v = sum(d) / (H W - 1)",
        parameters="0",
        deviations=(
            "a channel of a single place has variance 0; in the released code it gives NaN",
            "computed in float32 at least; squares do not fit half precision",
            "by its formula the gate lies between 0.62 and 1, so that nothing is shut out",
        ),
        weights=("has none",),
        aliases=("simple attention module",),
    )

    def __init__(self, channels: int, *, smoothing: float = 1e-4) -> None:
        super().__init__(channels)
        if not smoothing > 0:
            raise ValueError(f"smoothing must be above 0, got {smoothing}")
        self.smoothing = smoothing
        self.tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, each scaled by its gate."""
        return scaled(x, energy_gate(x, smoothing=self.smoothing), self.tap)

    def extra_repr(self) -> str:
        """Return what is printed of it beside its parts."""
        return f"{self.channels}, smoothing={self.smoothing}"
