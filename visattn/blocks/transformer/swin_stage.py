"""Four tokens made one, between the stages of a hierarchy."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from visattn.blocks.transformer.layer import EncoderLayer, through_layers
from visattn.blocks.transformer.mlp import FeedForward
from visattn.blocks.transformer.token_layout import TokenLayout
from visattn.blocks.transformer.window_attention import WindowAttention


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


class WindowStage(nn.Module):
    """Merge tokens, if they are to be, then let them attend within windows.

    In every second layer the windows are moved by half of their size, but not along an axis that
    one of them covers. Windows larger than the grid are cut down to it. Both are decided once, for
    the grid that the stage is made for, and stay as they are on others.

    Args:
        width: Of a token.
        grid: Height and width of the grid that it is made for, after merging.
        heads: Of each layer; they divide the width.
        window: Height and width of a window.
        paths: For each layer, how likely its branches are left out in training.
        hidden: Width of the hidden layer of a feed-forward layer.
        merges: Width of the tokens that come, if they are merged; None if not.
        bias: Whether queries, keys and values have a bias.
        epsilon: Added to variances in the norms.

    Raises:
        ValueError: If an option does not fit.

    Example:
        >>> import torch
        >>> stage = WindowStage(
        ...     8, (3, 5), heads=2, window=(3, 2), paths=(0, 0.1), hidden=16, merges=4
        ... )
        >>> stage.window, stage.shift
        ((3, 2), (0, 1))
        >>> stage(torch.zeros(1, 54, 4), TokenLayout((6, 9)))[0].shape
        torch.Size([1, 15, 8])

    Source:
        Liu et al. 2021, arXiv:2103.14030, sections 3.1 and 3.2; named as in timm.
    """

    def __init__(
        self,
        width: int,
        grid: tuple[int, int],
        *,
        heads: int,
        window: tuple[int, int],
        paths: Sequence[float],
        hidden: int,
        merges: int | None = None,
        bias: bool = True,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.window, self.shift = fitted_window(grid, window)
        self.downsample = None if merges is None else PatchMerging(merges, width, epsilon=epsilon)
        self.blocks = nn.ModuleList()
        for number, path in enumerate(paths):
            shift = self.shift if number % 2 else (0, 0)
            attend = WindowAttention(width, heads=heads, window=self.window, shift=shift, bias=bias)
            forward = FeedForward(width, hidden)
            layer = EncoderLayer(width, attend, forward, drop_path=path, epsilon=epsilon)
            self.blocks.append(layer)

    def forward(
        self, x: Float[Tensor, "b n c"], layout: TokenLayout, *, again: bool = False
    ) -> tuple[Float[Tensor, "b m d"], TokenLayout]:
        """Return the tokens and how they lie now; `again` as in `through_layers`."""
        if self.downsample is not None:
            x, layout = self.downsample(x, layout)
        return through_layers(self.blocks, x, layout, again=again), layout


def fitted_window(
    grid: tuple[int, int], window: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return a window that is no larger than a grid, and by how much it is moved where it can be.

    Args:
        grid: Height and width of the grid.
        window: Height and width of a window.

    Example:
        >>> fitted_window((3, 15), (7, 7))
        ((3, 7), (0, 3))
    """
    down, right = min(window[0], grid[0]), min(window[1], grid[1])
    return (down, right), (down // 2 * (grid[0] > down), right // 2 * (grid[1] > right))
