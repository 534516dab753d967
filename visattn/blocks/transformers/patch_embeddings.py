"""Patches of a picture as tokens: one linear map of their pixels."""

from jaxtyping import Float
from torch import Tensor, nn


class PatchEmbedding(nn.Module):
    """Make a token of each patch.

    Args:
        channels: Of a picture.
        width: Of a token.
        patch: Height and width of a patch.

    Example:
        >>> import torch
        >>> PatchEmbedding(3, 8, patch=(2, 4))(torch.zeros(1, 3, 6, 8)).shape
        torch.Size([1, 8, 3, 2])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929, equation 1.
    """

    def __init__(self, channels: int, width: int, *, patch: tuple[int, int]) -> None:
        super().__init__()
        self.patch = patch
        self.proj = nn.Conv2d(channels, width, patch, patch)

    def forward(self, pictures: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the tokens on their grid."""
        return self.proj(pictures)

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the grid of tokens, for pictures of a size."""
        return size[0] // self.patch[0], size[1] // self.patch[1]
