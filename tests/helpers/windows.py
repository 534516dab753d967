"""The windows of Swin Transformers, computed plainly."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def swin_windows(grid: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]) -> Tensor:
    """Return the positions of a grid by window: rolled, padded with -1 at the end, and cut."""
    cells = torch.arange(grid[0] * grid[1]).view(grid).roll((-shift[0], -shift[1]), (0, 1))
    down, right = (-side % length for side, length in zip(grid, window, strict=True))
    cells = pad(cells, (0, right, 0, down), value=-1)
    windows = cells.unflatten(1, (-1, window[1])).unflatten(0, (-1, window[0])).transpose(1, 2)
    return windows.flatten(2).flatten(0, 1)
