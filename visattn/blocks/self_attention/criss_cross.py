"""Criss-cross attention."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, hidden_width
from visattn.blocks.tap import Tap
from visattn.functional.attention.cnn import crisscross_attention


class CrissCrossAttention(Block):
    """Add to each place what it takes from its row and column, twice, so that all places meet.

    A new block returns its input, since its gain begins at zero. Costs R n (y + x) (C + h)
    multiplications for the n = y x places, beside R times its convolutions. Its tap shows a map per
    repetition.

    Args:
        channels: Width of a feature.
        reduction: By which queries and keys are narrower; they keep at least one channel.
        recurrence: How often, R, with the same weights; with two, every place reaches every other.

    Raises:
        ValueError: If it is to be done less than once.

    Example:
        >>> x = torch.randn(2, 8, 5, 7)
        >>> torch.equal(CrissCrossAttention(8)(x), x)
        True

    Source:
        Huang et al. 2019, arXiv:1811.11721, equations 1 to 3, section 3.3.
    """

    card: ClassVar = BlockInfo(
        name="crisscross",
        kind="grid",
        title="Recurrent criss-cross attention",
        paper="Huang et al. 2019, arXiv:1811.11721",
        equation="y_i = x_i + gamma sum_j softmax_j((Wq x_i) . (Wk x_j)) Wv x_j over the row and "
        "the column of i, itself once; R times; gamma = 0 at first",
        parameters="2 (C h + h) + C^2 + C + 1, with h = max(1, C // reduction)",
        deviations=(
            "the gain gamma is from the released code, the paper adds without one",
            "the head's 3x3 convolutions are left to the network",
        ),
        aliases=("CCA", "CCNet"),
    )

    def __init__(self, channels: int, *, reduction: int = 8, recurrence: int = 2) -> None:
        super().__init__(channels)
        if recurrence < 1:
            raise ValueError(f"recurrence must be at least 1, got {recurrence}")
        hidden = hidden_width(channels, reduction)
        self.query = nn.Conv2d(channels, hidden, 1)
        self.key = nn.Conv2d(channels, hidden, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.gain = nn.Parameter(torch.zeros(1))
        self.recurrence = recurrence
        self.tap = Tap("tokens")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, to each place added what it takes along its lines, repeatedly."""
        for _ in range(self.recurrence):
            x = x + (self.gain * self._along_lines(x)).to(x.dtype)
        return x

    def _along_lines(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        taken, weights = crisscross_attention(
            self.query(x), self.key(x), self.value(x), need_weights=self.tap.wanted
        )
        if weights is not None:
            self.tap.grid = (x.shape[2], x.shape[3])
            self.tap(weights)
        return taken
