"""CBAM: a gate per channel, then a gate per place."""

from typing import ClassVar, get_args

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_choice, check_odd, hidden_width
from visattn.blocks.norm import MapNorm
from visattn.blocks.tap import Tap
from visattn.functional.gates.combined import mean_max_gate
from visattn.functional.gates.spatial import PoolOrder, pooled_gate


class CBAM(Block):
    """Scale each channel by a gate, then each place by a gate (CBAM).

    Args:
        channels: Width of a feature.
        reduction: By which the hidden layer is narrower; it keeps at least one unit.
        kernel: Side of the neighborhood that a place's gate knows, odd.
        bias: Whether the two layers of the channel gate have biases.
        spatial_norm: Whether the score of a place passes a batch normalization.
        order: Which pool the first channel of the convolution reads.

    Raises:
        ValueError: If the kernel is even or there is no such order.

    Example:
        >>> import torch
        >>> CBAM(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Woo et al. 2018, arXiv:1807.06521, equations 1 to 3.
    """

    card: ClassVar = BlockInfo(
        name="cbam",
        kind="both",
        title="Convolutional block attention module (CBAM)",
        paper="Woo et al. 2018, arXiv:1807.06521",
        equation="z = x * s(mlp(mean x) + mlp(max x)), mlp(p) = W2 relu(W1 p + b1) + b2;\n"
        "y = z * s(BN(conv_k([max_c z; mean_c z])))",
        parameters="2 C h + h + C + 2 k k + 2, with h = max(1, C // reduction)",
        deviations=(
            "as the authors' code: biases in the mlp, batch normalization in place of the "
            "convolution's bias; the paper shows neither",
            "the weight of that normalization begins at 1; in the authors' networks at 0, which is "
            "a gate of 0.5 everywhere; its momentum is 0.1, theirs 0.01",
        ),
        weights=(
            "attention-module CBAM (ChannelGate.mlp.1 and .3, SpatialGate.spatial.conv and .bn)",
            "timm CbamModule, with bias=False and order='mean_max'",
        ),
        aliases=("convolutional block attention module",),
    )

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 16,
        kernel: int = 7,
        bias: bool = True,
        spatial_norm: bool = True,
        order: PoolOrder = "max_mean",
    ) -> None:
        super().__init__(channels)
        check_odd("kernel", kernel)
        check_choice("order", order, get_args(PoolOrder))
        hidden = hidden_width(channels, reduction)
        self.order: PoolOrder = order
        self.squeeze = nn.Linear(channels, hidden, bias=bias)
        self.excite = nn.Linear(hidden, channels, bias=bias)
        self.channel_tap = Tap("channel")
        self.conv = nn.Conv2d(2, 1, kernel, padding=kernel // 2, bias=False)
        self.norm = MapNorm(1) if spatial_norm else None
        self.spatial_tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, their channels scaled, then their places."""
        channel = mean_max_gate(
            x, self.squeeze.weight, self.excite.weight, self.squeeze.bias, self.excite.bias
        )
        x = x * self.channel_tap(channel)[:, :, None, None]
        place = pooled_gate(x, self.conv.weight, order=self.order, norm=self.norm)
        return x * self.spatial_tap(place)[:, None]
