"""Shares that are exact over batches of any size and over several processes."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class WeightedMean(Metric):
    """An amount over a count, both summed over everything that was seen; NaN over nothing.

    Example:
        >>> share = WeightedMean()
        >>> share.update(3, 4)
        >>> share.update(0, 2)
        >>> share.compute()
        tensor(0.5000)
    """

    full_state_update = False
    amount: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("amount", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, amount: float | Tensor, count: float | Tensor) -> None:
        """Take in an amount and the count that it is a share of."""
        self.amount += amount
        self.count += count

    def compute(self) -> Tensor:
        """Return the share so far."""
        return (self.amount / self.count).float()
