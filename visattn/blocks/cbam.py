"""Convolutional block attention module (CBAM)."""

from typing import ClassVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from visattn.blocks.base import (
    Block,
    BlockInfo,
    check_choice,
    check_odd,
    reduced_channels,
)
from visattn.blocks.tap import Tap
from visattn.functional.gates import PoolOrder, cbam_spatial_gate
from visattn.functional.numerics import channel_means, fast_amax


def cbam_channel_gate(
    x: Float[Tensor, "b c y x"],
    squeeze: Float[Tensor, "r c"],
    excite: Float[Tensor, "c r"],
    squeeze_bias: Float[Tensor, " r"] | None = None,
    excite_bias: Float[Tensor, " c"] | None = None,
) -> Float[Tensor, "b c"]:
    """Return the channel gate of CBAM, in (0, 1), from mean and max pooling.

    Both pass the same bottleneck MLP; their logits are added.

    Example:
        >>> cbam_channel_gate(torch.ones(1, 3, 2, 2), torch.ones(2, 3), torch.zeros(3, 2))
        tensor([[0.5000, 0.5000, 0.5000]])

    Source:
        Woo et al. 2018, arXiv:1807.06521, equation 2.
    """
    pools = torch.stack((channel_means(x), fast_amax(x.flatten(2), 2)), 1)
    hidden = linear(pools, squeeze, squeeze_bias).relu()
    return linear(hidden, excite, excite_bias).sum(1).sigmoid()


class CBAM(Block):
    """Convolutional block attention module: a channel gate, then a spatial gate (CBAM).

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layer, which keeps at least one channel.
        kernel_size: Kernel size of the spatial gate, odd.
        bias: Whether the two linear layers of the channel gate have biases.
        spatial_norm: Whether the spatial score is batch-normalized.
        pool_order: Order of the pooled maps in the input of the convolution.

    Raises:
        ValueError: If the kernel size is even or the pooling order is unknown.

    Example:
        >>> import torch
        >>> CBAM(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Woo et al. 2018, arXiv:1807.06521, equations 1 to 3.
    """

    info: ClassVar = BlockInfo(
        name="cbam",
        kind="combined",
        title="Convolutional block attention module (CBAM)",
        paper="Woo et al. 2018, arXiv:1807.06521",
        equation="z = x * s(mlp(mean x) + mlp(max x)), mlp(p) = W2 relu(W1 p + b1) + b2;\n"
        "y = z * s(BN(conv_k([max_c z; mean_c z])))",
        parameters="2 C h + h + C + 2 k k + 2, with h = max(1, C // reduction)",
        deviations=(
            "as in the authors' code, the mlp has biases and batch normalization replaces the "
            "bias of the convolution; the paper shows neither",
            "the weight of that normalization is initialized with 1; in the authors' networks with "
            "0, a gate of 0.5 everywhere; its momentum is 0.1, theirs 0.01",
        ),
    )

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 16,
        kernel_size: int = 7,
        bias: bool = True,
        spatial_norm: bool = True,
        pool_order: PoolOrder = "max_mean",
    ) -> None:
        super().__init__(channels)
        check_odd("kernel_size", kernel_size)
        check_choice("pool_order", pool_order, get_args(PoolOrder))
        hidden = reduced_channels(channels, reduction)
        self.pool_order: PoolOrder = pool_order
        self.squeeze = nn.Linear(channels, hidden, bias=bias)
        self.excite = nn.Linear(hidden, channels, bias=bias)
        self.channel_tap = Tap("channel")
        self.conv = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = nn.BatchNorm2d(1) if spatial_norm else None
        self.spatial_tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate, then by the spatial gate."""
        channel = cbam_channel_gate(
            x, self.squeeze.weight, self.excite.weight, self.squeeze.bias, self.excite.bias
        )
        x = x * self.channel_tap(channel)[:, :, None, None]
        spatial = cbam_spatial_gate(x, self.conv.weight, order=self.pool_order, norm=self.norm)
        return x * self.spatial_tap(spatial)[:, None]
