"""Triplet attention."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import fast_amax, fast_mean


class PairGate(nn.Module):
    """Gate over two axes, from the maximum and the mean over the third.

    Example:
        >>> PairGate(3)(torch.zeros(1, 5, 7), torch.zeros(1, 5, 7)).shape
        torch.Size([1, 5, 7])
    """

    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = nn.BatchNorm2d(1, momentum=0.01)  # as released

    def forward(
        self, maxima: Float[Tensor, "b p q"], means: Float[Tensor, "b p q"]
    ) -> Float[Tensor, "b p q"]:
        """Return the gate, in (0, 1)."""
        return self.norm(self.conv(torch.stack((maxima, means), 1))).sigmoid().squeeze(1)


class TripletAttention(Block):
    """Triplet attention: mean of three gates, one for each pair of axes.

    With the sigmoid s::

        y = x * (g_yx + g_cy + g_cx) / 3,  g = s(BN(conv_k([max; mean over the third axis])))

    Args:
        channels: Number of input channels; no parameter depends on it.
        kernel_size: Kernel size of the three convolutions, odd.

    Example:
        >>> TripletAttention(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Misra et al. 2021, arXiv:2010.03045, equations 1 to 3. The paper's mean of three gated
        copies of the features equals the features times the mean gate.
    """

    info = BlockInfo("triplet", "combined", "Misra et al. 2021, arXiv:2010.03045")

    def __init__(self, channels: int, *, kernel_size: int = 7) -> None:  # noqa: ARG002
        super().__init__()
        self.places = PairGate(kernel_size)
        self.rows = PairGate(kernel_size)
        self.columns = PairGate(kernel_size)
        self.tap = Tap("gate")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the gated features."""
        positions = self.places(fast_amax(x, 1), fast_mean(x, (1,)))
        # The axes of the released kernels are rows by channels and channels by columns.
        rows = self.rows(fast_amax(x, 3).mT, fast_mean(x, (3,)).mT).mT
        columns = self.columns(fast_amax(x, 2), fast_mean(x, (2,)))
        third = positions[:, None] / 3, rows[:, :, :, None] / 3, columns[:, :, None] / 3
        return x * self.tap(third[1] + third[2] + third[0])
