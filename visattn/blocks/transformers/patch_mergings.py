"""Four tokens made one, between the stages of a hierarchy."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from visattn.blocks.transformers.token_layouts import TokenLayout


class PatchMerging(nn.Module):
    """Join each 2 × 2 tokens, norm them, and map them to one.

    A grid with an odd side is filled up with zeros, below or on the right.

    Args:
        width: Of a token that comes.
        merged: Of a token that goes.
        epsilon: Added to variances in the norm.

    Example:
        >>> import torch
        >>> merge = PatchMerging(4, 8)
        >>> merge(torch.zeros(1, 15, 4), TokenLayout((3, 5)))[0].shape
        torch.Size([1, 6, 8])

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.1; named as in timm. The four stand column by
        column.
    """

    def __init__(self, width: int, merged: int, *, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width, epsilon)
        self.reduction = nn.Linear(4 * width, merged, bias=False)

    def forward(
        self, x: Float[Tensor, "b n c"], layout: TokenLayout
    ) -> tuple[Float[Tensor, "b m d"], TokenLayout]:
        """Return the tokens of the coarser grid, and how they lie."""
        height, width = layout.grid
        grid = (-(-height // 2), -(-width // 2))
        cells = pad(x.reshape(-1, height, width, x.shape[2]), (0, 0, 0, width % 2, 0, height % 2))
        fours = cells.reshape(-1, grid[0], 2, grid[1], 2, x.shape[2]).permute(0, 1, 3, 4, 2, 5)
        joined = fours.flatten(3).flatten(1, 2)
        return self.reduction(self.norm(joined)), layout._replace(grid=grid)
