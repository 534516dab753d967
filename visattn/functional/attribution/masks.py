"""Masks of perturbation methods: sliding occlusion windows and random RISE masks."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import interpolate


def occlusion_windows(
    image_size: tuple[int, int], *, window_size: tuple[int, int], stride: tuple[int, int]
) -> Int[Tensor, "m 4"]:
    """Return sliding windows over an image as boxes, row by row.

    They start at the top left corner and cover the image; the last ones are clipped at the border.

    Args:
        image_size: Height and width of the image.
        window_size: Height and width of a window.
        stride: Vertical and horizontal stride.

    Returns:
        Left, top, right and bottom of each window, in pixels.

    Raises:
        ValueError: If windows are empty or leave gaps.

    Example:
        >>> occlusion_windows((2, 5), window_size=(2, 2), stride=(1, 2)).tolist()
        [[0, 0, 2, 2], [2, 0, 4, 2], [4, 0, 5, 2]]
    """
    fits = all(1 <= step <= side for step, side in zip(stride, window_size, strict=True))
    if not fits or min(image_size) < 1:
        raise ValueError(
            "the stride must be at least 1 and at most the window, to cover the image; got "
            f"stride {stride}, window {window_size}, image {image_size}"
        )
    tops, lefts = (
        torch.arange(-(-max(length - side, 0) // step) + 1) * step
        for length, side, step in zip(image_size, window_size, stride, strict=True)
    )
    top, left = (corner.flatten() for corner in torch.meshgrid(tops, lefts, indexing="ij"))
    bottom, right = (
        (top + window_size[0]).clamp(max=image_size[0]),
        (left + window_size[1]).clamp(max=image_size[1]),
    )
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


def rise_grids(
    num_masks: int, *, num_cells: int, keep_probability: float, seed: int
) -> tuple[Float[Tensor, "m cells cells"], Float[Tensor, "m 2"]]:
    """Return random binary grids and offsets for RISE masks.

    A larger number of grids begins with the same grids.

    Args:
        num_masks: Number of grids.
        num_cells: Cells along a side of a grid.
        keep_probability: Probability that a cell is 1.
        seed: Random seed.

    Returns:
        Grids, and offsets in [0, 1) as fractions of a cell.

    Raises:
        ValueError: If there are no grids or cells, or the probability is not between 0 and 1.

    Example:
        >>> grids, shifts = rise_grids(1000, num_cells=7, keep_probability=0.25, seed=0)
        >>> grids.shape, 0.24 < float(grids.mean()) < 0.26, shifts.shape
        (torch.Size([1000, 7, 7]), True, torch.Size([1000, 2]))
    """
    if num_masks < 1 or num_cells < 1 or not 0 < keep_probability < 1:
        raise ValueError(
            "num_masks and num_cells must be at least 1 and keep_probability between 0 and 1, "
            f"got {num_masks=}, {num_cells=}, {keep_probability=}"
        )
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(num_masks, num_cells * num_cells + 2, generator=generator)
    grids = (numbers[:, :-2] < keep_probability).float().view(num_masks, num_cells, num_cells)
    return grids, numbers[:, -2:]


def rise_masks(
    grids: Float[Tensor, "m cells cells"], shifts: Float[Tensor, "m 2"], size: tuple[int, int]
) -> Float[Tensor, "m y x"]:
    """Return RISE masks: binary grids, upsampled bilinearly, shifted and cropped to the image.

    Args:
        grids: Binary grids.
        shifts: Shifts down and to the right as fractions of a cell, in [0, 1).
        size: Height and width of the image.

    Example:
        >>> grid, shift = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]), torch.zeros(1, 2)
        >>> rise_masks(grid, shift, (2, 4))[0, 0].round(decimals=2)
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
