"""Batch normalization that says in plain words what it cannot do."""

from jaxtyping import Float
from torch import Tensor, nn


class VectorNorm(nn.BatchNorm1d):
    """Batch normalization of vectors; parameters and state are those of `nn.BatchNorm1d`.

    Example:
        >>> import torch
        >>> VectorNorm(3)(torch.randn(2, 3)).shape
        torch.Size([2, 3])
    """

    def forward(self, input: Float[Tensor, "b c"]) -> Float[Tensor, "b c"]:  # noqa: A002 torch's name
        """Return the vectors, each channel with mean 0 and variance 1 before scale and shift.

        Raises:
            ValueError: If it is to learn from a single vector, which has no variance.
        """
        _refuse_single_values(self, input)
        return super().forward(input)


class MapNorm(nn.BatchNorm2d):
    """Batch normalization of maps; parameters and state are those of `nn.BatchNorm2d`.

    Example:
        >>> import torch
        >>> MapNorm(3)(torch.randn(1, 3, 5, 7)).shape
        torch.Size([1, 3, 5, 7])
    """

    def forward(self, input: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:  # noqa: A002
        """Return the maps, each channel with mean 0 and variance 1 before scale and shift.

        Raises:
            ValueError: If it is to learn from a single place, which has no variance.
        """
        _refuse_single_values(self, input)
        return super().forward(input)


def _refuse_single_values(norm: nn.Module, x: Float[Tensor, "b c *places"]) -> None:
    if norm.training and x.numel() == x.shape[1]:
        raise ValueError(
            "batch normalization needs more than one value per channel to learn from, got shape "
            f"{list(x.shape)}; train with at least 2 images in a batch, or call eval() on the "
            "block to use the statistics that it has"
        )
