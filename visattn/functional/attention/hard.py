"""From weights to what is seen: the mean of all places, or one of them drawn at random."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Selection(NamedTuple):
    """What each query picked."""

    values: Float[Tensor, "*b n e"]
    """The value at its place; zeros where it might attend to nothing."""
    places: Int[Tensor, "*b n"]
    """Which key that was; -1 where it might attend to nothing."""
    log_probabilities: Float[Tensor, "*b n"]
    """How likely this place was, in nats; 0 where there was no choice. The weights learn through
    these: REINFORCE multiplies them by how well it went."""


def soft_selection(
    weights: Float[Tensor, "*b n m"], values: Float[Tensor, "*#b m e"]
) -> Float[Tensor, "*b n e"]:
    """Return the mean of the values under the weights: the expectation of `hard_selection`.

    Example:
        >>> soft_selection(torch.tensor([[0.25, 0.75]]), torch.tensor([[0.0], [4.0]]))
        tensor([[3.]])

    Source:
        Xu et al. 2015, arXiv:1502.03044, equation 13.
    """
    return weights @ values


def hard_selection(
    weights: Float[Tensor, "*b n m"],
    values: Float[Tensor, "*#b m e"],
    *,
    generator: torch.Generator | None = None,
) -> Selection:
    """Return one value for each query, drawn as often as its weight says.

    The values get gradients where they were picked. The weights get none through the values, only
    through the log-probabilities.

    Args:
        weights: Of each key, not negative; a row is taken in proportion, whatever its sum.
        values: What can be picked.
        generator: Source of chance, seeded, on the device of the weights; the same seed gives the
            same picks. torch's own if not said.

    Example:
        >>> random = torch.Generator().manual_seed(0)
        >>> weights, values = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([[5.0], [7.0]])
        >>> picked = hard_selection(weights, values, generator=random)
        >>> picked.values.tolist(), picked.places.tolist(), picked.log_probabilities.tolist()
        ([[7.0], [0.0]], [1, -1], [0.0, 0.0])

    Source:
        Xu et al. 2015, arXiv:1502.03044, equations 8 to 11.
    """
    wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
    total = wide.sum(-1, keepdim=True)
    blind = total == 0
    chances = torch.where(blind, 1.0, wide)
    rows = chances.detach().flatten(0, -2)
    places = rows.multinomial(1, generator=generator).view(weights.shape[:-1])
    picked = (chances / torch.where(blind, 1.0, total)).gather(-1, places.unsqueeze(-1))
    blind = blind.squeeze(-1)
    everything = values.expand(*weights.shape[:-2], *values.shape[-2:])
    seen = everything.gather(-2, places.unsqueeze(-1).expand(*places.shape, values.shape[-1]))
    return Selection(
        seen.masked_fill(blind.unsqueeze(-1), 0.0),
        places.masked_fill(blind, -1),
        picked.squeeze(-1).log().masked_fill(blind, 0.0),
    )
