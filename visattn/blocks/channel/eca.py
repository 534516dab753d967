"""Efficient channel attention."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_odd
from visattn.blocks.tap import Tap
from visattn.functional.gates.channel import efficient_gate, efficient_kernel
from visattn.functional.pooling import channel_means


class ECA(Block):
    """Scale each channel by a gate that knows the means of the channels beside it (ECA).

    Args:
        channels: Width of a feature.
        kernel: Over how many channels a gate looks, odd; by the paper's formula from the width if
            None. The authors' ResNet-50 has 3, 5, 5, 7 in its stages, where the formula gives
            5, 5, 5, 7.

    Raises:
        ValueError: If the kernel is even or below 1.

    Example:
        >>> import torch
        >>> ECA(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Wang et al. 2020, arXiv:1910.03151, equations 9 and 12.
    """

    card: ClassVar = BlockInfo(
        name="eca",
        kind="channel",
        title="Efficient channel attention (ECA)",
        paper="Wang et al. 2020, arXiv:1910.03151",
        equation="y = x * s(conv_k(mean(x))), along the channels, "
        "k = the odd one of t and t + 1, t = |log2(C) / 2 + 1 / 2| rounded down",
        parameters="k",
        deviations=(
            "the formula as it stands: timm's kernel is at least 3, ours is 1 below 8 channels",
            "the released networks do not follow the formula; kernel= sets theirs",
        ),
        weights=("timm EcaModule (conv)", "ECANet eca_layer (conv)"),
        aliases=("ECA-Net", "efficient channel attention"),
    )

    def __init__(self, channels: int, *, kernel: int | None = None) -> None:
        super().__init__(channels)
        width = efficient_kernel(channels) if kernel is None else kernel
        check_odd("kernel", width)
        self.conv = nn.Conv1d(1, 1, width, padding=width // 2, bias=False)
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, each channel scaled by its gate."""
        gate = efficient_gate(channel_means(x), self.conv.weight.flatten())
        return x * self.tap(gate)[:, :, None, None]
