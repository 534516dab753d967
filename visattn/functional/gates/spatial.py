"""Spatial-attention gates: CBAM, spatial squeeze (sSE) and additive attention gates."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, interpolate

from visattn.functional.pooling import fast_amax, fast_mean

PoolOrder = Literal["max_mean", "mean_max"]


def channel_pool(
    x: Float[Tensor, "b c y x"], *, order: PoolOrder = "max_mean"
) -> Float[Tensor, "b 2 y x"]:
    """Return maximum and mean over channels, stacked.

    Args:
        x: Features.
        order: Which comes first.

    Example:
        >>> channel_pool(torch.tensor([[[[1.0]], [[3.0]]]])).flatten()
        tensor([3., 2.])
    """
    pools = fast_amax(x, 1), fast_mean(x, (1,))
    return torch.stack(pools if order == "max_mean" else pools[::-1], 1)


def cbam_spatial_gate(
    x: Float[Tensor, "b c y x"],
    weight: Float[Tensor, "1 2 k k"],
    *,
    order: PoolOrder = "max_mean",
    norm: Callable[[Tensor], Tensor] | None = None,
) -> Float[Tensor, "b y x"]:
    """Return the spatial gate of CBAM, in (0, 1): a convolution of max and mean over channels.

    Args:
        x: Features.
        weight: Convolution over the two pools; its size is odd.
        order: Which pool its first channel reads.
        norm: What the score passes before the sigmoid, as a batch normalization; nothing if None.

    Example:
        >>> cbam_spatial_gate(torch.ones(1, 3, 2, 2), torch.zeros(1, 2, 7, 7))
        tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000]]])

    Source:
        Woo et al. 2018, arXiv:1807.06521, equation 3.
    """
    score = conv2d(channel_pool(x, order=order), weight, padding=weight.shape[-1] // 2)
    return (score if norm is None else norm(score)).sigmoid().squeeze(1)


def spatial_squeeze_gate(
    x: Float[Tensor, "b c y x"],
    weight: Float[Tensor, " c"],
    bias: Float[Tensor, " 1"] | None = None,
) -> Float[Tensor, "b y x"]:
    """Return the sSE gate of each position, in (0, 1): a 1x1 convolution of its channels.

    Example:
        >>> spatial_squeeze_gate(torch.zeros(1, 3, 1, 2), torch.ones(3))
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
    """Return the additive attention gate of each position, in (0, 1), from features and signal.

    Both are already projected to the same number of channels, the signal with its bias.

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
    return spatial_squeeze_gate((features + signal).relu(), weight, bias)


def resize_bilinear(
    x: Float[Tensor, "b c _y _x"], size: tuple[int, int]
) -> Float[Tensor, "b c _height _width"]:
    """Resize features bilinearly (`align_corners=False`).

    Example:
        >>> resize_bilinear(torch.tensor([[[[0.0, 4.0]]]]), (1, 4))
        tensor([[[[0., 1., 3., 4.]]]])
    """
    return interpolate(x, size, mode="bilinear", align_corners=False)
