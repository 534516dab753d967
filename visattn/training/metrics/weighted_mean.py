"""A weighted mean that is exact for any batch size and any number of processes."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class WeightedMean(Metric):
    """The sum of all amounts divided by the sum of their counts; NaN before the first update.

    Example:
        >>> mean = WeightedMean()
        >>> mean.update(3, 4)
        >>> mean.update(0, 2)
        >>> mean.compute()
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
        """Add an amount and its count."""
        self.amount += amount
        self.count += count

    def compute(self) -> Tensor:
        """Return the mean."""
        return (self.amount / self.count).float()
