"""Random numbers that belong to a sample of a step, however many processes share the step."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.data.loading.sample_seed import mixed
from visattn.training.base import Task

_APART = 2**32  # stands where dropout has the rank, so that these numbers are others


class StepDraws:
    """What is drawn at a step for its samples, the same whether one process trains or several.

    Each process draws for the samples of all and keeps what is for its own: of w processes, process
    r has samples r, r + w, r + 2w, ... of what a single one would have.

    Args:
        seed: Of the run.
        number: Of the step.
        device: Where the model computes.
        rank: Which process this is.
        world: How many there are.

    Example:
        >>> alone = StepDraws(0, 7, torch.device("cpu")).uniforms(4)
        >>> second = StepDraws(0, 7, torch.device("cpu"), rank=1, world=2).uniforms(2)
        >>> bool((second == alone[1::2]).all())
        True
    """

    def __init__(
        self, seed: int, number: int, device: torch.device, *, rank: int = 0, world: int = 1
    ) -> None:
        self.device, self.rank, self.world = device, rank, world
        self.generator = torch.Generator(device).manual_seed(mixed(seed, number, _APART))

    def uniforms(self, count: int, *shape: int) -> Float[Tensor, "b ..."]:
        """Return numbers even in [0, 1), of a shape for each of `count` samples."""
        return self._own(torch.rand, count, shape)

    def normals(self, count: int, *shape: int) -> Float[Tensor, "b ..."]:
        """Return numbers of mean 0 and spread 1, of a shape for each of `count` samples."""
        return self._own(torch.randn, count, shape)

    def _own(self, draw: Callable[..., Tensor], count: int, shape: tuple[int, ...]) -> Tensor:
        drawn = draw((count * self.world, *shape), generator=self.generator, device=self.device)
        return drawn[self.rank :: self.world]


def step_draws(task: Task) -> StepDraws:
    """Return what a task draws at its present step, from the seed of the run."""
    trainer = task.trainer
    return StepDraws(
        getattr(task, "seed", None) or 0,
        trainer.fit_loop.total_batch_idx,
        task.device,
        rank=trainer.global_rank,
        world=trainer.world_size,
    )
