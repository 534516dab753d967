"""Channel-attention gates: squeeze-and-excitation, ECA, SRM, GCT, global context."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv1d, hardsigmoid, layer_norm, linear

from visattn.functional.numerics import at_least_float32
from visattn.functional.pooling import channel_means, channel_stds


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


def effective_se_gate(
    pooled: Float[Tensor, "b c"],
    weight: Float[Tensor, "c c"],
    bias: Float[Tensor, " c"] | None = None,
) -> Float[Tensor, "b c"]:
    """Return the effective SE gate of each channel, in [0, 1]: one linear map and a hard sigmoid.

    Example:
        >>> import torch
        >>> effective_se_gate(torch.tensor([[-9.0, 0.0, 9.0]]), torch.eye(3))
        tensor([[0.0000, 0.5000, 1.0000]])

    Source:
        Lee and Park 2020, arXiv:1911.06667, section 3.3.
    """
    return hardsigmoid(linear(pooled, weight, bias))


def eca_kernel_size(channels: int) -> int:
    """Return the odd kernel size of ECA for a number of channels.

    Raises:
        ValueError: If channels are below 1.

    Example:
        >>> [eca_kernel_size(channels) for channels in (64, 256, 2048)]
        [3, 5, 7]

    Source:
        Wang et al. 2020, arXiv:1910.03151, equation 12, with gamma = 2 and b = 1.
    """
    if channels < 1:
        raise ValueError(f"channels must be at least 1, got {channels}")
    kernel = int(abs(math.log2(channels) / 2 + 1 / 2))
    return kernel if kernel % 2 else kernel + 1


def eca_gate(pooled: Float[Tensor, "b c"], weight: Float[Tensor, " k"]) -> Float[Tensor, "b c"]:
    """Return the ECA gate of each channel, in (0, 1): a 1D convolution over channels.

    Channels are zero-padded.

    Raises:
        ValueError: If the kernel size is even.

    Example:
        >>> import torch
        >>> eca_gate(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0.0, 0.0, 1.0]))
        tensor([[0.5000, 0.5000, 0.5000]])

    Source:
        Wang et al. 2020, arXiv:1910.03151, equation 9.
    """
    kernel = weight.shape[0]
    if kernel % 2 == 0:
        raise ValueError(f"the kernel size must be odd, got {kernel}")
    mixed = conv1d(pooled.unsqueeze(1), weight[None, None], padding=kernel // 2)
    return mixed.squeeze(1).sigmoid()


def style_pool(x: Float[Tensor, "b c y x"], *, eps: float = 1e-5) -> Float[Tensor, "b c 2"]:
    """Return the style pooling of SRM: mean and standard deviation of each channel.

    Example:
        >>> import torch
        >>> style_pool(torch.tensor([[[[1.0, 3.0]]]]))
        tensor([[[2.0000, 1.0000]]])

    Source:
        Lee et al. 2019, arXiv:1903.10829, equations 1 to 3.
    """
    deviations = channel_stds(x, eps=eps).to(x.dtype)
    return torch.stack((channel_means(x), deviations), dim=2)


def style_scores(
    styles: Float[Tensor, "b c s"], weight: Float[Tensor, "c s"]
) -> Float[Tensor, "b c"]:
    """Return the style integration of SRM, to be followed by batch norm and a sigmoid.

    Example:
        >>> import torch
        >>> style_scores(torch.tensor([[[2.0, 1.0]]]), torch.tensor([[0.5, -1.0]]))
        tensor([[0.]])

    Source:
        Lee et al. 2019, arXiv:1903.10829, equation 4.
    """
    return (styles * weight).sum(2)


def gct_gate(
    norms: Float[Tensor, "b c"],
    alpha: Float[Tensor, " c"],
    gamma: Float[Tensor, " c"],
    beta: Float[Tensor, " c"],
    *,
    eps: float = 1e-5,
) -> Float[Tensor, "b c"]:
    """Return the gated channel transformation (GCT) gate of each channel, in (0, 2).

    With gamma and beta 0 every gate is exactly 1.

    Args:
        norms: L2 norm of each channel.
        alpha: Weight of the norm in the embedding.
        gamma: Gating weight: positive for competition between channels, negative for cooperation.
        beta: Gating bias.
        eps: Added before square roots.

    Example:
        >>> import torch
        >>> zeros, ones = torch.zeros(2), torch.ones(2)
        >>> gct_gate(torch.tensor([[3.0, 4.0]]), ones, zeros, zeros)
        tensor([[1., 1.]])

    Source:
        Yang et al. 2020, arXiv:1909.11519, equations 2 to 4.
    """
    embedded = alpha * (norms.square() + eps).sqrt()
    across = embedded.square().mean(1, keepdim=True) + eps
    return 1 + torch.tanh(gamma * embedded * across.rsqrt() + beta)


def global_context_pool(
    x: Float[Tensor, "b c y x"],
    key: Float[Tensor, " c"],
    bias: Float[Tensor, " 1"] | None = None,
) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b 1 n"]]:
    """Return the global context vector and the attention weights over positions.

    The softmax runs in float32 at least.

    Args:
        x: Features.
        key: Weight of the 1x1 convolution that scores positions.
        bias: Bias of the scores, which does not change the weights; released checkpoints have it.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[[0.0, 200.0]], [[1.0, 7.0]]]])
        >>> context, weights = global_context_pool(x, torch.tensor([1.0, 0.0]))
        >>> context, weights
        (tensor([[200.,   7.]]), tensor([[[0., 1.]]]))

    Source:
        Cao et al. 2019, arXiv:1904.11492, equation 4.
    """
    places = x.flatten(2)
    # For a vector and a batch of matrices matmul would fold the batch and copy x.
    scores = key.expand(x.shape[0], 1, -1) @ places
    scores = at_least_float32(scores if bias is None else scores + bias)
    weights = scores.softmax(-1).to(x.dtype)
    return (weights @ places.transpose(1, 2)).squeeze(1), weights


def global_context_transform(
    context: Float[Tensor, "b c"],
    squeeze: Float[Tensor, "r c"],
    excite: Float[Tensor, "c r"],
    scale: Float[Tensor, " r"],
    shift: Float[Tensor, " r"],
    squeeze_bias: Float[Tensor, " r"] | None = None,
    excite_bias: Float[Tensor, " c"] | None = None,
    *,
    eps: float = 1e-5,
) -> Float[Tensor, "b c"]:
    """Return the global context transform, which is added to every position.

    Layer norm over fewer than three channels keeps no magnitude. Such a narrow bottleneck is scaled
    and shifted without normalization.

    Example:
        >>> import torch
        >>> ones = torch.ones(1)
        >>> global_context_transform(torch.tensor([[2.0]]), ones[None], ones[None], ones, ones)
        tensor([[3.]])

    Source:
        Cao et al. 2019, arXiv:1904.11492, equation 5.
    """
    hidden = linear(context, squeeze, squeeze_bias)
    if scale.shape[0] < 3:
        hidden = hidden * scale + shift
    else:
        hidden = layer_norm(hidden, scale.shape, scale, shift, eps)
    return linear(hidden.relu(), excite, excite_bias)
