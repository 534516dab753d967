"""SimAM: parameter-free attention."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from visattn.blocks.base import Block, BlockInfo, apply_gate
from visattn.blocks.tap import Tap
from visattn.functional.gates.combined import simam_gate


class SimAM(Block):
    """SimAM: parameter-free gate from the energy of each position in each channel.

    Args:
        channels: Number of input channels.
        e_lambda: Added to the variance of a channel (the paper's lambda). The authors' ImageNet
            networks were trained with 0.1.

    Raises:
        ValueError: If `e_lambda` is not above 0.

    Example:
        >>> import torch
        >>> SimAM(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Yang et al. 2021, "SimAM: A Simple, Parameter-Free Attention Module for Convolutional Neural
        Networks", equations 5 and 6.
    """

    info: ClassVar = BlockInfo(
        name="simam",
        kind="combined",
        title="SimAM",
        paper="Yang et al. 2021, ICML, proceedings.mlr.press/v139/yang21o",
        equation="y = x * s(d / (4 (v + lambda)) + 1 / 2), d = (x - mean(x))^2, "
        "v = sum(d) / (H W - 1)",
        parameters="0",
        deviations=(
            "a single position has variance 0; the released code gives NaN",
            "computed in float32 or wider, since squares overflow half precision",
            "the formula bounds the gate to 0.62 .. 1, so no position is suppressed",
        ),
        compatible_weights=("has none",),
        aliases=("simple attention module",),
    )

    def __init__(self, channels: int, *, e_lambda: float = 1e-4) -> None:
        super().__init__(channels)
        if not e_lambda > 0:
            raise ValueError(f"e_lambda must be above 0, got {e_lambda}")
        self.e_lambda = e_lambda
        self.tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the gated features."""
        return apply_gate(x, simam_gate(x, e_lambda=self.e_lambda), self.tap)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"{self.channels}, e_lambda={self.e_lambda}"
