"""Dual attention: among places, and among channels."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, hidden_width
from visattn.blocks.tap import Tap
from visattn.functional.attention.cnn import channel_affinity
from visattn.functional.attention.softmax import attention


class DANet(Block):
    """Add to each place what it takes from all places, and to each channel from all channels.

    A new block returns its input, since both gains begin at zero. The paper's scores of channels
    are sums over all places: where features are of unit size, nearly all of a channel's weight
    stays with itself. Costs n² (C + h) + 2 n C²
    multiplications for n places, beside its convolutions.

    Args:
        channels: Width of a feature.
        reduction: By which queries and keys are narrower; they keep at least one channel.
        official_cam: Whether channels take most from those that are least like them, as in the
            code that the authors released; in the paper they take from those that are like them.

    Example:
        >>> x = torch.randn(2, 8, 5, 7)
        >>> torch.equal(DANet(8)(x), x)
        True

    Source:
        Fu et al. 2019, arXiv:1809.02983, equations 1 to 4.
    """

    card: ClassVar = BlockInfo(
        name="danet",
        kind="grid",
        title="Dual attention: position and channel modules",
        paper="Fu et al. 2019, arXiv:1809.02983",
        equation="y = x + alpha P + beta Q; P_i = sum_j softmax_j((Wq x_i) . (Wk x_j)) Wv x_j "
        "over places; Q = softmax(X X^T) X over channels; alpha = beta = 0 at first",
        parameters="2 (C h + h) + C^2 + C + 2, with h = max(1, C // reduction)",
        deviations=(
            "both modules stand in one block and share one x; the head's 3x3 convolutions are "
            "left to the network",
            "official_cam=True weighs channels by softmax(max(E) - E), as the released code does",
        ),
        aliases=("DA", "dual attention", "dual attention network"),
    )

    def __init__(self, channels: int, *, reduction: int = 8, official_cam: bool = False) -> None:
        super().__init__(channels)
        hidden = hidden_width(channels, reduction)
        self.query = nn.Conv2d(channels, hidden, 1)
        self.key = nn.Conv2d(channels, hidden, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.position_gain = nn.Parameter(torch.zeros(1))
        self.channel_gain = nn.Parameter(torch.zeros(1))
        self.official_cam = official_cam
        self.position_tap = Tap("tokens")
        self.channel_tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, with what places and channels take from each other."""
        places = self.position_gain * self._among_places(x)
        channels = self.channel_gain * self._among_channels(x)
        return x + (places + channels).to(x.dtype)

    def _among_places(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        queries, keys, values = (
            part(x).flatten(2).mT for part in (self.query, self.key, self.value)
        )
        seen, weights = attention(
            queries, keys, values, scale=1.0, need_weights=self.position_tap.wanted
        )
        if weights is not None:
            self.position_tap.grid = (x.shape[2], x.shape[3])
            self.position_tap(weights)
        return seen.mT.reshape(x.shape)

    def _among_channels(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        flat = x.flatten(2)
        weights = self.channel_tap(channel_affinity(flat, inverted=self.official_cam))
        return (weights @ flat).reshape(x.shape)
