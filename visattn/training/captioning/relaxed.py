"""Soft attention that reads relaxed samples of places at the end of training."""

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from visattn.models.captioning.show_attend_tell import SoftAttention


class RelaxedPlaces(Callback):
    """Train soft attention on relaxed samples of places, from a fraction of the run on.

    The expected feature of two objects tells both, so a captioner may look at one object and name
    the other: nothing in the loss speaks against it. A relaxed sample is nearly one place, which
    must then tell the word by itself, so that the maximum of a map lies on the object of its word.
    Gradients pass through the sample, without REINFORCE. Validation, test and captions read the
    expectation, as always.

    Args:
        start: Fraction of the steps after which samples are read; the maps must point at objects
            by then, as a sample of a flat map tells nothing.
        temperature: Temperature of the Gumbel softmax; the lower, the closer a sample to one place.

    Raises:
        ValueError: In `fit`, if the model has no soft attention.

    Example:
        >>> RelaxedPlaces(start=0.8).temperature
        0.7

    Source:
        Jang et al. 2017, arXiv:1611.01144; Maddison et al. 2017, arXiv:1611.00712.
    """

    def __init__(self, start: float = 0.75, temperature: float = 0.7) -> None:
        self.start = start
        self.temperature = temperature

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse models without soft attention."""
        if stage == "fit":
            _soft_attention(pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Sample from the given step on, also in a run that is resumed after it."""
        begin = self.start * trainer.estimated_stepping_batches
        sampling = trainer.global_step >= begin
        _soft_attention(pl_module).sample_temperature = self.temperature if sampling else None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the model as it was."""
        _soft_attention(pl_module).sample_temperature = None


def _soft_attention(task: LightningModule) -> SoftAttention:
    attention = getattr(getattr(task.model, "decoder", None), "attention", None)
    if type(attention) is not SoftAttention:
        raise ValueError(
            "RelaxedPlaces needs a captioner with soft attention (ShowAttendTell), got "
            f"{type(task.model).__name__} with {type(attention).__name__}; drop it with "
            "--trainer.callbacks null"
        )
    return attention
