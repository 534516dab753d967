"""How far a run is, and how long the rest of it takes."""

import math
import time
from datetime import timedelta

from lightning import Trainer
from lightning.pytorch.callbacks import Timer


class RunPace:
    """How many optimizer steps a run has, and how long the remaining ones take.

    The time of a step is the mean since training started or resumed, validation included.

    Args:
        first: Steps that were done before; more than 0 when a run resumes.
        total: Steps of the whole run; infinite if nothing ends it.

    Example:
        >>> pace = RunPace(first=40, total=60)
        >>> pace.started -= 7.0  # as if 7 seconds had passed
        >>> round(pace.seconds_left(54))
        3
    """

    def __init__(self, *, first: int, total: float) -> None:
        self.first, self.total = first, total
        self.started = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since training started or resumed."""
        return time.monotonic() - self.started

    def seconds_left(self, done: int) -> float:
        """Return the remaining seconds; infinite as long as there is nothing to tell it from."""
        steps = done - self.first
        if steps < 2 or not math.isfinite(self.total):
            return math.inf
        return self.elapsed * max(0.0, self.total - done) / steps


def planned_steps(trainer: Trainer) -> float:
    """Return the step at which training ends by `max_steps` or `max_epochs`; else infinity."""
    steps = trainer.estimated_stepping_batches
    return steps if steps >= 0 else math.inf


def planned_epochs(trainer: Trainer) -> int | None:
    """Return how many epochs training takes part of; None if that is not known."""
    steps, batches = planned_steps(trainer), trainer.num_training_batches
    if not math.isfinite(steps) or not math.isfinite(batches) or not batches:
        return None
    return math.ceil(steps / math.ceil(batches / trainer.accumulate_grad_batches))


def seconds_left(trainer: Trainer, pace: RunPace) -> float:
    """Return the remaining seconds by steps or by `max_time`, whichever is over first."""
    timers = [one for one in trainer.callbacks if isinstance(one, Timer)]  # type: ignore[attr-defined]
    limits = [left for timer in timers if (left := timer.time_remaining()) is not None]
    return min([pace.seconds_left(trainer.global_step), *limits])


def epoch_text(trainer: Trainer, epoch: int) -> str:
    """Return which epoch it is, counted from 1, and of how many if that is known."""
    epochs = planned_epochs(trainer)
    return f"epoch {epoch + 1}" + (f" of {max(epochs, epoch + 1)}" if epochs else "")


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds.

    Example:
        >>> clock(3725.5), clock(math.inf)
        ('1:02:05', '-:--:--')
    """
    return str(timedelta(seconds=int(seconds))) if math.isfinite(seconds) else "-:--:--"
