"""Soft attention trained on relaxed samples of positions at the end of training."""

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from visattn.models.captioning.show_attend_tell import SoftAttention


class RelaxedPlaces(Callback):
    """Train soft attention on relaxed samples of positions, after a fraction of the run.

    The expected feature of two objects identifies both, so a captioner may look at one object and
    name the other without a higher loss. A relaxed sample is close to a single position, which must
    then identify the word by itself, so that the maximum of a map is on the object of its word.
    Gradients pass through the sample, without REINFORCE. Validation, test and captions use the
    expectation, as usual.

    Args:
        start: Fraction of the steps after which samples are used; maps must point at objects by
            then, since a sample of a uniform map is uninformative.
        temperature: Temperature of the Gumbel softmax; lower is closer to a single position.

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
        """Check that the model has soft attention."""
        if stage == "fit":
            _soft_attention(pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Enable sampling from the given step on, also in a resumed run."""
        begin = self.start * trainer.estimated_stepping_batches
        sampling = trainer.global_step >= begin
        _soft_attention(pl_module).sample_temperature = self.temperature if sampling else None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Disable sampling."""
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
