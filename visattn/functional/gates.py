"""Parts of gates that several blocks share: squeeze-and-excitation, pools, softmax of branches."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, linear

from visattn.functional.numerics import fast_amax, fast_mean

PoolOrder = Literal["max_mean", "mean_max"]


def channel_pool(
    x: Float[Tensor, "b c y x"], *, order: PoolOrder = "max_mean"
) -> Float[Tensor, "b 2 y x"]:
    """Return maximum and mean over channels, stacked.

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


def resize_bilinear(
    x: Float[Tensor, "b c _y _x"], size: tuple[int, int]
) -> Float[Tensor, "b c _height _width"]:
    """Resize features bilinearly (`align_corners=False`).

    Example:
        >>> resize_bilinear(torch.tensor([[[[0.0, 4.0]]]]), (1, 4))
        tensor([[[[0., 1., 3., 4.]]]])
    """
    return interpolate(x, size, mode="bilinear", align_corners=False)


def branch_softmax(scores: Float[Tensor, "b m c"]) -> Float[Tensor, "b m c"]:
    """Return softmax weights of the m branches; per channel they sum to 1.

    Example:
        >>> branch_softmax(torch.zeros(1, 2, 3))
        tensor([[[0.5000, 0.5000, 0.5000],
                 [0.5000, 0.5000, 0.5000]]])

    Source:
        Li et al. 2019, arXiv:1903.06586, equation 5.
    """
    return scores.softmax(1)


def merge_branches(
    branches: Sequence[Float[Tensor, "b c y x"]], weights: Float[Tensor, "b m c"]
) -> Float[Tensor, "b c y x"]:
    """Return the sum of the branches, weighted per channel.

    Example:
        >>> ones = torch.ones(1, 1, 1, 2)
        >>> merge_branches((ones, 3 * ones), torch.tensor([[[0.5], [0.5]]]))
        tensor([[[[2., 2.]]]])

    Source:
        Li et al. 2019, arXiv:1903.06586, equation 6.
    """
    shares = weights[..., None, None].unbind(1)
    total = branches[0] * shares[0]
    for branch, share in zip(branches[1:], shares[1:], strict=True):
        total = torch.addcmul(total, branch, share)
    return total


def squeeze_excitation_gate(
    pooled: Float[Tensor, "b c"],
    squeeze: Float[Tensor, "r c"],
    excite: Float[Tensor, "c r"],
    squeeze_bias: Float[Tensor, " r"] | None = None,
    excite_bias: Float[Tensor, " c"] | None = None,
) -> Float[Tensor, "b c"]:
    """Return the squeeze-and-excitation gate of each channel, in (0, 1).

    Example:
        >>> import torch
        >>> squeeze_excitation_gate(torch.ones(1, 3), torch.ones(2, 3), torch.zeros(3, 2))
        tensor([[0.5000, 0.5000, 0.5000]])

    Source:
        Hu et al. 2018, arXiv:1709.01507, equation 3.
    """
    hidden = linear(pooled, squeeze, squeeze_bias).relu()
    return linear(hidden, excite, excite_bias).sigmoid()
