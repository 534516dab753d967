"""Tokens of which some are left out at random, and the weights of the others in their places."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad


def random_tokens(
    images: int, tokens: int, kept: int, *, device: torch.device | None = None
) -> Int[Tensor, "{images} {kept}"]:
    """Return which tokens of each image stay, in their order; each set is as likely as another.

    Args:
        images: How many there are.
        tokens: Tokens of an image.
        kept: How many stay.
        device: Where the numbers are needed.

    Raises:
        ValueError: If none or more than all are to stay.

    Example:
        >>> random_tokens(1, 3, 3)
        tensor([[0, 1, 2]])
    """
    if not 1 <= kept <= tokens:
        raise ValueError(f"from 1 to {tokens} tokens can stay, got {kept}")
    drawn = torch.rand(images, tokens, device=device).topk(kept, dim=-1).indices
    return drawn.sort(-1).values


def weights_in_place(
    weights: Float[Tensor, "b *axes m"], kept: Int[Tensor, "b _"], *, count: int, before: int = 0
) -> Float[Tensor, "b *axes {count}"]:
    """Return weights over the tokens that stayed as weights over all; NaN where one was left out.

    Args:
        weights: Over `before` tokens that always stay, and the kept ones.
        kept: Which of the others stayed, for each image.
        count: How many tokens there are in all.
        before: How many of them always stay, and come first.

    Example:
        >>> weights_in_place(torch.tensor([[0.25, 0.75]]), torch.tensor([[1]]), count=3, before=1)
        tensor([[0.2500,    nan, 0.7500]])
    """
    always = torch.arange(before, device=kept.device).expand(kept.shape[0], -1)
    places = torch.cat((always, kept + before), 1)
    places = places.view(kept.shape[0], *(1,) * (weights.ndim - 2), -1).expand(weights.shape)
    empty = weights.new_full((*weights.shape[:-1], count), torch.nan)
    return empty.scatter(-1, places, weights)


def diagonal_shifts(
    images: Float[Tensor, "b c y x"], by: tuple[int, int]
) -> Float[Tensor, "b 5*c y x"]:
    """Return images with four moved copies behind their own channels.

    The copies lie down and to the right, down and to the left, up and to the right, up and to the
    left; what moves in over the edge is zero.

    Args:
        images: Or features.
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
    copies = (pad(images, (dx, -dx, dy, -dy)) for dy, dx in moves)
    return torch.cat((images, *copies), 1)
