"""Branches that are left out at random while a network learns."""

from jaxtyping import Float
from torch import Tensor, nn


class DropPath(nn.Module):
    """Leave a branch out, for each picture by itself; what stays is scaled so that the mean does.

    Out of training nothing happens.

    Args:
        rate: How likely it is to be left out, in [0, 1].

    Raises:
        ValueError: If the rate is no probability.

    Example:
        >>> import torch
        >>> DropPath(1.0)(torch.ones(2, 1)), DropPath(1.0).eval()(torch.ones(1, 1))
        (tensor([[0.], [0.]]), tensor([[1.]]))

    Source:
        Huang et al. 2016, arXiv:1603.09382, section 3. Deviation: branches are scaled in
        training, as in dropout, and not when the network is used.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate <= 1:
            raise ValueError(f"the rate of dropping a path must lie in [0, 1], got {rate}")
        self.rate = rate

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Return the branch, of some pictures zero."""
        if not self.training or self.rate == 0:
            return x
        stays = 1 - self.rate
        drawn = x.new_empty((x.shape[0], *(1,) * (x.ndim - 1))).bernoulli_(stays)
        return x * (drawn / stays if stays else drawn)

    def extra_repr(self) -> str:
        """Return what is printed of it."""
        return f"{self.rate:g}"
