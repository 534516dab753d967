"""Style-based recalibration module (SRM)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import channel_means, channel_stds


def style_pool(x: Float[Tensor, "b c y x"], *, eps: float = 1e-5) -> Float[Tensor, "b c 2"]:
    """Return the style pooling of SRM: mean and standard deviation of each channel.

    Example:
        >>> import torch
        >>> style_pool(torch.tensor([[[[1.0, 3.0]]]]))
        tensor([[[2.0000, 1.0000]]])

    Source:
        Lee et al. 2019, arXiv:1903.10829, equations 1 to 3.
    """
    deviations = channel_stds(x, eps=eps).to(x.dtype)
    return torch.stack((channel_means(x), deviations), dim=2)


def style_scores(
    styles: Float[Tensor, "b c s"], weight: Float[Tensor, "c s"]
) -> Float[Tensor, "b c"]:
    """Return the style integration of SRM, to be followed by batch norm and a sigmoid.

    Example:
        >>> import torch
        >>> style_scores(torch.tensor([[[2.0, 1.0]]]), torch.tensor([[0.5, -1.0]]))
        tensor([[0.]])

    Source:
        Lee et al. 2019, arXiv:1903.10829, equation 4.
    """
    return (styles * weight).sum(2)


class SRM(Block):
    """Style-based recalibration: channel gate from the mean and standard deviation of each channel.

    Args:
        channels: Number of input channels.

    Raises:
        ValueError: In training mode, if the batch is a single image.

    Example:
        >>> import torch
        >>> SRM(64)(torch.zeros(2, 64, 5, 7)).shape
        torch.Size([2, 64, 5, 7])

    Source:
        Lee et al. 2019, arXiv:1903.10829, equations 1 to 6.
    """

    info: ClassVar = BlockInfo(
        name="srm",
        kind="channel",
        title="Style-based recalibration module (SRM)",
        paper="Lee et al. 2019, arXiv:1903.10829",
        equation="y = x * s(BN(w1 mean(x) + w2 std(x))), w1 and w2 per channel",
        parameters="4 C",
        deviations=(
            "std is the biased estimate, sqrt(variance + 1e-5); the released code uses the "
            "unbiased one, which is undefined for a single position",
            "w is initialized at random; in the released code with 0, a gate of 0.5",
            "it cannot be trained with a batch of one image, which has no variance",
        ),
    )

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.weight = nn.Parameter(torch.empty(channels, 2))
        nn.init.uniform_(self.weight, -(2**-0.5), 2**-0.5)  # default of nn.Linear for two inputs
        self.norm = nn.BatchNorm1d(channels)
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate."""
        scores = style_scores(style_pool(x), self.weight)
        gate = self.norm(scores).sigmoid().to(x.dtype)
        return x * self.tap(gate)[:, :, None, None]
