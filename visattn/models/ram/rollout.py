"""What is known of looking at images piece by piece."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class GlimpseRollout:
    """Where a model looked and what it thought: b images, m rollouts of t glimpses each.

    An action is the choice of a place. It leads to the next glimpse, so that the last glimpse has
    none; where the first place is chosen too, there are as many actions as glimpses.

    Args:
        places: x and y of each glimpse, in [-1, 1], the first one included.
        scores: Of the classes after each glimpse, before softmax.
        states: What was remembered after each glimpse.
        means: Where the policy meant each action to lead; nothing is cut off.
        samples: Where it was decided to lead, before that was cut off at the image's edge.
    """

    places: Float[Tensor, "b m t 2"]
    scores: Float[Tensor, "b m t k"]
    states: Float[Tensor, "b m t d"]
    means: Float[Tensor, "b m a 2"]
    samples: Float[Tensor, "b m a 2"]


@dataclass(frozen=True, eq=False)
class Glimpse:
    """A place, what was remembered after it, and the action that led there, if one did.

    Args:
        place: x and y, in [-1, 1].
        state: What was remembered.
        action: Mean and sample of the choice of this place.
    """

    place: Float[Tensor, "r 2"]
    state: Float[Tensor, "r d"]
    action: tuple[Tensor, Tensor] | None


def gathered(
    seen: Sequence[Glimpse], scores: Float[Tensor, "r t k"], rollouts: int
) -> GlimpseRollout:
    """Return glimpses, one after the other, as tensors with an axis for the rollouts.

    Args:
        seen: The glimpses of all rollouts; those of one image stand side by side.
        scores: Of the classes after each glimpse.
        rollouts: How many each image has.

    Example:
        >>> nowhere = Glimpse(torch.zeros(6, 2), torch.zeros(6, 5), None)
        >>> looks = gathered([nowhere, nowhere], torch.zeros(6, 2, 3), rollouts=2)
        >>> looks.scores.shape, looks.means.shape
        (torch.Size([3, 2, 2, 3]), torch.Size([3, 2, 0, 2]))
    """
    actions = [one.action for one in seen if one.action is not None]
    nowhere = seen[0].place.new_zeros(len(scores), 0, 2)
    found = (
        torch.stack([one.place for one in seen], 1),
        scores,
        torch.stack([one.state for one in seen], 1),
        torch.stack([mean for mean, _ in actions], 1) if actions else nowhere,
        torch.stack([sample for _, sample in actions], 1) if actions else nowhere,
    )
    return GlimpseRollout(*(some.unflatten(0, (-1, rollouts)) for some in found))
