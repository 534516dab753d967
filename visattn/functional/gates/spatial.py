"""Gates per place: how much each place is to be seen, the same for all of its channels."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, interpolate

from visattn.functional.pooling import maxima, means

PoolOrder = Literal["max_mean", "mean_max"]


def channel_pools(
    x: Float[Tensor, "b c y x"], *, order: PoolOrder = "max_mean"
) -> Float[Tensor, "b 2 y x"]:
    """Return the largest and the mean channel of each place.

    Args:
        x: Features.
        order: Which comes first.

    Example:
        >>> channel_pools(torch.tensor([[[[1.0]], [[3.0]]]])).flatten()
        tensor([3., 2.])
    """
    pools = maxima(x, 1), means(x, (1,))
    return torch.stack(pools if order == "max_mean" else pools[::-1], 1)


def pooled_gate(
    x: Float[Tensor, "b c y x"],
    weight: Float[Tensor, "1 2 k k"],
    *,
    order: PoolOrder = "max_mean",
    norm: Callable[[Tensor], Tensor] | None = None,
) -> Float[Tensor, "b y x"]:
    """Return the gate of each place, in (0, 1), from the largest and mean channels around it.

    Args:
        x: Features.
        weight: Convolution over the two pools; its size is odd.
        order: Which pool its first channel reads.
        norm: What the score passes before the sigmoid, as a batch normalization; nothing if None.

    Example:
        >>> pooled_gate(torch.ones(1, 3, 2, 2), torch.zeros(1, 2, 7, 7))
        tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000]]])

    Source:
        Woo et al. 2018, arXiv:1807.06521, equation 3.
    """
    score = conv2d(channel_pools(x, order=order), weight, padding=weight.shape[-1] // 2)
    return (score if norm is None else norm(score)).sigmoid().squeeze(1)


def projected_gate(
    x: Float[Tensor, "b c y x"],
    weight: Float[Tensor, " c"],
    bias: Float[Tensor, " 1"] | None = None,
) -> Float[Tensor, "b y x"]:
    """Return the gate of each place, in (0, 1), from a linear map of its channels.

    Example:
        >>> projected_gate(torch.zeros(1, 3, 1, 2), torch.ones(3))
        tensor([[[0.5000, 0.5000]]])

    Source:
        Roy et al. 2018, arXiv:1803.02579, section 2.2 (sSE).
    """
    return conv2d(x, weight[None, :, None, None], bias).sigmoid().squeeze(1)


def additive_gate(
    features: Float[Tensor, "b h y x"],
    signal: Float[Tensor, "b h #y #x"],
    weight: Float[Tensor, " h"],
    bias: Float[Tensor, " 1"] | None = None,
) -> Float[Tensor, "b y x"]:
    """Return the gate of each place, in (0, 1): how well its features fit the signal.

    Both sides arrive projected to one width, the signal with its bias.

    Args:
        features: What is gated, projected.
        signal: What it is gated by, projected and on the same grid; or one place for all.
        weight: What a place that fits looks like after the ReLU.
        bias: Of the score.

    Example:
        >>> additive_gate(torch.zeros(1, 3, 1, 2), torch.zeros(1, 3, 1, 1), torch.ones(3))
        tensor([[[0.5000, 0.5000]]])

    Source:
        Oktay et al. 2018, arXiv:1804.03999, equations 1 and 2.
    """
    return projected_gate((features + signal).relu(), weight, bias)


def resampled(
    x: Float[Tensor, "b c _y _x"], size: tuple[int, int]
) -> Float[Tensor, "b c _height _width"]:
    """Return maps on a grid of another size, bilinear between the centers of the old one.

    Example:
        >>> resampled(torch.tensor([[[[0.0, 4.0]]]]), (1, 4))
        tensor([[[[0., 1., 3., 4.]]]])
    """
    return interpolate(x, size, mode="bilinear", align_corners=False)
