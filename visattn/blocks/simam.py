"""SimAM: parameter-free attention."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import at_least_float32, fast_mean


class SimAM(Block):
    """SimAM: parameter-free gate from the energy of each position in each channel.

    A position far from the mean of its channel has low energy and a large gate. With the sigmoid
    s::

        y = x * s(d / (4 (v + lambda)) + 1 / 2),  d = (x - mean(x))^2,  v = sum(d) / (H W - 1)

    The formula bounds the gate to 0.62 .. 1, so that no position is suppressed. For a single
    position the variance is 0, where the released code gives NaN. The gate is computed in float32,
    since squares overflow half precision.

    Args:
        channels: Number of input channels; nothing depends on it.
        e_lambda: Added to the variance of a channel (the paper's lambda). The authors' ImageNet
            networks were trained with 0.1.

    Example:
        >>> SimAM(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Yang et al. 2021, "SimAM: A Simple, Parameter-Free Attention Module for Convolutional Neural
        Networks", equations 5 and 6; the variance is unbiased, as in the authors' code.
    """

    info = BlockInfo(
        "simam", "combined", "Yang et al. 2021, ICML, proceedings.mlr.press/v139/yang21o"
    )

    def __init__(self, channels: int, *, e_lambda: float = 1e-4) -> None:  # noqa: ARG002
        super().__init__()
        self.e_lambda = e_lambda
        self.tap = Tap("gate")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the gated features."""
        # In place, since each intermediate is as large as x: inference is 1.4 times as fast on a
        # CPU. Autograd still keeps the operands that the backward pass needs.
        exact = at_least_float32(x)
        squares = (exact - fast_mean(exact, (2, 3))[:, :, None, None]).square_()
        variance = squares.sum((2, 3), keepdim=True) / torch.sym_max(x.shape[2] * x.shape[3] - 1, 1)
        gate = squares.mul_(0.25 / (variance + self.e_lambda)).add_(0.5).sigmoid_()
        return x * self.tap(gate.to(x.dtype))
