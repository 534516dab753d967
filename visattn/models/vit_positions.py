"""Positions of a Vision Transformer, for the grid at hand and the tokens before it."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.grid_positions import Rule, resampled_positions
from visattn.functional.rotations import grid_rotations


def learned_places(
    learned: Float[Tensor, "1 n c"],
    native: tuple[int, int],
    grid: tuple[int, int],
    *,
    rule: Rule,
) -> tuple[Float[Tensor, "1 p c"], Float[Tensor, "1 m c"]]:
    """Return what is added to the tokens before the grid, and to those of its cells.

    Args:
        learned: Positions of the tokens before the grid, if they have any, and of the cells.
        native: Height and width of the grid that they were learnt on.
        grid: Of that which they are wanted for.
        rule: How to resample them.

    Example:
        >>> always, cells = learned_places(torch.ones(1, 5, 3), (2, 2), (2, 3), rule="timm")
        >>> always.shape, cells.shape
        (torch.Size([1, 1, 3]), torch.Size([1, 6, 3]))
    """
    before = learned.shape[1] - native[0] * native[1]
    always, cells = learned[:, :before], learned[:, before:]
    # An exported graph is for all sizes, and so must not ask whether this is the native one.
    exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    if exporting() or grid != native:
        cells = resampled_positions(cells[0], native, grid, rule=rule).unsqueeze(0)
    return always, cells


def token_rotations(
    grid: tuple[int, int], width: int, *, before: int, device: torch.device | None = None
) -> tuple[Float[Tensor, "1 1 n d"], Float[Tensor, "1 1 n d"]]:
    """Return cosines and sines by which tokens are turned; those before the grid stay as they are.

    Args:
        grid: Height and width of the grid.
        width: Of a head.
        before: Tokens before the grid.
        device: Where the numbers are needed.

    Raises:
        ValueError: If four does not divide the width of a head.

    Example:
        >>> cosines, sines = token_rotations((1, 2), 4, before=1)
        >>> cosines[0, 0, 0], sines[0, 0, :, 1]
        (tensor([1., 1.]), tensor([0.0000, 0.0000, 0.8415]))
    """
    cosines, sines = grid_rotations(grid, width, device=device)
    still = (before, width // 2)
    cosines = torch.cat((cosines.new_ones(still), cosines))
    return cosines[None, None], torch.cat((sines.new_zeros(still), sines))[None, None]


def whole_size(height: int, width: int, *, patch: tuple[int, int], pad: bool) -> tuple[int, int]:
    """Return the size of pictures in whole patches.

    Args:
        height: Of the pictures.
        width: Of the pictures.
        patch: Height and width of a patch.
        pad: Whether pictures may be filled up.

    Raises:
        ValueError: If patches do not fill the pictures, and these may not be filled up.

    Example:
        >>> whole_size(30, 32, patch=(16, 16), pad=True)
        (32, 32)
    """
    down, across = patch
    if pad:
        return -(-height // down) * down, -(-width // across) * across
    if height % down or width % across:
        raise ValueError(
            f"patches of {down} x {across} do not fill pictures of {height} x {width}; say "
            "pad=True to have these filled up, or bring them to a multiple"
        )
    return height, width
