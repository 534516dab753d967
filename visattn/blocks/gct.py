"""Gated channel transformation (GCT)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import channel_norms


def gct_gate(
    norms: Float[Tensor, "b c"],
    alpha: Float[Tensor, " c"],
    gamma: Float[Tensor, " c"],
    beta: Float[Tensor, " c"],
    *,
    eps: float = 1e-5,
) -> Float[Tensor, "b c"]:
    """Return the gated channel transformation (GCT) gate of each channel, in (0, 2).

    With gamma and beta 0 every gate is exactly 1.

    Args:
        alpha: Weight of the norm in the embedding.
        gamma: Gating weight: positive for competition between channels, negative for cooperation.
        beta: Gating bias.

    Example:
        >>> import torch
        >>> zeros, ones = torch.zeros(2), torch.ones(2)
        >>> gct_gate(torch.tensor([[3.0, 4.0]]), ones, zeros, zeros)
        tensor([[1., 1.]])

    Source:
        Yang et al. 2020, arXiv:1909.11519, equations 2 to 4.
    """
    embedded = alpha * (norms.square() + eps).sqrt()
    across = embedded.square().mean(1, keepdim=True) + eps
    return 1 + torch.tanh(gamma * embedded * across.rsqrt() + beta)


class GCT(Block):
    """Gated channel transformation: channel gate from normalized L2 norms of the channels (GCT).

    Initialized as the identity.

    Args:
        channels: Number of input channels.

    Example:
        >>> import torch
        >>> x = torch.randn(2, 64, 5, 7)
        >>> torch.equal(GCT(64)(x), x)
        True

    Source:
        Yang et al. 2020, arXiv:1909.11519, equations 1 to 4.
    """

    info: ClassVar = BlockInfo(
        name="gct",
        kind="channel",
        title="Gated channel transformation (GCT)",
        paper="Yang et al. 2020, arXiv:1909.11519",
        equation="y = x * (1 + tanh(gamma v + beta)), v = sqrt(C) u / |u|, u = alpha |x_c|",
        parameters="3 C",
        deviations=(
            "L2 norm only; the released code also offers the L1 norm",
            "with a single channel the gate does not depend on the input",
        ),
    )

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.alpha = nn.Parameter(torch.ones(channels))
        self.gamma = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))
        self.tap = Tap("channel")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features scaled by the channel gate."""
        gate = gct_gate(channel_norms(x), self.alpha, self.gamma, self.beta)
        return x * self.tap(gate.to(x.dtype))[:, :, None, None]
