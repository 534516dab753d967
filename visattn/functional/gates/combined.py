"""Gates over channels and positions: CBAM, BAM, coordinate and triplet attention, SimAM."""

from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from visattn.functional.numerics import at_least_float32, can_write_inplace
from visattn.functional.pooling import channel_means, fast_amax, fast_mean

CombineMode = Literal["add", "mul"]


def cbam_channel_gate(
    x: Float[Tensor, "b c y x"],
    squeeze: Float[Tensor, "r c"],
    excite: Float[Tensor, "c r"],
    squeeze_bias: Float[Tensor, " r"] | None = None,
    excite_bias: Float[Tensor, " c"] | None = None,
) -> Float[Tensor, "b c"]:
    """Return the channel gate of CBAM, in (0, 1), from mean and max pooling.

    Both pass the same bottleneck MLP; their logits are added.

    Example:
        >>> cbam_channel_gate(torch.ones(1, 3, 2, 2), torch.ones(2, 3), torch.zeros(3, 2))
        tensor([[0.5000, 0.5000, 0.5000]])

    Source:
        Woo et al. 2018, arXiv:1807.06521, equation 2.
    """
    pools = torch.stack((channel_means(x), fast_amax(x.flatten(2), 2)), 1)
    hidden = linear(pools, squeeze, squeeze_bias).relu()
    return linear(hidden, excite, excite_bias).sum(1).sigmoid()


def bam_gate(
    channel: Float[Tensor, "b c"], place: Float[Tensor, "b y x"], *, combine: CombineMode = "add"
) -> Float[Tensor, "b c y x"]:
    """Return the gate of BAM, in (0, 1), from channel and spatial logits.

    Args:
        channel: Logit of each channel.
        place: Logit of each position.
        combine: Whether the logits are added, as in the paper, or multiplied.

    Example:
        >>> bam_gate(torch.zeros(1, 1), torch.zeros(1, 1, 2))
        tensor([[[[0.5000, 0.5000]]]])

    Source:
        Park et al. 2018, arXiv:1807.06514, equation 2.
    """
    by_channel, by_place = channel[:, :, None, None], place[:, None]
    score = by_channel + by_place if combine == "add" else by_channel * by_place
    return score.sigmoid()


def strip_pools(
    x: Float[Tensor, "b c y x"],
) -> tuple[Float[Tensor, "b c y"], Float[Tensor, "b c x"]]:
    """Return the mean of each row and of each column.

    Example:
        >>> import torch
        >>> strip_pools(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]]))
        (tensor([[[2., 6.]]]), tensor([[[3., 5.]]]))

    Source:
        Hou et al. 2021, arXiv:2103.02907, equations 4 and 5.
    """
    return fast_mean(x, (3,)), fast_mean(x, (2,))


def coordinate_gate(
    rows: Float[Tensor, "b c y"], columns: Float[Tensor, "b c x"]
) -> Float[Tensor, "b c y x"]:
    """Return the coordinate-attention gate: row gate times column gate.

    Example:
        >>> import torch
        >>> coordinate_gate(torch.tensor([[[0.5, 1.0]]]), torch.tensor([[[0.5, 1.0]]]))
        tensor([[[[0.2500, 0.5000],
                  [0.5000, 1.0000]]]])

    Source:
        Hou et al. 2021, arXiv:2103.02907, equation 9.
    """
    return rows.unsqueeze(3) * columns.unsqueeze(2)


def z_pool(x: Float[Tensor, "b c y x"], dim: int) -> Float[Tensor, "b 2 p q"]:
    """Return the Z-pool: maximum and mean over a dimension, stacked.

    Args:
        x: Features.
        dim: Pooled dimension. 1 leaves rows and columns, 2 channels and columns, 3 channels and
            rows.

    Example:
        >>> import torch
        >>> z_pool(torch.tensor([[[[1.0]], [[3.0]]]]), 1)
        tensor([[[[3.]],
                 [[2.]]]])

    Source:
        Misra et al. 2021, arXiv:2010.03045, equation 1 (the Z-pool).
    """
    return torch.stack((fast_amax(x, dim), fast_mean(x, (dim,))), dim=1)


def triplet_gate(
    places: Float[Tensor, "b y x"],
    rows: Float[Tensor, "b c y"],
    columns: Float[Tensor, "b c x"],
) -> Float[Tensor, "b c y x"]:
    """Return the triplet-attention gate: the mean of three gates over two dimensions each.

    The mean of the gates has the same effect as the mean of three gated copies of the features.

    Example:
        >>> import torch
        >>> triplet_gate(torch.tensor([[[0.3]]]), torch.tensor([[[0.6]]]), torch.tensor([[[0.9]]]))
        tensor([[[[0.6000]]]])

    Source:
        Misra et al. 2021, arXiv:2010.03045, equation 3.
    """
    crossed = (rows / 3).unsqueeze(3) + (columns / 3).unsqueeze(2)
    # In place: the backward pass of a sum does not need its operands.
    return crossed.add_((places / 3).unsqueeze(1))


def simam_gate(x: Float[Tensor, "b c y x"], *, e_lambda: float = 1e-4) -> Float[Tensor, "b c y x"]:
    """Return the SimAM gate of each position and channel, between sigmoid(1/2) = 0.6225 and 1.

    A position far from the mean of its channel has low energy and a large gate; one at the mean has
    the smallest gate. A channel of one position has the gate sigmoid(1/2). The computation runs in
    float32 at least.

    Args:
        x: Features.
        e_lambda: Regularization λ added to the variance; larger values flatten the gate.

    Raises:
        ValueError: If `e_lambda` is not above 0.

    Example:
        >>> import torch
        >>> simam_gate(torch.tensor([[[[0.0, 0.0, 0.0, 4.0]]]]))
        tensor([[[[0.6370, 0.6370, 0.6370, 0.7432]]]])

    Source:
        Yang et al. 2021, "SimAM: A Simple, Parameter-Free Attention Module for Convolutional Neural
        Networks", equations 5 and 6; the variance is unbiased, as in the authors' code.
    """
    if not e_lambda > 0:
        raise ValueError(f"e_lambda must be above 0, got {e_lambda}")
    exact = at_least_float32(x)
    centered = exact - channel_means(exact)[:, :, None, None]
    fresh = not can_write_inplace(centered)
    # Every intermediate is as large as x: without a backward pass its memory is reused.
    squares = centered.square() if fresh else centered.square_()
    factor = 0.25 / (squares.sum((2, 3), keepdim=True) / _degrees(x) + e_lambda)
    if fresh:
        return (squares * factor + 0.5).sigmoid().to(x.dtype)
    return squares.mul_(factor).add_(0.5).sigmoid_().to(x.dtype)


def _degrees(x: Float[Tensor, "b c y x"]) -> int | Tensor:
    """Return the number of positions minus 1, but at least 1."""
    degrees: int | Tensor = x.shape[2] * x.shape[3] - 1  # a tensor under torch.jit.trace
    if isinstance(degrees, Tensor):
        return degrees.clamp_min(1)
    return cast("int", torch.sym_max(degrees, 1))
