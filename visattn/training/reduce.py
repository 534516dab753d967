"""Reductions over processes, and random numbers of a step."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Shaped
from lightning import LightningModule
from torch import Tensor, distributed

from visattn.data.loading import mix_seed

T = TypeVar("T")
_SAMPLE_STREAM = 2**32  # instead of the rank, so that these numbers differ from those of dropout


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seed PyTorch on the CPU and a device, so that a resumed run gets the same random numbers.

    The step is the index of the training batch in the run; each rank draws different numbers.

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
    """Random numbers for the samples of a step, independent of the number of processes.

    Each process draws for the samples of all processes and keeps its own: of w processes, process
    r has samples r, r + w, r + 2w, ... of a single process.

    Example:
        >>> single = StepGenerator(0, 7, torch.device("cpu")).rand(4)
        >>> second = StepGenerator(0, 7, torch.device("cpu"), rank=1, world_size=2).rand(2)
        >>> bool((second == single[1::2]).all())
        True
    """

    def __init__(
        self, seed: int, step: int, device: torch.device, *, rank: int = 0, world_size: int = 1
    ) -> None:
        self.device = device
        self.rank = rank
        self.world_size = world_size
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


def world_size() -> int:
    """Return the number of processes.

    Example:
        >>> world_size()
        1
    """
    initialized = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if initialized else 1


def ddp_loss_scale(count: int | Tensor, device: torch.device) -> float | Float[Tensor, ""]:
    """Return the factor of a local mean loss, so that the DDP average is the mean over all samples.

    DDP averages gradients over processes with equal weights, although their losses are means over
    different numbers of words or samples. The factor is `count * world_size / total count`.

    Example:
        >>> ddp_loss_scale(3, torch.device("cpu"))
        1.0
    """
    if world_size() == 1:
        return 1.0
    # `full` needs no copy from the host, which would synchronize with the device.
    own = count if isinstance(count, Tensor) else torch.full((), float(count), device=device)
    gathered = own.to(device, torch.float32, copy=True)
    distributed.all_reduce(gathered)
    # Example: the mean a of 3 words in one process and b of 1 word in another get factors 1.5 and
    # 0.5, so that the average of DDP is (3 a + b) / 4, the mean of all four words.
    return count * world_size() / gathered.clamp(min=1)


def all_reduce(value: Shaped[Tensor, "*n"], *, largest: bool = False) -> Shaped[Tensor, "*n"]:
    """Return the sum or maximum of a tensor over all processes.

    Example:
        >>> all_reduce(torch.tensor(3.0))
        tensor(3.)
    """
    gathered = value.detach().clone()
    if world_size() > 1:
        reduction = distributed.ReduceOp.MAX if largest else distributed.ReduceOp.SUM
        distributed.all_reduce(gathered, op=reduction)
    return gathered


def all_reduce_std(values: Float[Tensor, "*n"]) -> Float[Tensor, ""]:
    """Return the unbiased standard deviation of the values of all processes.

    Example:
        >>> all_reduce_std(torch.tensor([1.0, 3.0]))
        tensor(1.4142)
    """
    local = values.detach().double()
    sums = torch.stack([local.new_tensor(local.numel()), local.sum(), local.square().sum()])
    count, total, squares = all_reduce(sums).unbind()
    variance = (squares - total.square() / count).clamp(min=0) / (count - 1)
    return variance.sqrt().to(values.dtype)


def all_gather(value: T) -> list[T]:
    """Return the values of all processes.

    Example:
        >>> all_gather({"a": 1})
        [{'a': 1}]
    """
    gathered: list[Any] = [value] * world_size()
    if len(gathered) > 1:
        distributed.all_gather_object(gathered, value)
    return gathered


def all_gather_union(names: Iterable[str]) -> list[str]:
    """Return the sorted union of names over all processes, such as the metrics to log.

    Processes would hang on a metric that only some of them log.

    Example:
        >>> all_gather_union({"b", "a"})
        ['a', 'b']
    """
    return sorted(set().union(*all_gather(set(names))))
