"""What a transformer does to each token by itself."""

from jaxtyping import Float
from torch import Tensor, nn


class FeedForward(nn.Module):
    """Two linear maps with a GELU between them.

    Args:
        width: Of a token.
        hidden: Between the two.
        bias: Whether both have a bias.

    Example:
        >>> import torch
        >>> FeedForward(4, 8)(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 4])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.1.
    """

    def __init__(self, width: int, hidden: int, *, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden, bias=bias)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        """Return what is to be added to each token."""
        return self.fc2(self.act(self.fc1(x)))
