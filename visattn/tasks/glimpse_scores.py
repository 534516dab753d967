"""How often a glimpse model errs, after each glimpse, whoever chose the places."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric


class ErrorPerGlimpse(Metric):
    """The share of wrong answers after each glimpse, over everything that was seen.

    Args:
        glimpses: How many a picture gets.

    Example:
        >>> errors = ErrorPerGlimpse(2)
        >>> errors.update(torch.tensor([[[9.0, 0.0], [0.0, 9.0]]]), torch.tensor([1]))
        >>> errors.compute()
        tensor([1., 0.])
    """

    full_state_update = False
    wrong: Tensor
    count: Tensor

    def __init__(self, glimpses: int) -> None:
        super().__init__()
        self.add_state("wrong", torch.zeros(glimpses, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, scores: Float[Tensor, "n t k"], labels: Int[Tensor, " n"]) -> None:
        """Take in scores, or probabilities, after each glimpse, and the true classes."""
        self.wrong += (scores.argmax(-1) != labels[:, None]).sum(0)
        self.count += len(labels)

    def compute(self) -> Float[Tensor, " t"]:
        """Return the errors so far, as shares; NaN over nothing."""
        return self.wrong / self.count
