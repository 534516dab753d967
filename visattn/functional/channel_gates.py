"""Gates per channel: how loud each channel is to be, from what all of its places hold."""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear


def channel_means(x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c"]:
    """Return the mean of each channel, over its places.

    Example:
        >>> import torch
        >>> channel_means(torch.tensor([[[[1.0, 3.0]]]]))
        tensor([[2.]])
    """
    return x.mean((2, 3))


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
