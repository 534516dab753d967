"""How the learning rate moves over a run."""

import math
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def with_schedule(optimizer: Optimizer, share: Callable[[int], float]) -> dict[str, Any]:
    """Return an optimizer with its schedule, as `configure_optimizers` returns them.

    Args:
        optimizer: Each parameter group is multiplied once by the `rate` that it says.
        share: The share of the learning rate at each step.
    """
    for group in optimizer.param_groups:
        group["lr"] *= group["rate"]
    schedule = {"scheduler": LambdaLR(optimizer, share), "interval": "step"}
    return {"optimizer": optimizer, "lr_scheduler": schedule}


def trapezoid(
    step: int, total: int, *, warm: int = 0, hold: float = 0.4, last: float = 0.02
) -> float:
    """Return the share of the full learning rate at a step: up, level, then down in a line.

    Args:
        step: Steps done.
        total: Steps of the whole run.
        warm: Steps of the way up.
        hold: Share of the run after which it goes down.
        last: Share of the rate that is left at the end.

    Example:
        >>> [round(trapezoid(step, 10, warm=2, hold=0.5, last=0.0), 2) for step in (0, 1, 4, 6, 10)]
        [0.5, 1.0, 1.0, 0.8, 0.0]
    """
    rising = min(1.0, (step + 1) / (warm + 1e-9)) if warm else 1.0
    done = min(1.0, step / total)
    falling = 1.0 if done <= hold else 1.0 - (1.0 - last) * (done - hold) / (1.0 - hold)
    return min(rising, falling)


def cosine(step: int, total: int, *, warm: int = 0, last: float = 0.0) -> float:
    """Return the share of the full learning rate at a step: up in a line, down as a half cosine.

    Args:
        step: Steps done.
        total: Steps of the whole run.
        warm: Steps of the way up, which are part of the whole.
        last: Share of the rate that is left at the end.

    Example:
        >>> [round(cosine(step, 10, warm=2), 3) for step in (0, 1, 2, 6, 10)]
        [0.5, 1.0, 1.0, 0.5, 0.0]

    Source:
        Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5, without restarts.
    """
    if step < warm:
        return (step + 1) / warm
    done = min(1.0, (step - warm) / max(1, total - warm))
    return last + (1.0 - last) * (1.0 + math.cos(math.pi * done)) / 2.0
