"""Dual attention (DANet): position attention and channel attention."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.attention import dot_product_attention
from visattn.functional.numerics import at_least_float32, without_autocast


class DANet(Block):
    """Dual attention: sum of position self-attention and channel self-attention.

    Over positions i and j, and over the channels of X, a matrix of channels by positions::

        y = x + alpha P + beta Q
        P_i = sum_j softmax_j((Wq x_i) . (Wk x_j)) Wv x_j
        Q = softmax(X X^T) X

    Initialized as the identity, with alpha = beta = 0. The channel scores are sums over all
    positions: for features of unit variance, a channel attends almost only to itself. Costs
    n² (C + h) + 2 n C² MACs for n positions, in addition to its convolutions. Both modules are in
    one block and share one x; the 3 x 3 convolutions of the head are not part of it.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of queries and keys, which keep at least one channel.
        invert_channel_affinity: Whether channels attend most to dissimilar channels, by
            softmax(max(E) - E), as in the authors' code; in the paper they attend to similar ones.

    Example:
        >>> x = torch.randn(2, 8, 5, 7)
        >>> torch.equal(DANet(8)(x), x)
        True

    Source:
        Fu et al. 2019, arXiv:1809.02983, equations 1 to 4.
    """

    info = BlockInfo("danet", "self_attention", "Fu et al. 2019, arXiv:1809.02983")

    def __init__(
        self, channels: int, *, reduction: int = 8, invert_channel_affinity: bool = False
    ) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.query = nn.Conv2d(channels, hidden, 1)
        self.key = nn.Conv2d(channels, hidden, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.position_gain = nn.Parameter(torch.zeros(1))
        self.channel_gain = nn.Parameter(torch.zeros(1))
        # The authors' code subtracts scores from the maximum of their row, which softmax ignores.
        self.sign = -1 if invert_channel_affinity else 1
        self.position_tap = Tap("tokens")
        self.channel_tap = Tap("channel")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features plus both scaled attention outputs."""
        positions = self.position_gain * self.attend_positions(x)
        channels = self.channel_gain * self.attend_channels(x)
        return x + (positions + channels).to(x.dtype)

    def attend_positions(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the output of position attention (P)."""
        q, k, v = (conv(x).flatten(2).mT for conv in (self.query, self.key, self.value))
        output, weights = dot_product_attention(
            q, k, v, scale=1.0, need_weights=self.position_tap.wanted
        )
        if weights is not None:
            self.position_tap.grid = (x.shape[2], x.shape[3])
            self.position_tap(weights)
        return output.mT.reshape(x.shape)

    def attend_channels(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the output of channel attention (Q)."""
        flat = x.flatten(2)
        exact = at_least_float32(flat)
        with without_autocast(x.device):  # sums over all positions overflow half precision
            scores = self.sign * (exact @ exact.mT)
        weights = self.channel_tap(scores.softmax(-1).to(x.dtype))
        return (weights @ flat).reshape(x.shape)
