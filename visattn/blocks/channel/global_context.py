"""Global context block (GCNet)."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, reduced_channels
from visattn.blocks.tap import Tap
from visattn.functional.gates.channel import global_context_pool, global_context_transform


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
        compatible_weights=(
            "mmdetection ContextBlock (conv_mask, channel_add_conv), pooling att, fusion add",
            "timm GlobalContext with fuse_add=True, fuse_scale=False (LN eps 1e-6, here 1e-5)",
        ),
        aliases=("GCNet", "global context block"),
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
