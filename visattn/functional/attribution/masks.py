"""Parts of an image to be hidden, to see what a score makes of the rest."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import interpolate


def occlusion_windows(
    size: tuple[int, int], *, window: tuple[int, int], stride: tuple[int, int]
) -> Int[Tensor, "m 4"]:
    """Return windows that slide over an image: left, top, right and bottom, row by row.

    They begin at the top left corner and go on until all is covered; the last ones are cut off at
    the border.

    Args:
        size: Height and width of the image.
        window: Height and width of a window.
        stride: By how much it moves down and to the right.

    Raises:
        ValueError: If windows are empty or leave gaps.

    Example:
        >>> occlusion_windows((2, 5), window=(2, 2), stride=(1, 2)).tolist()
        [[0, 0, 2, 2], [2, 0, 4, 2], [4, 0, 5, 2]]
    """
    fits = all(1 <= step <= side for step, side in zip(stride, window, strict=True))
    if not fits or min(size) < 1:
        raise ValueError(
            "the stride must be at least 1 and at most the window, so that all is covered; got "
            f"stride {stride}, window {window}, image {size}"
        )
    tops, lefts = (
        torch.arange(-(-max(length - side, 0) // step) + 1) * step
        for length, side, step in zip(size, window, stride, strict=True)
    )
    top, left = (corner.flatten() for corner in torch.meshgrid(tops, lefts, indexing="ij"))
    bottom, right = (top + window[0]).clamp(max=size[0]), (left + window[1]).clamp(max=size[1])
    return torch.stack((left, top, right, bottom), 1)


def window_masks(windows: Int[Tensor, "m 4"], size: tuple[int, int]) -> Bool[Tensor, "m y x"]:
    """Return masks that are True inside the windows.

    Args:
        windows: Left, top, right and bottom in pixels.
        size: Height and width of the image.

    Example:
        >>> window_masks(torch.tensor([[1, 0, 3, 1]]), (1, 4))
        tensor([[[False,  True,  True, False]]])
    """
    left, top, right, bottom = windows[:, :, None].unbind(1)
    down = torch.arange(size[0], device=windows.device)
    across = torch.arange(size[1], device=windows.device)
    rows, columns = (down >= top) & (down < bottom), (across >= left) & (across < right)
    return rows[:, :, None] & columns[:, None, :]


def random_grids(
    count: int, *, cells: int, kept: float, seed: int
) -> tuple[Float[Tensor, "m cells cells"], Float[Tensor, "m 2"]]:
    """Return coarse grids of ones and zeros, and by which part of a cell each is to be moved.

    The first grids of many are those of few.

    Args:
        count: Of grids.
        cells: Along a side of each.
        kept: How likely a cell is 1.
        seed: Of all that is drawn.

    Raises:
        ValueError: If there are no grids or cells, or kept is not between 0 and 1.

    Example:
        >>> grids, shifts = random_grids(1000, cells=7, kept=0.25, seed=0)
        >>> grids.shape, 0.24 < float(grids.mean()) < 0.26, shifts.shape
        (torch.Size([1000, 7, 7]), True, torch.Size([1000, 2]))
    """
    if count < 1 or cells < 1 or not 0 < kept < 1:
        raise ValueError(
            f"grids and cells must be at least 1 and kept between 0 and 1, got {count=}, {cells=}, "
            f"{kept=}"
        )
    drawn = torch.Generator().manual_seed(seed)
    numbers = torch.rand(count, cells * cells + 2, generator=drawn)
    grids = (numbers[:, :-2] < kept).float().view(count, cells, cells)
    return grids, numbers[:, -2:]


def soft_masks(
    grids: Float[Tensor, "m cells cells"], shifts: Float[Tensor, "m 2"], size: tuple[int, int]
) -> Float[Tensor, "m y x"]:
    """Return coarse grids, enlarged smoothly beyond an image and cut to it, each moved.

    Args:
        grids: Ones and zeros.
        shifts: Down and to the right, as parts of a cell, in [0, 1).
        size: Height and width of the image.

    Example:
        >>> grid, still = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]), torch.zeros(1, 2)
        >>> soft_masks(grid, still, (2, 4))[0, 0].round(decimals=2)
        tensor([0.0000, 0.0000, 0.3300, 0.6700])

    Source:
        Petsiuk et al. 2018, arXiv:1806.07421, section 3.2.
    """
    cells = grids.shape[1]
    cell = [-(-length // cells) for length in size]
    whole = [(cells + 1) * side for side in cell]
    large = interpolate(grids[:, None], whole, mode="bilinear", align_corners=False)[:, 0]
    moved = (shifts * shifts.new_tensor(cell)).long()
    rows = moved[:, :1] + torch.arange(size[0], device=grids.device)
    columns = moved[:, 1:] + torch.arange(size[1], device=grids.device)
    return large[
        torch.arange(len(grids), device=grids.device)[:, None, None],
        rows[:, :, None],
        columns[:, None],
    ]
