"""What a transformer does to each token by itself."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu


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


class SwiGLU(nn.Module):
    """Two linear maps, the second of a product: of one half of the first with SiLU of the other.

    Args:
        width: Of a token.
        hidden: Of the product.
        bias: Whether both maps have a bias.

    Example:
        >>> import torch
        >>> SwiGLU(4, 8)(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 4])

    Source:
        Shazeer 2020, arXiv:2002.05202, equation 6; both halves in one map, the gate first, as in
        DINOv2.
    """

    def __init__(self, width: int, hidden: int, *, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * hidden, bias=bias)
        self.fc2 = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        """Return what is to be added to each token."""
        gate, through = self.fc1(x).chunk(2, -1)
        return self.fc2(silu(gate) * through)
