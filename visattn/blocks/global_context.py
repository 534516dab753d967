"""Global context block (GCNet)."""

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import at_least_float32


class GlobalContext(Block):
    """Global context: adds one attention-pooled, transformed vector to every position (GCNet).

    One query k pools all positions j::

        y = x + W2 relu(LN(W1 z + b1)) + b2,  z = sum_j softmax_j(k . x_j) x_j

    Initialized as the identity, with W2 = b2 = 0. Below 3 hidden channels LN only scales and
    shifts, since normalization would remove the input. As in the released code, the score has a
    bias, which the softmax cancels.

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

    info = BlockInfo("gc", "channel", "Cao et al. 2019, arXiv:1904.11492")

    def __init__(self, channels: int, *, reduction: int = 16) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.score = nn.Linear(channels, 1)
        self.squeeze = nn.Linear(channels, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.excite = nn.Linear(hidden, channels)
        self.tap = Tap("tokens")
        nn.init.kaiming_normal_(self.score.weight)
        for zero in (self.score.bias, self.excite.weight, self.excite.bias):
            nn.init.zeros_(zero)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features plus the transformed context vector."""
        flat = x.flatten(2)
        # One key per image, since with a single key matmul would copy x.
        scores = self.score.weight.expand(x.shape[0], 1, -1) @ flat + self.score.bias
        weights = at_least_float32(scores).softmax(-1).to(x.dtype)
        if self.tap.wanted:
            self.tap.grid = (x.shape[2], x.shape[3])
            self.tap(weights)
        hidden = self.squeeze((weights @ flat.mT).squeeze(1))
        if hidden.shape[1] < 3:
            hidden = hidden * self.norm.weight + self.norm.bias
        else:
            hidden = self.norm(hidden)
        return x + self.excite(hidden.relu())[:, :, None, None]
