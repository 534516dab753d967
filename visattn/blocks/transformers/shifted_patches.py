"""Patches as tokens that also see half of their neighbours."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pixel_unshuffle

from visattn.functional.diagonals import diagonal_shifts


class ShiftedPatchEmbedding(nn.Module):
    """Make a token of each patch of the picture and of four copies, moved by half a patch.

    Args:
        channels: Of a picture.
        width: Of a token.
        patch: Height and width of a patch; the same.

    Raises:
        ValueError: If a patch is not square.

    Example:
        >>> import torch
        >>> ShiftedPatchEmbedding(3, 8, patch=(4, 4))(torch.zeros(1, 3, 8, 12)).shape
        torch.Size([1, 8, 2, 3])

    Source:
        Lee et al. 2021, arXiv:2112.13492, section 3.1, and the authors' code: along the diagonals,
        by half a patch, with a norm before the linear map. Pixels stand channel by channel.
    """

    def __init__(self, channels: int, width: int, *, patch: tuple[int, int]) -> None:
        super().__init__()
        if patch[0] != patch[1]:
            raise ValueError(
                f"shifted patches must be square, got {patch[0]} x {patch[1]}; stem='patch' takes "
                "patches of any shape"
            )
        self.patch = patch
        inner = 5 * channels * patch[0] ** 2
        self.norm = nn.LayerNorm(inner)
        self.proj = nn.Linear(inner, width)

    def forward(self, pictures: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the tokens on their grid."""
        copies = diagonal_shifts(pictures, (self.patch[0] // 2, self.patch[1] // 2))
        pixels = pixel_unshuffle(copies, self.patch[0]).permute(0, 2, 3, 1)
        return self.proj(self.norm(pixels)).permute(0, 3, 1, 2)

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the grid of tokens, for pictures of a size."""
        return size[0] // self.patch[0], size[1] // self.patch[1]
