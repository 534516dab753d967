"""Attention of CNN blocks: criss-cross attention, double attention and channel affinity."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.numerics import at_least_float32, without_autocast


def criss_cross_attention(
    queries: Float[Tensor, "b d y x"],
    keys: Float[Tensor, "b d y x"],
    values: Float[Tensor, "b e y x"],
    *,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "b e y x"], Float[Tensor, "b y*x y*x"] | None]:
    """Return criss-cross attention: each position attends to its row and its column.

    One softmax runs over row and column; the position itself counts once, with its row. Products
    are not scaled and computed in float32 at least. For n = y x positions this takes
    n (y + x) (d + e) multiplications and n (y + x) weights.

    Args:
        queries: Query of each position.
        keys: Key of each position.
        values: Value of each position.
        need_weights: Whether to return dense weights over all pairs of positions, n² numbers that
            are zero off the cross. The values are the same either way.

    Example:
        >>> flat = torch.zeros(1, 1, 2, 3)
        >>> criss_cross_attention(flat, flat, flat, need_weights=True)[1][0, 0]
        tensor([0.2500, 0.2500, 0.2500, 0.2500, 0.0000, 0.0000])

    Source:
        Huang et al. 2019, arXiv:1811.11721, equations 1 and 2.
    """
    height = queries.shape[2]
    float_values = at_least_float32(values)
    with without_autocast(values.device):
        down, across = _cross_scores(at_least_float32(queries), at_least_float32(keys))
        weights = torch.cat((down, across), -1).softmax(-1)
        down, across = weights[..., :height], weights[..., height:]
        output = torch.einsum("byxu,beux->beyx", down, float_values)
        output = output + torch.einsum("byxw,beyw->beyx", across, float_values)
        dense = _dense_weights(down, across).to(values.dtype) if need_weights else None
    return output.to(values.dtype), dense


def _cross_scores(
    queries: Float[Tensor, "b d y x"], keys: Float[Tensor, "b d y x"]
) -> tuple[Float[Tensor, "b y x y"], Float[Tensor, "b y x x"]]:
    """Return scores for the keys of the column, without the position itself, and of the row."""
    down = torch.einsum("bdyx,bdux->byxu", queries, keys)
    across = torch.einsum("bdyx,bdyw->byxw", queries, keys)
    diagonal = torch.eye(queries.shape[2], dtype=torch.bool, device=queries.device)
    return down.masked_fill(diagonal[:, None, :], -torch.inf), across


def _dense_weights(
    down: Float[Tensor, "b y x y"], across: Float[Tensor, "b y x x"]
) -> Float[Tensor, "b y*x y*x"]:
    """Return the weights over columns and rows as weights over the whole grid."""
    same_row = torch.eye(down.shape[1], dtype=down.dtype, device=down.device)
    same_column = torch.eye(down.shape[2], dtype=down.dtype, device=down.device)
    dense = torch.einsum("byxu,xw->byxuw", down, same_column)
    dense = dense + torch.einsum("byxw,yu->byxuw", across, same_row)
    return dense.flatten(3).flatten(1, 2)


def double_attention(
    features: Float[Tensor, "b c n"],
    gather: Float[Tensor, "b k n"],
    distribute: Float[Tensor, "b k n"],
) -> tuple[Float[Tensor, "b c n"], tuple[Float[Tensor, "b k n"], Float[Tensor, "b k n"]]]:
    """Return double attention: features gathered into k descriptors and distributed again.

    Each descriptor is a weighted mean over all positions; each position receives a weighted mean of
    the descriptors. This takes 2 n k c multiplications and 2 n k weights.

    Args:
        features: Features of n positions.
        gather: Logits of the positions for each descriptor; a softmax over positions follows.
        distribute: Logits of the descriptors at each position; a softmax over descriptors follows.

    Returns:
        The output features and both attention weights: the first sum to 1 over positions, the
        second over descriptors.

    Example:
        >>> features = torch.tensor([[[1.0, 3.0]]])
        >>> double_attention(features, torch.zeros(1, 5, 2), torch.zeros(1, 5, 2))[0]
        tensor([[[2., 2.]]])

    Source:
        Chen et al. 2018, arXiv:1810.11579, equations 3 to 6.
    """
    gather_weights = at_least_float32(gather).softmax(-1)
    distribute_weights = at_least_float32(distribute).softmax(-2)
    with without_autocast(features.device):
        output = at_least_float32(features) @ gather_weights.mT @ distribute_weights
    weights = gather_weights.to(features.dtype), distribute_weights.to(features.dtype)
    return output.to(features.dtype), weights


def channel_affinity(
    features: Float[Tensor, "b c n"], *, inverted: bool = False
) -> Float[Tensor, "b c c"]:
    """Return channel attention: weights of each channel (dim 1) over all channels (dim 2).

    The scores are dot products over all positions, not scaled, in float32 at least. This takes
    n c² multiplications and c² weights.

    Args:
        features: Features of n positions.
        inverted: Whether the least similar channels get the largest weights, as in the authors'
            code.

    Example:
        >>> pair = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> channel_affinity(pair)[0, 0], channel_affinity(pair, inverted=True)[0, 0]
        (tensor([0.9820, 0.0180]), tensor([0.0180, 0.9820]))

    Source:
        Fu et al. 2019, arXiv:1809.02983, equation 3.
    """
    x = at_least_float32(features)
    with without_autocast(features.device):
        scores = x @ x.mT
    # The authors' code subtracts the scores from their row maximum: softmax ignores the constant.
    return (-scores if inverted else scores).softmax(-1).to(features.dtype)
