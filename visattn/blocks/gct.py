"""Gated channel transformation (GCT)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import channel_norms


class GCT(Block):
    """Gated channel transformation: channel gate from normalized L2 norms of the channels.

    With three parameters per channel; a positive gamma makes channels compete, a negative one
    cooperate::

        y = x * (1 + tanh(gamma v + beta)),  v = sqrt(C) u / |u|,  u = alpha |x_c|

    Initialized as the identity, with gamma = beta = 0. The released code also offers the L1 norm.
    With a single channel the gate does not depend on the input.

    Args:
        channels: Number of input channels.

    Example:
        >>> x = torch.randn(2, 64, 5, 7)
        >>> torch.equal(GCT(64)(x), x)
        True

    Source:
        Yang et al. 2020, arXiv:1909.11519, equations 1 to 4.
    """

    info = BlockInfo("gct", "channel", "Yang et al. 2020, arXiv:1909.11519")

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))
        self.gamma = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))
        self.tap = Tap("channel")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate."""
        norm = channel_norms(x)
        embedding = self.alpha * (norm.square() + 1e-5).sqrt()
        scale = (embedding.square().mean(1, keepdim=True) + 1e-5).rsqrt()
        gate = 1 + torch.tanh(self.gamma * embedding * scale + self.beta)
        return x * self.tap(gate.to(x.dtype))[:, :, None, None]
