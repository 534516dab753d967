"""Random numbers of a training step, from the seed of the run and the number of the step alone."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from lightning import LightningModule
from torch import Tensor

from visattn.data.loading.samplers import mix_seed

_SAMPLE_STREAM = 2**32  # in place of the rank, so that these numbers differ from those of dropout


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seed PyTorch on the CPU and on a device, so that a resumed run draws the same numbers.

    Args:
        seed: Seed of the run.
        step: Index of the training batch in the run.
        rank: Rank of the process; each draws different numbers.
        device: Device of the model.

    Example:
        >>> seed_step(3, 7, 0, torch.device("cpu"))
        >>> first = torch.rand(2)
        >>> seed_step(3, 7, 0, torch.device("cpu"))
        >>> bool((torch.rand(2) == first).all())
        True
    """
    state = mix_seed(seed, step, rank)
    torch.default_generator.manual_seed(state)  # torch.manual_seed costs a hundred times as much
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(state)


class StepGenerator:
    """Random numbers for the samples of a step, the same for any number of processes.

    Each process draws for the samples of all processes and keeps its own: of w processes, process
    r has samples r, r + w, r + 2w, ... of a single process.

    Args:
        seed: Seed of the run.
        step: Index of the training batch in the run.
        device: Device of the model.
        rank: Rank of this process.
        world_size: Number of processes.

    Example:
        >>> single = StepGenerator(0, 7, torch.device("cpu")).rand(4)
        >>> second = StepGenerator(0, 7, torch.device("cpu"), rank=1, world_size=2).rand(2)
        >>> bool((second == single[1::2]).all())
        True
    """

    def __init__(
        self, seed: int, step: int, device: torch.device, *, rank: int = 0, world_size: int = 1
    ) -> None:
        self.device, self.rank, self.world_size = device, rank, world_size
        self.generator = torch.Generator(device).manual_seed(mix_seed(seed, step, _SAMPLE_STREAM))

    def rand(self, count: int, *shape: int) -> Float[Tensor, "b ..."]:
        """Return uniform numbers in [0, 1) of a shape for each of `count` samples."""
        return self._draw(torch.rand, count, shape)

    def randn(self, count: int, *shape: int) -> Float[Tensor, "b ..."]:
        """Return standard normal numbers of a shape for each of `count` samples."""
        return self._draw(torch.randn, count, shape)

    def _draw(self, draw: Callable[..., Tensor], count: int, shape: tuple[int, ...]) -> Tensor:
        size = (count * self.world_size, *shape)
        return draw(size, generator=self.generator, device=self.device)[
            self.rank :: self.world_size
        ]


def step_generator(task: LightningModule) -> StepGenerator:
    """Return the generator of a task at its current step."""
    trainer = task.trainer
    return StepGenerator(
        getattr(task, "seed", None) or 0,
        trainer.fit_loop.total_batch_idx,
        task.device,
        rank=trainer.global_rank,
        world_size=trainer.world_size,
    )
