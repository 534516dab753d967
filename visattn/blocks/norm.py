"""Batch normalization that raises an informative error for a single value per channel."""

from jaxtyping import Float
from torch import Tensor, nn


class CheckedBatchNorm1d(nn.BatchNorm1d):
    """`nn.BatchNorm1d` with an informative error for a batch of one; same parameters and state.

    Example:
        >>> import torch
        >>> CheckedBatchNorm1d(3)(torch.randn(2, 3)).shape
        torch.Size([2, 3])
    """

    def forward(self, input: Float[Tensor, "b c"]) -> Float[Tensor, "b c"]:  # noqa: A002 torch's name
        """Return the normalized vectors.

        Raises:
            ValueError: In training mode, if there is only one value per channel.
        """
        _check_batch_statistics(self, input)
        return super().forward(input)


class CheckedBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` with an informative error for one value per channel; parameters are alike.

    Example:
        >>> import torch
        >>> CheckedBatchNorm2d(3)(torch.randn(1, 3, 5, 7)).shape
        torch.Size([1, 3, 5, 7])
    """

    def forward(self, input: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:  # noqa: A002
        """Return the normalized features.

        Raises:
            ValueError: In training mode, if there is only one value per channel.
        """
        _check_batch_statistics(self, input)
        return super().forward(input)


def _check_batch_statistics(norm: nn.Module, x: Float[Tensor, "b c *places"]) -> None:
    if norm.training and x.numel() == x.shape[1]:
        raise ValueError(
            "batch normalization needs more than one value per channel in training mode, got shape "
            f"{list(x.shape)}; train with a batch size of at least 2, or call eval() on the block "
            "to use its running statistics"
        )
