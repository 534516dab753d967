"""Gates for blocks that weigh both channels and places."""

from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from visattn.functional.numerics import at_least_float32, may_overwrite
from visattn.functional.pooling import channel_means, maxima, means

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


def strip_means(
    x: Float[Tensor, "b c y x"],
) -> tuple[Float[Tensor, "b c y"], Float[Tensor, "b c x"]]:
    """Return the mean of each row, and that of each column.

    Example:
        >>> import torch
        >>> strip_means(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]]))
        (tensor([[[2., 6.]]]), tensor([[[3., 5.]]]))

    Source:
        Hou et al. 2021, arXiv:2103.02907, equations 4 and 5.
    """
    return means(x, (3,)), means(x, (2,))


def coordinate_gate(
    rows: Float[Tensor, "b c y"], columns: Float[Tensor, "b c x"]
) -> Float[Tensor, "b c y x"]:
    """Return the gate of each place: that of its row times that of its column.

    Example:
        >>> import torch
        >>> coordinate_gate(torch.tensor([[[0.5, 1.0]]]), torch.tensor([[[0.5, 1.0]]]))
        tensor([[[[0.2500, 0.5000],
                  [0.5000, 1.0000]]]])

    Source:
        Hou et al. 2021, arXiv:2103.02907, equation 9.
    """
    return rows.unsqueeze(3) * columns.unsqueeze(2)


def axis_pools(x: Float[Tensor, "b c y x"], axis: int) -> Float[Tensor, "b 2 p q"]:
    """Return the maxima over an axis, and the means: an image of two channels of the other axes.

    Args:
        x: Features.
        axis: 1 leaves rows and columns, 2 channels and columns, 3 channels and rows.

    Example:
        >>> import torch
        >>> axis_pools(torch.tensor([[[[1.0]], [[3.0]]]]), 1)
        tensor([[[[3.]],
                 [[2.]]]])

    Source:
        Misra et al. 2021, arXiv:2010.03045, equation 1 (the Z-pool).
    """
    return torch.stack((maxima(x, axis), means(x, (axis,))), dim=1)


def triplet_gate(
    places: Float[Tensor, "b y x"],
    rows: Float[Tensor, "b c y"],
    columns: Float[Tensor, "b c x"],
) -> Float[Tensor, "b c y x"]:
    """Return the gate of each place in each channel: the mean of three that know two axes each.

    The mean of the gates does to features what the mean of three gated copies does, without them.

    Example:
        >>> import torch
        >>> triplet_gate(torch.tensor([[[0.3]]]), torch.tensor([[[0.6]]]), torch.tensor([[[0.9]]]))
        tensor([[[[0.6000]]]])

    Source:
        Misra et al. 2021, arXiv:2010.03045, equation 3.
    """
    crossed = (rows / 3).unsqueeze(3) + (columns / 3).unsqueeze(2)
    # In the memory that is ours already: no slope of a sum needs what was added.
    return crossed.add_((places / 3).unsqueeze(1))


def energy_gate(
    x: Float[Tensor, "b c y x"], *, smoothing: float = 1e-4
) -> Float[Tensor, "b c y x"]:
    """Return the gate of each place in each channel, between s(1/2) = 0.6225 and 1.

    A place far from the mean of its channel is easily told from the others (its energy is low) and
    passes; one at the mean is damped most. A channel of one place has no variance: its gate is
    s(1/2). It is computed in float32 at least.

    Args:
        x: Features.
        smoothing: Added to the variance (the paper's lambda); the larger, the flatter the gate.

    Raises:
        ValueError: If the smoothing is not above 0.

    Example:
        >>> import torch
        >>> energy_gate(torch.tensor([[[[0.0, 0.0, 0.0, 4.0]]]]))
        tensor([[[[0.6370, 0.6370, 0.6370, 0.7432]]]])

    Source:
        Yang et al. 2021, "SimAM: A Simple, Parameter-Free Attention Module for Convolutional Neural
        Networks", equations 5 and 6; the variance is over one place less, as in the released code.
    """
    if not smoothing > 0:
        raise ValueError(f"smoothing must be above 0, got {smoothing}")
    exact = at_least_float32(x)
    centerd = exact - channel_means(exact)[:, :, None, None]
    fresh = not may_overwrite(centerd)
    # Every step is as large as x. Where no slope needs it again, the next one takes its memory.
    squares = centerd.square() if fresh else centerd.square_()
    factor = 0.25 / (squares.sum((2, 3), keepdim=True) / _degrees(x) + smoothing)
    if fresh:
        return (squares * factor + 0.5).sigmoid().to(x.dtype)
    return squares.mul_(factor).add_(0.5).sigmoid_().to(x.dtype)


def _degrees(x: Float[Tensor, "b c y x"]) -> int | Tensor:
    """Return the number of places less 1, but at least 1."""
    degrees: int | Tensor = x.shape[2] * x.shape[3] - 1  # a tensor under torch.jit.trace
    if isinstance(degrees, Tensor):
        return degrees.clamp_min(1)
    return cast("int", torch.sym_max(degrees, 1))
