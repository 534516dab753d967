"""Optimizers with learning-rate multipliers, and learning-rate schedules."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

_Part = TypeVar("_Part", bound=str)
OptimizerFactory = Callable[[Iterable[Any]], Optimizer]


class Schedule(Protocol):
    """A function from the step and the total number of steps to a learning-rate factor."""

    def __call__(self, step: int, total_steps: int) -> float:
        """Return the factor at a step."""
        ...


@dataclass(frozen=True)
class OptimizerGroup:
    """Parameters with their learning-rate multiplier.

    Args:
        parameters: Those that do not require a gradient are left out.
        lr_mult: Learning rate as a multiple of the optimizer's.
        options: Further options of the optimizer, such as `weight_decay`.
    """

    parameters: Sequence[nn.Parameter]
    lr_mult: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


def weight_decay_groups(
    parameters: Mapping[_Part, Sequence[nn.Parameter]],
    lr_mults: Mapping[_Part, float],
    no_weight_decay: Iterable[nn.Parameter],
) -> list[OptimizerGroup]:
    """Return each part of a model as two groups, with and without weight decay.

    Args:
        parameters: Parameters of each part.
        lr_mults: Learning rate of each part, as a multiple of the optimizer's.
        no_weight_decay: Parameters without weight decay, such as biases.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> parts = {"head": [layer.weight, layer.bias]}
        >>> groups = weight_decay_groups(parts, {"head": 0.5}, [layer.bias])
        >>> [(len(group.parameters), group.lr_mult, dict(group.options)) for group in groups]
        [(1, 0.5, {}), (1, 0.5, {'weight_decay': 0})]
    """
    no_decay = {id(weight) for weight in no_weight_decay}
    return [
        OptimizerGroup(
            [weight for weight in weights if (id(weight) in no_decay) != decay],
            lr_mults[part],
            {} if decay else {"weight_decay": 0},
        )
        for part, weights in parameters.items()
        for decay in (True, False)
    ]


def build_optimizer(
    factory: OptimizerFactory,
    groups: Iterable[OptimizerGroup],
    schedule: Schedule,
    *,
    total_steps: int,
) -> dict[str, Any]:
    """Return an optimizer with its schedule, in the form that `configure_optimizers` returns.

    Args:
        factory: Builds the optimizer from parameter groups.
        groups: Groups without trained parameters are left out.
        schedule: The factor of the learning rate at each step.
        total_steps: Optimizer steps of the whole run.
    """
    options = [
        {"params": trained, "lr_mult": group.lr_mult, **group.options}
        for group in groups
        if (trained := [weight for weight in group.parameters if weight.requires_grad])
    ]
    optimizer = factory(options)
    for group in optimizer.param_groups:
        group["lr"] *= group["lr_mult"]
    scheduler = LambdaLR(optimizer, partial(schedule, total_steps=total_steps))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def constant(step: int, total_steps: int) -> float:  # noqa: ARG001 (a `Schedule`)
    """Return 1: the learning rate does not change.

    Example:
        >>> constant(3, 10)
        1.0
    """
    return 1.0


def trapezoid(
    step: int,
    total_steps: int,
    *,
    warmup_steps: int = 0,
    decay_start: float = 0.4,
    final_fraction: float = 0.02,
) -> float:
    """Return the learning-rate factor of linear warmup, a constant phase and linear decay.

    Args:
        step: Number of steps done.
        total_steps: Number of steps of the run.
        warmup_steps: Number of warmup steps.
        decay_start: Fraction of the run after which the learning rate decays.
        final_fraction: The factor at the end of the run.

    Example:
        >>> schedule = {"warmup_steps": 2, "decay_start": 0.5, "final_fraction": 0.0}
        >>> [round(trapezoid(step, 10, **schedule), 2) for step in (0, 1, 4, 6, 10)]
        [0.5, 1.0, 1.0, 0.8, 0.0]
    """
    warmup = min(1.0, (step + 1) / (warmup_steps + 1e-9)) if warmup_steps else 1.0
    progress = min(1.0, step / total_steps)
    if progress <= decay_start:
        return min(warmup, 1.0)
    decay = 1.0 - (1.0 - final_fraction) * (progress - decay_start) / (1.0 - decay_start)
    return min(warmup, decay)


def cosine(
    step: int, total_steps: int, *, warmup_steps: int = 0, final_fraction: float = 0.0
) -> float:
    """Return the learning-rate factor of linear warmup and cosine annealing without restarts.

    Args:
        step: Number of steps done.
        total_steps: Number of steps of the run, those of the warmup included.
        warmup_steps: Number of warmup steps.
        final_fraction: The factor at the end of the run.

    Example:
        >>> [round(cosine(step, 10, warmup_steps=2), 3) for step in (0, 1, 2, 6, 10)]
        [0.5, 1.0, 1.0, 0.5, 0.0]

    Source:
        Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5, without restarts.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return final_fraction + (1.0 - final_fraction) * (1.0 + math.cos(math.pi * progress)) / 2.0


def warmup_schedule(
    name: Literal["cosine", "trapezoid"], warmup_steps: int, decay_start: float
) -> Schedule:
    """Return a schedule by its name; `decay_start` belongs to `trapezoid`.

    Example:
        >>> [round(warmup_schedule(name, 2, 0.5)(10, 20), 3) for name in ("cosine", "trapezoid")]
        [0.587, 1.0]
    """
    if name == "cosine":
        return partial(cosine, warmup_steps=warmup_steps)
    return partial(trapezoid, warmup_steps=warmup_steps, decay_start=decay_start)
