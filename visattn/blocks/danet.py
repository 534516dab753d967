"""Dual attention (DANet): position attention and channel attention."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, reduced_channels
from visattn.blocks.tap import Tap
from visattn.functional.attention import dot_product_attention
from visattn.functional.numerics import at_least_float32, without_autocast


def channel_affinity(
    features: Float[Tensor, "b c n"], *, inverted: bool = False
) -> Float[Tensor, "b c c"]:
    """Return channel attention: weights of each channel (dim 1) over all channels (dim 2).

    The scores are dot products over all positions, not scaled, in float32 at least. This takes
    n c² multiplications and c² weights.

    Args:
        inverted: Whether the least similar channels get the largest weights, as in the authors'
            code.

    Example:
        >>> pair = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> channel_affinity(pair)[0, 0], channel_affinity(pair, inverted=True)[0, 0]
        (tensor([0.9820, 0.0180]), tensor([0.0180, 0.9820]))

    Source:
        Fu et al. 2019, arXiv:1809.02983, equation 3.
    """
    x = at_least_float32(features)
    with without_autocast(features.device):
        scores = x @ x.mT
    # The authors' code subtracts the scores from their row maximum: softmax ignores the constant.
    return (-scores if inverted else scores).softmax(-1).to(features.dtype)


class DANet(Block):
    """Dual attention: sum of position self-attention and channel self-attention (DANet).

    Initialized as the identity (both residual scales are zero). The channel scores of the paper are
    sums over all positions: for features of unit variance, nearly all of a channel's weight stays
    with itself. Costs n² (C + h) + 2 n C² MACs for n positions, in addition to its convolutions.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of queries and keys, which keep at least one channel.
        invert_channel_affinity: Whether channels attend most to dissimilar channels, as in the
            authors' code; in the paper they attend to similar ones.

    Example:
        >>> x = torch.randn(2, 8, 5, 7)
        >>> torch.equal(DANet(8)(x), x)
        True

    Source:
        Fu et al. 2019, arXiv:1809.02983, equations 1 to 4.
    """

    info: ClassVar = BlockInfo(
        name="danet",
        kind="self_attention",
        title="Dual attention: position and channel modules",
        paper="Fu et al. 2019, arXiv:1809.02983",
        equation="y = x + alpha P + beta Q; P_i = sum_j softmax_j((Wq x_i) . (Wk x_j)) Wv x_j "
        "over places; Q = softmax(X X^T) X over channels; alpha = beta = 0 at first",
        parameters="2 (C h + h) + C^2 + C + 2, with h = max(1, C // reduction)",
        deviations=(
            "both modules are in one block and share one x; the 3x3 convolutions of the head are "
            "not part of it",
            "invert_channel_affinity=True uses softmax(max(E) - E), as in the released code",
        ),
    )

    def __init__(
        self, channels: int, *, reduction: int = 8, invert_channel_affinity: bool = False
    ) -> None:
        super().__init__(channels)
        hidden = reduced_channels(channels, reduction)
        self.query = nn.Conv2d(channels, hidden, 1)
        self.key = nn.Conv2d(channels, hidden, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.position_gain = nn.Parameter(torch.zeros(1))
        self.channel_gain = nn.Parameter(torch.zeros(1))
        self.invert_channel_affinity = invert_channel_affinity
        self.position_tap = Tap("tokens")
        self.channel_tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features plus both scaled attention outputs."""
        positions = self.position_gain * self._position_attention(x)
        channels = self.channel_gain * self._channel_attention(x)
        return x + (positions + channels).to(x.dtype)

    def _position_attention(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        queries, keys, values = (
            projection(x).flatten(2).mT for projection in (self.query, self.key, self.value)
        )
        output, weights = dot_product_attention(
            queries, keys, values, scale=1.0, need_weights=self.position_tap.wanted
        )
        if weights is not None:
            self.position_tap.grid = (x.shape[2], x.shape[3])
            self.position_tap(weights)
        return output.mT.reshape(x.shape)

    def _channel_attention(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        flat = x.flatten(2)
        weights = self.channel_tap(channel_affinity(flat, inverted=self.invert_channel_affinity))
        return (weights @ flat).reshape(x.shape)
