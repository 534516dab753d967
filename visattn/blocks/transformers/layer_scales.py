"""A learnt size for each channel of a branch."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class LayerScale(nn.Module):
    """Scale each channel.

    Args:
        width: Of a token.
        start: What every scale is at first.

    Example:
        >>> LayerScale(2, 0.5)(torch.ones(1, 1, 2))
        tensor([[[0.5000, 0.5000]]], grad_fn=<MulBackward0>)

    Source:
        Touvron et al. 2021, arXiv:2103.17239, equation 4.
    """

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), float(start)))

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        """Return the scaled branch."""
        return x * self.gamma
