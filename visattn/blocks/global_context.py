"""Global context block (GCNet)."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear

from visattn.blocks.base import Block, BlockInfo, reduced_channels
from visattn.blocks.tap import Tap
from visattn.functional.numerics import at_least_float32


def global_context_pool(
    x: Float[Tensor, "b c y x"],
    key: Float[Tensor, " c"],
    bias: Float[Tensor, " 1"] | None = None,
) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b 1 n"]]:
    """Return the global context vector and the attention weights over positions.

    The softmax runs in float32 at least.

    Args:
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


class GlobalContext(Block):
    """Global context: adds one attention-pooled, transformed vector to every position (GCNet).

    Initialized as the identity.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the hidden layer, which keeps at least one channel.

    Example:
        >>> import torch
        >>> x = torch.randn(2, 64, 5, 7)
        >>> torch.equal(GlobalContext(64)(x), x)
        True

    Source:
        Cao et al. 2019, arXiv:1904.11492, equations 4 and 5.
    """

    info: ClassVar = BlockInfo(
        name="gc",
        kind="channel",
        title="Global context",
        paper="Cao et al. 2019, arXiv:1904.11492",
        equation="y = x + W2 relu(LN(W1 z + b1)) + b2, z = sum_j softmax_j(k . x_j) x_j",
        parameters="(C + 1) + 2 C h + 3 h + C, with h = max(1, C // reduction)",
        deviations=(
            "below 3 hidden channels LN only scales and shifts, or it would remove the input",
            "the score has a bias, as in the released code; softmax cancels it",
        ),
    )

    def __init__(self, channels: int, *, reduction: int = 16) -> None:
        super().__init__(channels)
        hidden = reduced_channels(channels, reduction)
        self.score = nn.Linear(channels, 1)
        self.squeeze = nn.Linear(channels, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.excite = nn.Linear(hidden, channels)
        self.tap = Tap("tokens")
        nn.init.kaiming_normal_(self.score.weight)
        nn.init.zeros_(self.score.bias)
        nn.init.zeros_(self.excite.weight)
        nn.init.zeros_(self.excite.bias)

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features plus the transformed context vector."""
        context, weights = global_context_pool(x, self.score.weight.squeeze(0), self.score.bias)
        if self.tap.wanted:
            self.tap.grid = (x.shape[2], x.shape[3])
            self.tap(weights)
        shift = global_context_transform(
            context,
            self.squeeze.weight,
            self.excite.weight,
            self.norm.weight,
            self.norm.bias,
            self.squeeze.bias,
            self.excite.bias,
            eps=self.norm.eps,
        )
        return x + shift[:, :, None, None]
