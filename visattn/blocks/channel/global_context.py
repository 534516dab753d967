"""Global context."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, hidden_width
from visattn.blocks.tap import Tap
from visattn.functional.gates.channel import context_shift, global_context


class GlobalContext(Block):
    """Add to every place the same vector, made from the places that one attention picks (GC).

    At the start it adds exactly nothing.

    Args:
        channels: Width of a feature.
        reduction: By which the hidden layer is narrower; it keeps at least one unit.

    Example:
        >>> import torch
        >>> x = torch.randn(2, 64, 5, 7)
        >>> torch.equal(GlobalContext(64)(x), x)
        True

    Source:
        Cao et al. 2019, arXiv:1904.11492, equations 4 and 5.
    """

    card: ClassVar = BlockInfo(
        name="gc",
        kind="channel",
        title="Global context",
        paper="Cao et al. 2019, arXiv:1904.11492",
        equation="y = x + W2 relu(LN(W1 z + b1)) + b2, z = sum_j softmax_j(k . x_j) x_j",
        parameters="(C + 1) + 2 C h + 3 h + C, with h = max(1, C // reduction)",
        deviations=(
            "below 3 hidden units LN only scales and shifts: it would leave the input no say",
            "the score of a place has a bias, as in the released code, which changes nothing",
        ),
        weights=(
            "mmdetection ContextBlock (conv_mask, channel_add_conv), pooling att, fusion add",
            "timm GlobalContext with fuse_add=True, fuse_scale=False (its LN adds 1e-6, ours 1e-5)",
        ),
        aliases=("GCNet", "global context block"),
    )

    def __init__(self, channels: int, *, reduction: int = 16) -> None:
        super().__init__(channels)
        hidden = hidden_width(channels, reduction)
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
        """Return the features, with the same vector added to every place."""
        context, weights = global_context(x, self.score.weight.squeeze(0), self.score.bias)
        if self.tap.wanted:
            self.tap.grid = (x.shape[2], x.shape[3])
            self.tap(weights)
        shift = context_shift(
            context,
            self.squeeze.weight,
            self.excite.weight,
            self.norm.weight,
            self.norm.bias,
            self.squeeze.bias,
            self.excite.bias,
            epsilon=self.norm.eps,
        )
        return x + shift[:, :, None, None]
