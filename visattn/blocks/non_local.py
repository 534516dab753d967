"""Non-local block."""

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.attention import dot_product_attention


class NonLocal(Block):
    """Non-local block: self-attention over all positions with a residual connection.

    The embedded Gaussian version, over positions i and j::

        y_i = x_i + BN(Wz sum_j softmax_j((Wq x_i) . (Wk x_j)) Wv x_j)

    Initialized as the identity (the weight of BN is zero). Costs 2 n² h MACs for n positions, in
    addition to its convolutions. Keys and values are not pooled (the paper's optional subsampling).
    Training needs more than one position in the batch.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the inner features, which keep at least one channel.
        scale: Whether to divide the scores by the square root of the inner channels; the paper
            does not.

    Example:
        >>> import torch
        >>> x = torch.randn(2, 8, 5, 7)
        >>> torch.equal(NonLocal(8)(x), x)
        True

    Source:
        Wang et al. 2018, arXiv:1711.07971, equations 4 and 6, section 4.1.
    """

    info = BlockInfo("nonlocal", "self_attention", "Wang et al. 2018, arXiv:1711.07971")

    def __init__(self, channels: int, *, reduction: int = 2, scale: bool = False) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.query = nn.Conv2d(channels, hidden, 1)
        self.key = nn.Conv2d(channels, hidden, 1)
        self.value = nn.Conv2d(channels, hidden, 1)
        self.project = nn.Conv2d(hidden, channels, 1)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm.weight)
        self.scale = hidden**-0.5 if scale else 1.0
        self.tap = Tap("tokens")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features plus the normalized attention output."""
        q, k, v = (conv(x).flatten(2).mT for conv in (self.query, self.key, self.value))
        output, weights = dot_product_attention(
            q, k, v, scale=self.scale, need_weights=self.tap.wanted
        )
        if weights is not None:
            self.tap.grid = (x.shape[2], x.shape[3])
            self.tap(weights)
        return x + self.norm(self.project(output.mT.unflatten(2, x.shape[2:])))
