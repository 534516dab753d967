"""Efficient channel attention (ECA)."""

import math
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv1d

from visattn.blocks.base import Block, BlockInfo, check_odd
from visattn.blocks.tap import Tap
from visattn.functional.numerics import channel_means


def eca_kernel_size(channels: int) -> int:
    """Return the odd kernel size of ECA for a number of channels.

    Raises:
        ValueError: If channels are below 1.

    Example:
        >>> [eca_kernel_size(channels) for channels in (64, 256, 2048)]
        [3, 5, 7]

    Source:
        Wang et al. 2020, arXiv:1910.03151, equation 12, with gamma = 2 and b = 1.
    """
    if channels < 1:
        raise ValueError(f"channels must be at least 1, got {channels}")
    kernel = int(abs(math.log2(channels) / 2 + 1 / 2))
    return kernel if kernel % 2 else kernel + 1


def eca_gate(pooled: Float[Tensor, "b c"], weight: Float[Tensor, " k"]) -> Float[Tensor, "b c"]:
    """Return the ECA gate of each channel, in (0, 1): a 1D convolution over channels.

    Channels are zero-padded; the kernel size is odd.

    Example:
        >>> import torch
        >>> eca_gate(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0.0, 0.0, 1.0]))
        tensor([[0.5000, 0.5000, 0.5000]])

    Source:
        Wang et al. 2020, arXiv:1910.03151, equation 9.
    """
    mixed = conv1d(pooled.unsqueeze(1), weight[None, None], padding=len(weight) // 2)
    return mixed.squeeze(1).sigmoid()


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
