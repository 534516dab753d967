"""SimAM: parameter-free attention."""

from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.blocks.base import Block, BlockInfo, apply_gate
from visattn.blocks.tap import Tap
from visattn.functional.numerics import at_least_float32, can_write_inplace, channel_means


def simam_gate(x: Float[Tensor, "b c y x"], *, e_lambda: float = 1e-4) -> Float[Tensor, "b c y x"]:
    """Return the SimAM gate of each position and channel, between sigmoid(1/2) = 0.6225 and 1.

    A position far from the mean of its channel has low energy and a large gate; one at the mean has
    the smallest gate. A channel of one position has the gate sigmoid(1/2). The computation runs in
    float32 at least.

    Args:
        e_lambda: Regularization λ above 0, added to the variance; larger values flatten the gate.

    Example:
        >>> import torch
        >>> simam_gate(torch.tensor([[[[0.0, 0.0, 0.0, 4.0]]]]))
        tensor([[[[0.6370, 0.6370, 0.6370, 0.7432]]]])

    Source:
        Yang et al. 2021, "SimAM: A Simple, Parameter-Free Attention Module for Convolutional Neural
        Networks", equations 5 and 6; the variance is unbiased, as in the authors' code.
    """
    exact = at_least_float32(x)
    centered = exact - channel_means(exact)[:, :, None, None]
    fresh = not can_write_inplace(centered)
    # Every intermediate is as large as x: without a backward pass its memory is reused.
    squares = centered.square() if fresh else centered.square_()
    factor = 0.25 / (squares.sum((2, 3), keepdim=True) / _degrees(x) + e_lambda)
    if fresh:
        return (squares * factor + 0.5).sigmoid().to(x.dtype)
    return squares.mul_(factor).add_(0.5).sigmoid_().to(x.dtype)


def _degrees(x: Float[Tensor, "b c y x"]) -> int | Tensor:
    """Return the number of positions minus 1, but at least 1."""
    degrees: int | Tensor = x.shape[2] * x.shape[3] - 1  # a tensor under torch.jit.trace
    if isinstance(degrees, Tensor):
        return degrees.clamp_min(1)
    return cast("int", torch.sym_max(degrees, 1))


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
