"""Pictures beside copies of themselves that are moved along the diagonals."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad


def diagonal_shifts(
    pictures: Float[Tensor, "b c y x"], by: tuple[int, int]
) -> Float[Tensor, "b 5*c y x"]:
    """Return pictures with four moved copies behind their own channels.

    The copies lie down and to the right, down and to the left, up and to the right, up and to the
    left; what moves in over the edge is zero.

    Args:
        pictures: Or features.
        by: How many pixels up or down, and how many sideways.

    Example:
        >>> dot = torch.zeros(1, 1, 3, 3)
        >>> dot[..., 1, 1] = 1
        >>> diagonal_shifts(dot, (1, 1))[0].nonzero()
        tensor([[0, 1, 1], [1, 2, 2], [2, 2, 0], [3, 0, 2], [4, 0, 0]])

    Source:
        Lee et al. 2021, arXiv:2112.13492, equation 6, and the authors' code: all four diagonals, by
        half a patch.
    """
    down, right = by
    moves = ((down, right), (down, -right), (-down, right), (-down, -right))
    copies = (pad(pictures, (dx, -dx, dy, -dy)) for dy, dx in moves)
    return torch.cat((pictures, *copies), 1)
