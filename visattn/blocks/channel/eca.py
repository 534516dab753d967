"""Efficient channel attention (ECA)."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_odd
from visattn.blocks.tap import Tap
from visattn.functional.gates.channel import eca_gate, eca_kernel_size
from visattn.functional.pooling import channel_means


class ECA(Block):
    """Efficient channel attention: channel gate by a 1-D convolution over pooled channels (ECA).

    Args:
        channels: Number of input channels.
        kernel_size: Kernel size of the convolution over channels, odd; by the paper's formula
            if None. The authors' ResNet-50 has 3, 5, 5, 7 in its stages; the formula gives 5, 5, 5,
            7.

    Raises:
        ValueError: If the kernel size is even or below 1.

    Example:
        >>> import torch
        >>> ECA(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Wang et al. 2020, arXiv:1910.03151, equations 9 and 12.
    """

    info: ClassVar = BlockInfo(
        name="eca",
        kind="channel",
        title="Efficient channel attention (ECA)",
        paper="Wang et al. 2020, arXiv:1910.03151",
        equation="y = x * s(conv_k(mean(x))), along the channels, "
        "k = the odd one of t and t + 1, t = |log2(C) / 2 + 1 / 2| rounded down",
        parameters="k",
        deviations=(
            "the formula is applied as published: below 8 channels the kernel size is 1, in timm 3",
            "the released networks do not follow the formula; set kernel_size to theirs",
        ),
        compatible_weights=("timm EcaModule (conv)", "ECANet eca_layer (conv)"),
        aliases=("ECA-Net", "efficient channel attention"),
    )

    def __init__(self, channels: int, *, kernel_size: int | None = None) -> None:
        super().__init__(channels)
        width = eca_kernel_size(channels) if kernel_size is None else kernel_size
        check_odd("kernel_size", width)
        self.conv = nn.Conv1d(1, 1, width, padding=width // 2, bias=False)
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate."""
        gate = eca_gate(channel_means(x), self.conv.weight.flatten())
        return x * self.tap(gate)[:, :, None, None]
