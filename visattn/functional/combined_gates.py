"""Gates for blocks that weigh both channels and places."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from visattn.functional.pools import channel_means, maxima

Joint = Literal["add", "mul"]


def mean_max_gate(
    x: Float[Tensor, "b c y x"],
    squeeze: Float[Tensor, "r c"],
    excite: Float[Tensor, "c r"],
    squeeze_bias: Float[Tensor, " r"] | None = None,
    excite_bias: Float[Tensor, " c"] | None = None,
) -> Float[Tensor, "b c"]:
    """Return the gate of each channel, in (0, 1), from the means and the peaks of all channels.

    Both pass the same bottleneck of two linear maps; their scores are added.

    Example:
        >>> mean_max_gate(torch.ones(1, 3, 2, 2), torch.ones(2, 3), torch.zeros(3, 2))
        tensor([[0.5000, 0.5000, 0.5000]])

    Source:
        Woo et al. 2018, arXiv:1807.06521, equation 2.
    """
    pools = torch.stack((channel_means(x), maxima(x.flatten(2), 2)), 1)
    hidden = linear(pools, squeeze, squeeze_bias).relu()
    return linear(hidden, excite, excite_bias).sum(1).sigmoid()


def joint_gate(
    channel: Float[Tensor, "b c"], place: Float[Tensor, "b y x"], *, combine: Joint = "add"
) -> Float[Tensor, "b c y x"]:
    """Return the gate of each channel at each place, in (0, 1), from a score of either.

    Args:
        channel: Score of each channel; any real number.
        place: Score of each place; any real number.
        combine: Whether the scores are added, as the paper has it, or multiplied.

    Example:
        >>> joint_gate(torch.zeros(1, 1), torch.zeros(1, 1, 2))
        tensor([[[[0.5000, 0.5000]]]])

    Source:
        Park et al. 2018, arXiv:1807.06514, equation 2.
    """
    by_channel, by_place = channel[:, :, None, None], place[:, None]
    score = by_channel + by_place if combine == "add" else by_channel * by_place
    return score.sigmoid()
