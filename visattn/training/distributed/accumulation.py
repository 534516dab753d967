"""Gradient accumulation over batches with different numbers of words or captions."""

# pyright: reportPrivateImportUsage=false

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from visattn.training.distributed.reduce import world_size


class GradientAccumulation:
    """Weights accumulated batches by their size, so that their gradient is that of one batch.

    Lightning takes the plain mean over the batches of a step, although their losses are means over
    different numbers of words. Penalties are weighted like the loss of their batch.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(()))
        >>> accumulation, steps = GradientAccumulation(), torch.optim.SGD([weight], lr=1.0)
        >>> for mean, count in ((3.0, 1), (1.0, 3)):  # two batches, of 1 and of 3 words
        ...     (accumulation.weigh(weight * mean, count, num_batches=2) / 2).backward()
        >>> accumulation.normalize(steps)
        >>> weight.grad
        tensor(1.5000)
    """

    def __init__(self) -> None:
        self._counts: list[float | Tensor] = []
        self._num_batches = 1

    def weigh(self, loss: Float[Tensor, ""], count: int, num_batches: int) -> Float[Tensor, ""]:
        """Return the loss of a batch, weighted by its size; unchanged without accumulation.

        Args:
            loss: Mean loss of the batch, over all processes if DDP averages its gradient.
            count: Number of values in the mean of this process.
            num_batches: Batches per optimizer step, by which Lightning divides each loss.
        """
        if num_batches == 1:
            return loss
        self._num_batches = num_batches
        total: float | Tensor = float(count)
        if world_size() > 1:
            total = torch.full((), float(count), device=loss.device)
            torch.distributed.all_reduce(total)
        self._counts.append(total)
        return loss * (total / self._counts[0])

    @torch.no_grad()
    def normalize(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the weights of the batches since the last step.

        Args:
            optimizer: Its parameters have the accumulated gradients.
        """
        if not self._counts:
            return
        factor = self._num_batches * self._counts[0] / sum(self._counts)
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        if present := [gradient for gradient in gradients if gradient is not None]:
            torch._foreach_mul_(present, factor)
        self._counts.clear()
