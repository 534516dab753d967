"""Gates per channel: how loud each channel is to be, from what all of its places hold."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv1d, hardsigmoid, layer_norm, linear

from visattn.functional.numerics import at_least_float32
from visattn.functional.pooling import channel_deviations, channel_means


def squeeze_excitation_gate(
    pooled: Float[Tensor, "b c"],
    squeeze: Float[Tensor, "r c"],
    excite: Float[Tensor, "c r"],
    squeeze_bias: Float[Tensor, " r"] | None = None,
    excite_bias: Float[Tensor, " c"] | None = None,
) -> Float[Tensor, "b c"]:
    """Return the gate of each channel, in (0, 1), by a bottleneck of two linear maps.

    Example:
        >>> import torch
        >>> squeeze_excitation_gate(torch.ones(1, 3), torch.ones(2, 3), torch.zeros(3, 2))
        tensor([[0.5000, 0.5000, 0.5000]])

    Source:
        Hu et al. 2018, arXiv:1709.01507, equation 3.
    """
    hidden = linear(pooled, squeeze, squeeze_bias).relu()
    return linear(hidden, excite, excite_bias).sigmoid()


def effective_gate(
    pooled: Float[Tensor, "b c"],
    weight: Float[Tensor, "c c"],
    bias: Float[Tensor, " c"] | None = None,
) -> Float[Tensor, "b c"]:
    """Return the gate of each channel, in [0, 1], by one linear map and a hard sigmoid.

    Example:
        >>> import torch
        >>> effective_gate(torch.tensor([[-9.0, 0.0, 9.0]]), torch.eye(3))
        tensor([[0.0000, 0.5000, 1.0000]])

    Source:
        Lee and Park 2020, arXiv:1911.06667, section 3.3.
    """
    return hardsigmoid(linear(pooled, weight, bias))


def efficient_kernel(channels: int) -> int:
    """Return over how many neighboring channels an efficient gate looks; it is odd.

    Raises:
        ValueError: If channels are below 1.

    Example:
        >>> [efficient_kernel(channels) for channels in (64, 256, 2048)]
        [3, 5, 7]

    Source:
        Wang et al. 2020, arXiv:1910.03151, equation 12, with gamma = 2 and b = 1.
    """
    if channels < 1:
        raise ValueError(f"channels must be at least 1, got {channels}")
    kernel = int(abs(math.log2(channels) / 2 + 1 / 2))
    return kernel if kernel % 2 else kernel + 1


def efficient_gate(
    pooled: Float[Tensor, "b c"], weight: Float[Tensor, " k"]
) -> Float[Tensor, "b c"]:
    """Return the gate of each channel, in (0, 1), from the channels beside it.

    Beyond the first and the last channel there are zeros.

    Raises:
        ValueError: If the width of the window is even, so that it has no middle.

    Example:
        >>> import torch
        >>> efficient_gate(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0.0, 0.0, 1.0]))
        tensor([[0.5000, 0.5000, 0.5000]])

    Source:
        Wang et al. 2020, arXiv:1910.03151, equation 9.
    """
    kernel = weight.shape[0]
    if kernel % 2 == 0:
        raise ValueError(f"the window over the channels must be odd, got {kernel}")
    mixed = conv1d(pooled.unsqueeze(1), weight[None, None], padding=kernel // 2)
    return mixed.squeeze(1).sigmoid()


def channel_styles(x: Float[Tensor, "b c y x"], *, epsilon: float = 1e-5) -> Float[Tensor, "b c 2"]:
    """Return the mean and the standard deviation of each channel, over its places.

    Example:
        >>> import torch
        >>> channel_styles(torch.tensor([[[[1.0, 3.0]]]]))
        tensor([[[2.0000, 1.0000]]])

    Source:
        Lee et al. 2019, arXiv:1903.10829, equations 1 to 3.
    """
    deviations = channel_deviations(x, epsilon=epsilon).to(x.dtype)
    return torch.stack((channel_means(x), deviations), dim=2)


def style_scores(
    styles: Float[Tensor, "b c s"], weight: Float[Tensor, "c s"]
) -> Float[Tensor, "b c"]:
    """Return one number per channel from its own style; over a batch and in a sigmoid, its gate.

    Example:
        >>> import torch
        >>> style_scores(torch.tensor([[[2.0, 1.0]]]), torch.tensor([[0.5, -1.0]]))
        tensor([[0.]])

    Source:
        Lee et al. 2019, arXiv:1903.10829, equation 4.
    """
    return (styles * weight).sum(2)


def transformation_gate(
    norms: Float[Tensor, "b c"],
    alpha: Float[Tensor, " c"],
    gamma: Float[Tensor, " c"],
    beta: Float[Tensor, " c"],
    *,
    epsilon: float = 1e-5,
) -> Float[Tensor, "b c"]:
    """Return the gate of each channel, in (0, 2), by how it stands among the channels.

    Where gamma and beta are 0, so that no channel competes, every gate is exactly 1.

    Args:
        norms: Euclidean norm of each channel.
        alpha: How much the norm of a channel counts.
        gamma: Above 0, a channel that stands out is held back by none and the others by it; below
            0, the other way round.
        beta: Gate of the channel on its own, before the tanh.
        epsilon: Added to squares whose root is taken.

    Example:
        >>> import torch
        >>> none, one = torch.zeros(2), torch.ones(2)
        >>> transformation_gate(torch.tensor([[3.0, 4.0]]), one, none, none)
        tensor([[1., 1.]])

    Source:
        Yang et al. 2020, arXiv:1909.11519, equations 2 to 4.
    """
    embedded = alpha * (norms.square() + epsilon).sqrt()
    across = embedded.square().mean(1, keepdim=True) + epsilon
    return 1 + torch.tanh(gamma * embedded * across.rsqrt() + beta)


def global_context(
    x: Float[Tensor, "b c y x"],
    key: Float[Tensor, " c"],
    bias: Float[Tensor, " 1"] | None = None,
) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b 1 n"]]:
    """Return the mean feature of the places that fit the key, and their weights, row by row.

    The softmax is taken in float32 at least.

    Args:
        x: Features.
        key: What a place that counts looks like.
        bias: Added to the score of every place, so that the weights do not depend on it; released
            weights have one.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[[0.0, 200.0]], [[1.0, 7.0]]]])
        >>> context, weights = global_context(x, torch.tensor([1.0, 0.0]))
        >>> context, weights
        (tensor([[200.,   7.]]), tensor([[[0., 1.]]]))

    Source:
        Cao et al. 2019, arXiv:1904.11492, equation 4.
    """
    places = x.flatten(2)
    # Of a vector and a batch of matrices, matmul would make one long matrix, and copy x for it.
    scores = key.expand(x.shape[0], 1, -1) @ places
    scores = at_least_float32(scores if bias is None else scores + bias)
    weights = scores.softmax(-1).to(x.dtype)
    return (weights @ places.transpose(1, 2)).squeeze(1), weights


def context_shift(
    context: Float[Tensor, "b c"],
    squeeze: Float[Tensor, "r c"],
    excite: Float[Tensor, "c r"],
    scale: Float[Tensor, " r"],
    shift: Float[Tensor, " r"],
    squeeze_bias: Float[Tensor, " r"] | None = None,
    excite_bias: Float[Tensor, " c"] | None = None,
    *,
    epsilon: float = 1e-5,
) -> Float[Tensor, "b c"]:
    """Return what is added to each channel at every place; any real number.

    One number that is normalized is always 0, and of two only their order is left. A bottleneck
    that narrow is therefore scaled and shifted only.

    Example:
        >>> import torch
        >>> one = torch.ones(1)
        >>> context_shift(torch.tensor([[2.0]]), one[None], one[None], one, one)
        tensor([[3.]])

    Source:
        Cao et al. 2019, arXiv:1904.11492, equation 5.
    """
    hidden = linear(context, squeeze, squeeze_bias)
    if scale.shape[0] < 3:
        hidden = hidden * scale + shift
    else:
        hidden = layer_norm(hidden, scale.shape, scale, shift, epsilon)
    return linear(hidden.relu(), excite, excite_bias)
