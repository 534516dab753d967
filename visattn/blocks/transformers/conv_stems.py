"""Patches as tokens by a stack of small convolutions."""

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn


class ConvStem(nn.Module):
    """Make a token of each patch by convolutions that halve the picture, wider each time.

    There is one of them for each factor of two in the patch, 3 × 3 with batch normalisation and
    ReLU; the last one is width / 2 wide, each before it half as wide, and a linear map follows.

    Args:
        channels: Of a picture.
        width: Of a token.
        patch: Height and width of a patch: one power of two, at least 2.

    Raises:
        ValueError: If the patch is no such power, or the width cannot be halved so often.

    Example:
        >>> import torch
        >>> ConvStem(3, 8, patch=(4, 4))(torch.zeros(1, 3, 8, 12)).shape
        torch.Size([1, 8, 2, 3])

    Source:
        Xiao et al. 2021, arXiv:2106.14881, section 4. Deviation: widths follow from that of a
        token, where the paper chooses them by hand.
    """

    def __init__(self, channels: int, width: int, *, patch: tuple[int, int]) -> None:
        super().__init__()
        halvings = patch[0].bit_length() - 1
        if patch[0] != patch[1] or patch[0] < 2 or 2**halvings != patch[0]:
            raise ValueError(
                "a convolutional stem halves the picture several times, so that a patch must be "
                f"square with sides of 2, 4, 8, 16, ...; got {patch[0]} x {patch[1]}"
            )
        if width % 2**halvings:
            raise ValueError(
                f"the width must be a multiple of {2**halvings} for a convolutional stem with "
                f"patches of {patch[0]}, got {width}"
            )
        self.patch = patch
        widths = [channels, *(width >> step for step in range(halvings, 0, -1))]
        layers: list[nn.Module] = []
        for come, go in pairwise(widths):
            layers += [
                nn.Conv2d(come, go, 3, 2, padding=1, bias=False),
                nn.BatchNorm2d(go),
                nn.ReLU(),
            ]
        self.stack = nn.Sequential(*layers)
        self.proj = nn.Conv2d(widths[-1], width, 1)

    def forward(self, pictures: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the tokens on their grid."""
        return self.proj(self.stack(pictures))

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the grid of tokens, for pictures of a size."""
        return size[0] // self.patch[0], size[1] // self.patch[1]
