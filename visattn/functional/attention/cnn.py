"""Attention of CNN blocks on grids, where it is not one softmax of all queries with all keys."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.numerics import at_least_float32, without_autocast


def crisscross_attention(
    queries: Float[Tensor, "b d y x"],
    keys: Float[Tensor, "b d y x"],
    values: Float[Tensor, "b e y x"],
    *,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "b e y x"], Float[Tensor, "b y*x y*x"] | None]:
    """Return what each place takes from its row and its column, under one softmax over both.

    The place itself lies on both lines and counts once, with its row. Products are not scaled, and
    are found in float32 at least. Takes n (y + x) (d + e) multiplications and n (y + x) numbers for
    the n = y x places.

    Args:
        queries: What each place looks for.
        keys: What each place offers.
        values: What each place gives.
        need_weights: Whether to lay the weights out over all pairs of places, n² numbers that are
            zero off the cross. There is no fused kernel: the values are the same either way.

    Example:
        >>> flat = torch.zeros(1, 1, 2, 3)
        >>> crisscross_attention(flat, flat, flat, need_weights=True)[1][0, 0]
        tensor([0.2500, 0.2500, 0.2500, 0.2500, 0.0000, 0.0000])

    Source:
        Huang et al. 2019, arXiv:1811.11721, equations 1 and 2.
    """
    height = queries.shape[2]
    wide_values = at_least_float32(values)
    with without_autocast(values.device):
        down, across = _cross_scores(at_least_float32(queries), at_least_float32(keys))
        weights = torch.cat((down, across), -1).softmax(-1)
        down, across = weights[..., :height], weights[..., height:]
        taken = torch.einsum("byxu,beux->beyx", down, wide_values)
        taken = taken + torch.einsum("byxw,beyw->beyx", across, wide_values)
        laid = _on_all_places(down, across) if need_weights else None
    return taken.to(values.dtype), laid if laid is None else laid.to(values.dtype)


def _cross_scores(
    queries: Float[Tensor, "b d y x"], keys: Float[Tensor, "b d y x"]
) -> tuple[Float[Tensor, "b y x y"], Float[Tensor, "b y x x"]]:
    """Return the products with the keys of the column, without the own one, and of the row."""
    down = torch.einsum("bdyx,bdux->byxu", queries, keys)
    across = torch.einsum("bdyx,bdyw->byxw", queries, keys)
    itself = torch.eye(queries.shape[2], dtype=torch.bool, device=queries.device)
    return down.masked_fill(itself[:, None, :], -torch.inf), across


def _on_all_places(
    down: Float[Tensor, "b y x y"], across: Float[Tensor, "b y x x"]
) -> Float[Tensor, "b y*x y*x"]:
    """Return the weights of columns and rows over whole grids."""
    same_row = torch.eye(down.shape[1], dtype=down.dtype, device=down.device)
    same_column = torch.eye(down.shape[2], dtype=down.dtype, device=down.device)
    laid = torch.einsum("byxu,xw->byxuw", down, same_column)
    laid = laid + torch.einsum("byxw,yu->byxuw", across, same_row)
    return laid.flatten(3).flatten(1, 2)


def double_attention(
    features: Float[Tensor, "b c n"],
    gather: Float[Tensor, "b k n"],
    distribute: Float[Tensor, "b k n"],
) -> tuple[Float[Tensor, "b c n"], tuple[Float[Tensor, "b k n"], Float[Tensor, "b k n"]]]:
    """Return features that were gathered into k descriptors and handed out again, and both weights.

    Each descriptor is a mean over all places, each place takes a mean over all descriptors. Takes
    2 n k c multiplications and 2 n k numbers, which are there whether they are looked at or not.

    Args:
        features: What is gathered.
        gather: Scores of the places, for each descriptor; a softmax over the places follows.
        distribute: Scores of the descriptors, at each place; a softmax over descriptors follows.

    Returns:
        The features, and the two weights: the first sums to one over places, the second over
        descriptors.

    Example:
        >>> features = torch.tensor([[[1.0, 3.0]]])
        >>> double_attention(features, torch.zeros(1, 5, 2), torch.zeros(1, 5, 2))[0]
        tensor([[[2., 2.]]])

    Source:
        Chen et al. 2018, arXiv:1810.11579, equations 3 to 6.
    """
    gathering = at_least_float32(gather).softmax(-1)
    distributing = at_least_float32(distribute).softmax(-2)
    with without_autocast(features.device):
        given = at_least_float32(features) @ gathering.mT @ distributing
    weights = gathering.to(features.dtype), distributing.to(features.dtype)
    return given.to(features.dtype), weights


def channel_affinity(
    features: Float[Tensor, "b c n"], *, inverted: bool = False
) -> Float[Tensor, "b c c"]:
    """Return how much each channel (second axis) takes from each (last axis), by their likeness.

    The scores are products over all places, not scaled, and found in float32 at least. Takes n c²
    multiplications and c² numbers.

    Args:
        features: Channels, each over all places.
        inverted: Whether the least alike weigh most, as in the code that the authors released.

    Example:
        >>> pair = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> channel_affinity(pair)[0, 0], channel_affinity(pair, inverted=True)[0, 0]
        (tensor([0.9820, 0.0180]), tensor([0.0180, 0.9820]))

    Source:
        Fu et al. 2019, arXiv:1809.02983, equation 3.
    """
    wide = at_least_float32(features)
    with without_autocast(features.device):
        scores = wide @ wide.mT
    # The released code subtracts from each row's maximum; a softmax does not see that constant.
    return (-scores if inverted else scores).softmax(-1).to(features.dtype)
