"""Swin transformer stage: patch merging, then layers of (shifted) window attention."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from visattn.blocks.transformer.layer import EncoderLayer, FeedForward, run_layers
from visattn.blocks.transformer.token_attention import TokenLayout
from visattn.blocks.transformer.window_attention import WindowAttention


class PatchMerging(nn.Module):
    """Patch merging: concatenates each 2 × 2 tokens, then layer norm and a linear projection.

    A grid with an odd side is zero-padded at the bottom or right.

    Example:
        >>> import torch
        >>> merge = PatchMerging(4, 8)
        >>> merge(torch.zeros(1, 15, 4), TokenLayout((3, 5)))[0].shape
        torch.Size([1, 6, 8])

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.1; parameter names as in timm. The four tokens
        are concatenated in column-major order.
    """

    def __init__(self, dim: int, out_dim: int, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim, norm_eps)
        self.reduction = nn.Linear(4 * dim, out_dim, bias=False)

    def forward(
        self, x: Float[Tensor, "b n c"], layout: TokenLayout
    ) -> tuple[Float[Tensor, "b m d"], TokenLayout]:
        """Return the merged tokens and their layout."""
        height, width = layout.grid
        grid = (-(-height // 2), -(-width // 2))
        cells = pad(x.reshape(-1, height, width, x.shape[2]), (0, 0, 0, width % 2, 0, height % 2))
        fours = cells.reshape(-1, grid[0], 2, grid[1], 2, x.shape[2]).permute(0, 1, 3, 4, 2, 5)
        joined = fours.flatten(3).flatten(1, 2)
        return self.reduction(self.norm(joined)), layout._replace(grid=grid)


class SwinStage(nn.Module):
    """Stage of a Swin transformer: optional patch merging, then window attention layers.

    Every second layer shifts the windows by half their size, except along an axis that one window
    covers. Windows larger than the grid are reduced to it. Both are fixed for `grid_size` and do
    not change on other grids.

    Args:
        grid_size: Height and width of the expected grid after merging.
        merge_dim: Dimension of the input tokens if they are merged first; None for no merging.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        >>> import torch
        >>> stage = SwinStage(
        ...     8, (3, 5), num_heads=2, window_size=(3, 2), drop_path_rates=(0, 0.1),
        ...     hidden_dim=16, merge_dim=4
        ... )
        >>> stage.window_size, stage.shift_size
        ((3, 2), (0, 1))
        >>> stage(torch.zeros(1, 54, 4), TokenLayout((6, 9)))[0].shape
        torch.Size([1, 15, 8])

    Source:
        Liu et al. 2021, arXiv:2103.14030, sections 3.1 and 3.2; parameter names as in timm.
    """

    def __init__(
        self,
        dim: int,
        grid_size: tuple[int, int],
        *,
        num_heads: int,
        window_size: tuple[int, int],
        drop_path_rates: Sequence[float],
        hidden_dim: int,
        merge_dim: int | None = None,
        qkv_bias: bool = True,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.window_size, self.shift_size = fit_window(grid_size, window_size)
        self.downsample = (
            None if merge_dim is None else PatchMerging(merge_dim, dim, norm_eps=norm_eps)
        )
        self.blocks = nn.ModuleList()
        for number, path in enumerate(drop_path_rates):
            shift = self.shift_size if number % 2 else (0, 0)
            attend = WindowAttention(
                dim,
                num_heads=num_heads,
                window_size=self.window_size,
                shift_size=shift,
                qkv_bias=qkv_bias,
            )
            forward = FeedForward(dim, hidden_dim)
            layer = EncoderLayer(dim, attend, forward, drop_path=path, norm_eps=norm_eps)
            self.blocks.append(layer)

    def forward(
        self, x: Float[Tensor, "b n c"], layout: TokenLayout, *, grad_checkpointing: bool = False
    ) -> tuple[Float[Tensor, "b m d"], TokenLayout]:
        """Return the tokens and their layout; `grad_checkpointing` as in `run_layers`."""
        if self.downsample is not None:
            x, layout = self.downsample(x, layout)
        return run_layers(self.blocks, x, layout, grad_checkpointing=grad_checkpointing), layout


def fit_window(
    grid_size: tuple[int, int], window_size: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return a window no larger than the grid, and the shift of shifted windows.

    Example:
        >>> fit_window((3, 15), (7, 7))
        ((3, 7), (0, 3))
    """
    down = min(window_size[0], grid_size[0])
    right = min(window_size[1], grid_size[1])
    return (down, right), (down // 2 * (grid_size[0] > down), right // 2 * (grid_size[1] > right))
