"""Feed-forward layers of a transformer: GELU MLP and SwiGLU."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them.

    Args:
        dim: Token dimension.
        hidden_dim: Dimension between the layers.
        bias: Whether both layers have biases.

    Example:
        >>> import torch
        >>> FeedForward(4, 8)(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 4])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.1.
    """

    def __init__(self, dim: int, hidden_dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim, bias=bias)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim, bias=bias)

    def forward(self, x: Float[Tensor, "*b c"]) -> Float[Tensor, "*b c"]:
        """Return the output of the residual branch."""
        return self.fc2(self.act(self.fc1(x)))


class SwiGLU(nn.Module):
    """SwiGLU feed-forward layer: SiLU(gate) * value, then a linear layer.

    Args:
        dim: Token dimension.
        hidden_dim: Dimension of gate and value.
        bias: Whether both layers have biases.

    Example:
        >>> import torch
        >>> SwiGLU(4, 8)(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 4])

    Source:
        Shazeer 2020, arXiv:2002.05202, equation 6; gate and value in one linear layer, the gate
        first, as in DINOv2.
    """

    def __init__(self, dim: int, hidden_dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * hidden_dim, bias=bias)
        self.fc2 = nn.Linear(hidden_dim, dim, bias=bias)

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        """Return the output of the residual branch."""
        gate, value = self.fc1(x).chunk(2, -1)
        return self.fc2(silu(gate) * value)
