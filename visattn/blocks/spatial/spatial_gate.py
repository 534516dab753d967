"""The spatial half of CBAM."""

from typing import ClassVar, get_args

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_choice, check_odd
from visattn.blocks.norm import MapNorm
from visattn.blocks.tap import Tap
from visattn.functional.gates.spatial import PoolOrder, pooled_gate, projected_gate


class SpatialGate(Block):
    """Scale each place by a gate that knows the largest and the mean channel around it.

    Args:
        channels: Width of a feature; the block has the same parameters for all widths.
        kernel: Side of the neighborhood, odd.
        norm: Whether the score passes a batch normalization, as in the authors' code.
        order: Which pool the first channel of the convolution reads.

    Raises:
        ValueError: If the kernel is even or there is no such order.

    Example:
        >>> import torch
        >>> SpatialGate(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Woo et al. 2018, arXiv:1807.06521, equation 3.
    """

    card: ClassVar = BlockInfo(
        name="spatial",
        kind="spatial",
        title="Spatial gate of CBAM",
        paper="Woo et al. 2018, arXiv:1807.06521",
        equation="y = x * s(BN(conv_k([max_c x; mean_c x])))",
        parameters="2 k k + 2; 2 k k with norm=False",
        deviations=(
            "the batch normalization is that of the authors' code, the paper has none: norm=False",
            "its weight begins at 1; in the authors' networks at 0, a gate of 0.5 everywhere",
            "its momentum is 0.1; in the authors' code 0.01",
        ),
        weights=(
            "attention-module SpatialGate (spatial.conv, spatial.bn)",
            "timm SpatialAttn (conv.conv, conv.bn), with order='mean_max'",
        ),
        aliases=("spatial attention", "spatial attention module", "CBAM spatial"),
    )

    def __init__(
        self,
        channels: int,
        *,
        kernel: int = 7,
        norm: bool = True,
        order: PoolOrder = "max_mean",
    ) -> None:
        super().__init__(channels)
        check_odd("kernel", kernel)
        check_choice("order", order, get_args(PoolOrder))
        self.order: PoolOrder = order
        self.conv = nn.Conv2d(2, 1, kernel, padding=kernel // 2, bias=False)
        self.norm = MapNorm(1) if norm else None
        self.tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, each place scaled by its gate."""
        gate = pooled_gate(x, self.conv.weight, order=self.order, norm=self.norm)
        return x * self.tap(gate)[:, None]


class SpatialSE(Block):
    """Scale each place by a gate that is a linear map of its own channels.

    Args:
        channels: Width of a feature.
        bias: Whether the linear map has a bias.

    Example:
        >>> import torch
        >>> SpatialSE(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Roy et al. 2018, arXiv:1803.02579, section 2.2 (sSE).
    """

    card: ClassVar = BlockInfo(
        name="sse",
        kind="spatial",
        title="Channel squeeze, spatial excitation (sSE)",
        paper="Roy et al. 2018, arXiv:1803.02579",
        equation="y = x * s(w . x)",
        parameters="C",
        deviations=("bias=True adds the bias that several ports have: C + 1",),
        aliases=("spatial SE", "spatial squeeze-and-excitation"),
    )

    def __init__(self, channels: int, *, bias: bool = False) -> None:
        super().__init__(channels)
        self.squeeze = nn.Conv2d(channels, 1, 1, bias=bias)
        self.tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, each place scaled by its gate."""
        gate = projected_gate(x, self.squeeze.weight.flatten(), self.squeeze.bias)
        return x * self.tap(gate)[:, None]
