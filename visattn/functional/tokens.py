"""Patch dropout bookkeeping and diagonally shifted images (shifted patch tokenization)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad


def random_token_indices(
    num_images: int, num_tokens: int, num_kept: int, *, device: torch.device | None = None
) -> Int[Tensor, "{num_images} {num_kept}"]:
    """Return sorted indices of a uniformly random subset of the tokens of each image.

    Args:
        num_images: Number of images.
        num_tokens: Tokens per image.
        num_kept: Tokens that are kept.
        device: Device of the result.

    Raises:
        ValueError: If `num_kept` is not between 1 and `num_tokens`.

    Example:
        >>> random_token_indices(1, 3, 3)
        tensor([[0, 1, 2]])
    """
    if not 1 <= num_kept <= num_tokens:
        raise ValueError(f"num_kept must be from 1 to {num_tokens}, got {num_kept}")
    indices = torch.rand(num_images, num_tokens, device=device).topk(num_kept, dim=-1).indices
    return indices.sort(-1).values


def scatter_kept_weights(
    weights: Float[Tensor, "b *axes m"],
    kept_indices: Int[Tensor, "b _"],
    *,
    num_tokens: int,
    num_prefix_tokens: int = 0,
) -> Float[Tensor, "b *axes {num_tokens}"]:
    """Return weights over kept tokens as weights over all tokens; NaN for dropped tokens.

    Args:
        weights: Weights over the prefix tokens and the kept tokens.
        kept_indices: Indices of the kept tokens of each image, not counting prefix tokens.
        num_tokens: Number of tokens in total.
        num_prefix_tokens: Leading tokens that are never dropped.

    Example:
        >>> scatter_kept_weights(torch.tensor([[0.25, 0.75]]), torch.tensor([[1]]), num_tokens=3,
        ...     num_prefix_tokens=1)
        tensor([[0.2500,    nan, 0.7500]])
    """
    always = torch.arange(num_prefix_tokens, device=kept_indices.device).expand(
        kept_indices.shape[0], -1
    )
    places = torch.cat((always, kept_indices + num_prefix_tokens), 1)
    places = places.view(kept_indices.shape[0], *(1,) * (weights.ndim - 2), -1).expand(
        weights.shape
    )
    empty = weights.new_full((*weights.shape[:-1], num_tokens), torch.nan)
    return empty.scatter(-1, places, weights)


def diagonal_shifts(
    images: Float[Tensor, "b c y x"], offset: tuple[int, int]
) -> Float[Tensor, "b 5*c y x"]:
    """Return images with four diagonally shifted copies as additional channels.

    The copies are shifted down-right, down-left, up-right and up-left, with zero padding.

    Args:
        images: Images or features.
        offset: Vertical and horizontal shift in pixels.

    Example:
        >>> dot = torch.zeros(1, 1, 3, 3)
        >>> dot[..., 1, 1] = 1
        >>> diagonal_shifts(dot, (1, 1))[0].nonzero()
        tensor([[0, 1, 1], [1, 2, 2], [2, 2, 0], [3, 0, 2], [4, 0, 0]])

    Source:
        Lee et al. 2021, arXiv:2112.13492, equation 6, and the authors' code: all four diagonals, by
        half a patch.
    """
    down, right = offset
    moves = ((down, right), (down, -right), (-down, right), (-down, -right))
    copies = (pad(images, (dx, -dx, dy, -dy)) for dy, dx in moves)
    return torch.cat((images, *copies), 1)
