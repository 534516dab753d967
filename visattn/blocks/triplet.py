"""Triplet attention."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, apply_gate, check_odd
from visattn.blocks.tap import Tap
from visattn.functional.numerics import fast_amax, fast_mean


def z_pool(x: Float[Tensor, "b c y x"], dim: int) -> Float[Tensor, "b 2 p q"]:
    """Return the Z-pool: maximum and mean over a dimension, stacked.

    Example:
        >>> import torch
        >>> z_pool(torch.tensor([[[[1.0]], [[3.0]]]]), 1)
        tensor([[[[3.]],
                 [[2.]]]])

    Source:
        Misra et al. 2021, arXiv:2010.03045, equation 1 (the Z-pool).
    """
    return torch.stack((fast_amax(x, dim), fast_mean(x, (dim,))), dim=1)


def triplet_gate(
    places: Float[Tensor, "b y x"],
    rows: Float[Tensor, "b c y"],
    columns: Float[Tensor, "b c x"],
) -> Float[Tensor, "b c y x"]:
    """Return the triplet-attention gate: the mean of three gates over two dimensions each.

    The mean of the gates has the same effect as the mean of three gated copies of the features.

    Example:
        >>> import torch
        >>> triplet_gate(torch.tensor([[[0.3]]]), torch.tensor([[[0.6]]]), torch.tensor([[[0.9]]]))
        tensor([[[[0.6000]]]])

    Source:
        Misra et al. 2021, arXiv:2010.03045, equation 3.
    """
    crossed = (rows / 3).unsqueeze(3) + (columns / 3).unsqueeze(2)
    # In place: the backward pass of a sum does not need its operands.
    return crossed.add_((places / 3).unsqueeze(1))


class TripletAttention(Block):
    """Triplet attention: mean of three gates, one for each pair of axes.

    Args:
        channels: Number of input channels.
        kernel_size: Kernel size of the three convolutions, odd.

    Raises:
        ValueError: If the kernel size is even or below 1; in training mode, if the batch is one
            image of one position.

    Example:
        >>> import torch
        >>> TripletAttention(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Misra et al. 2021, arXiv:2010.03045, equations 1 to 3.
    """

    info: ClassVar = BlockInfo(
        name="triplet",
        kind="combined",
        title="Triplet attention",
        paper="Misra et al. 2021, arXiv:2010.03045",
        equation="y = x * (g_yx + g_cy + g_cx) / 3, g = s(BN(conv_k([max; mean over the third])))",
        parameters="3 (2 k k + 2)",
        deviations=("averages the three gates instead of three gated copies of the features",),
    )

    def __init__(self, channels: int, *, kernel_size: int = 7) -> None:
        super().__init__(channels)
        check_odd("kernel_size", kernel_size)
        self.places = AxisPairGate(kernel_size)
        self.rows = AxisPairGate(kernel_size)
        self.columns = AxisPairGate(kernel_size)
        self.tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the gated features."""
        places = self.places(z_pool(x, 1))
        # Axis order of the released kernels: rows, channels; channels, columns.
        rows = self.rows(z_pool(x, 3).transpose(2, 3)).transpose(1, 2)
        columns = self.columns(z_pool(x, 2))
        return apply_gate(x, triplet_gate(places, rows, columns), self.tap)


class AxisPairGate(nn.Module):
    """Gate over two axes: convolution over their max and mean pools, batch normalization, sigmoid.

    Example:
        >>> import torch
        >>> AxisPairGate(3)(torch.zeros(1, 2, 5, 7)).shape
        torch.Size([1, 5, 7])
    """

    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = nn.BatchNorm2d(1, momentum=0.01)  # as released

    def forward(self, pools: Float[Tensor, "b 2 p q"]) -> Float[Tensor, "b p q"]:
        """Return the gate, in (0, 1).

        Raises:
            ValueError: In training mode, if there is a single value, which has no variance.
        """
        return self.norm(self.conv(pools)).sigmoid().squeeze(1)
