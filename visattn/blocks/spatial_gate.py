"""Spatial gates: the spatial gate of CBAM and spatial squeeze-and-excitation (sSE)."""

from typing import ClassVar, get_args

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_choice, check_odd
from visattn.blocks.tap import Tap
from visattn.functional.gates import PoolOrder, cbam_spatial_gate, spatial_squeeze_gate


class SpatialGate(Block):
    """Spatial gate of CBAM: convolution over the channel-wise maximum and mean.

    Args:
        channels: Width of a feature; the block has the same parameters for all widths.
        kernel_size: Kernel size, odd.
        norm: Whether the score is batch-normalized, as in the authors' code.
        pool_order: Order of the pooled maps in the input of the convolution.

    Raises:
        ValueError: If the kernel size is even or the pooling order is unknown.

    Example:
        >>> import torch
        >>> SpatialGate(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Woo et al. 2018, arXiv:1807.06521, equation 3.
    """

    info: ClassVar = BlockInfo(
        name="spatial",
        kind="spatial",
        title="Spatial gate of CBAM",
        paper="Woo et al. 2018, arXiv:1807.06521",
        equation="y = x * s(BN(conv_k([max_c x; mean_c x])))",
        parameters="2 k k + 2; 2 k k with norm=False",
        deviations=(
            "batch normalization as in the authors' code; norm=False for the paper, which has none",
            "its weight is initialized with 1; in the authors' networks with 0, a gate of 0.5",
            "its momentum is 0.1; in the authors' code 0.01",
        ),
    )

    def __init__(
        self,
        channels: int,
        *,
        kernel_size: int = 7,
        norm: bool = True,
        pool_order: PoolOrder = "max_mean",
    ) -> None:
        super().__init__(channels)
        check_odd("kernel_size", kernel_size)
        check_choice("pool_order", pool_order, get_args(PoolOrder))
        self.pool_order: PoolOrder = pool_order
        self.conv = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = nn.BatchNorm2d(1) if norm else None
        self.tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the spatial gate."""
        gate = cbam_spatial_gate(x, self.conv.weight, order=self.pool_order, norm=self.norm)
        return x * self.tap(gate)[:, None]


class SpatialSE(Block):
    """Spatial squeeze-and-excitation: spatial gate by a 1x1 convolution (sSE).

    Args:
        channels: Number of input channels.
        bias: Whether the convolution has a bias.

    Example:
        >>> import torch
        >>> SpatialSE(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Roy et al. 2018, arXiv:1803.02579, section 2.2 (sSE).
    """

    info: ClassVar = BlockInfo(
        name="sse",
        kind="spatial",
        title="Channel squeeze, spatial excitation (sSE)",
        paper="Roy et al. 2018, arXiv:1803.02579",
        equation="y = x * s(w . x)",
        parameters="C",
        deviations=("bias=True adds a bias, as in several ports: C + 1 parameters",),
    )

    def __init__(self, channels: int, *, bias: bool = False) -> None:
        super().__init__(channels)
        self.squeeze = nn.Conv2d(channels, 1, 1, bias=bias)
        self.tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the spatial gate."""
        gate = spatial_squeeze_gate(x, self.squeeze.weight.flatten(), self.squeeze.bias)
        return x * self.tap(gate)[:, None]
