"""Training of sequence recognizers: cross-entropy of the symbols, errors of whole sequences."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from visattn.data.classification.digit_sequences import DigitSequenceBatch
from visattn.models.captioner import Captioner, TeacherForcedOutput
from visattn.results.kinds import END, IGNORE_LABEL, PAD, SPECIAL_TOKENS, START, UNKNOWN
from visattn.training.callbacks.monitor import monitor_with_mode
from visattn.training.data_module import InputSpec
from visattn.training.distributed.reduce import ddp_loss_scale
from visattn.training.metrics.sequences import (
    SEQUENCE_MAP_METRICS,
    SEQUENCE_METRICS,
    SequenceScores,
)
from visattn.training.optim import OptimizerFactory, Schedule, trapezoid
from visattn.training.task import Task

_ADAMW = partial(AdamW, lr=2e-3, weight_decay=1e-2)


class SequenceRecognitionTask(Task):
    """Train a captioner to read sequences of digits.

    `sequence_error` is the fraction of images with a wrong digit or a wrong number of digits.
    `digit_error` is the edit distance to the true sequences per true digit. They are errors of the
    sequences that beam search finds. Outside of `fit`, the maps of the true digits (teacher
    forcing) are scored too: `pointing_game` is how often the maximum cell overlaps the box of its
    digit, `correctness` the attention inside of the box, `uniform_baseline` that of uniform
    attention.

    Args:
        captioner: The model; it gets its vocabulary from the data.
        data_info: Values that the data module provides; `words` is the vocabulary.
        optimizer: The optimizer; by default AdamW with a learning rate of 2e-3 and a weight decay
            of 1e-2.
        warmup_steps: Steps of linear warmup.
        decay_start: Fraction of the run after which the learning rate decays linearly.
        label_smoothing: Label smoothing of the cross-entropy.
        beam_size: Beam size of the search in validation and test.
        monitor: The validation metric that selects the best checkpoint.
    """

    model: Captioner[Any]
    val_scores = tuple(f"val/{name}" for name in SEQUENCE_METRICS)

    def __init__(
        self,
        captioner: Callable[[list[str]], Captioner[Any]],
        data_info: dict[str, Any],
        *,
        optimizer: OptimizerFactory | None = None,
        warmup_steps: int = 100,
        decay_start: float = 0.4,
        label_smoothing: float = 0.0,
        beam_size: int = 3,
        monitor: str = "val/sequence_error",
    ) -> None:
        super().__init__(captioner(data_info["words"]))
        self.optimizer = optimizer or _ADAMW
        self.warmup_steps, self.decay_start = warmup_steps, decay_start
        self.label_smoothing, self.beam_size = label_smoothing, beam_size
        self.monitor = monitor_with_mode(monitor)
        self.max_length = 2 * data_info["max_length"]
        self.scores = SequenceScores()
        self.maps_scored = False

    @property
    def input_spec(self) -> InputSpec:
        """The input of the encoder, and the encoder itself."""
        encoder = self.model.encoder
        return InputSpec(encoder.img_size, encoder.mean, encoder.std, encoder)

    def lr_schedule(self) -> Schedule:
        """Return linear warmup, a constant phase and linear decay."""
        return partial(trapezoid, warmup_steps=self.warmup_steps, decay_start=self.decay_start)

    def training_step(self, batch: DigitSequenceBatch, batch_idx: int) -> Tensor:
        """Return the cross-entropy per symbol, end tokens included."""
        features = self.model.encoder(batch.images.expand(-1, 3, -1, -1))
        output, targets, _ = self._teacher_force(features, batch)
        loss = cross_entropy(output.logits, targets, label_smoothing=self.label_smoothing)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch.images))
        return loss * ddp_loss_scale(len(targets), loss.device)

    def validation_step(self, batch: DigitSequenceBatch, batch_idx: int) -> None:
        """Update the metrics; those of maps outside of `fit` only."""
        self._update(batch, maps=self.trainer.state.fn != "fit")

    def test_step(self, batch: DigitSequenceBatch, batch_idx: int) -> None:
        """Update the metrics."""
        self._update(batch, maps=True)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_metrics("test")

    def _update(self, batch: DigitSequenceBatch, *, maps: bool) -> None:
        features = self.model.encoder(batch.images.expand(-1, 3, -1, -1))
        output, targets, order = self._teacher_force(features, batch)
        loss = cross_entropy(output.logits, targets, reduction="sum")
        self.scores["loss"].update(loss, len(targets))
        predicted = self._search(features)
        true = [self._text(tokens) for tokens in self._tokens(batch)]
        self.scores.update(predicted, true)
        if maps and torch.equal(batch.lengths, batch.num_digits):  # not for sums
            self._update_maps(output, batch, order)
            self.maps_scored = True

    def _update_maps(
        self, output: TeacherForcedOutput, batch: DigitSequenceBatch, order: Int[Tensor, " b"]
    ) -> None:
        """Score the maps of the true digits against their boxes."""
        rows, columns = self.model.encoder.grid_size
        height, width = batch.images.shape[-2:]
        images, digits = order[output.rows], output.steps
        shown = digits < batch.num_digits[images]  # not the end token
        boxes = batch.boxes[images[shown], digits[shown]] / batch.boxes.new_tensor(
            [width, height, width, height]
        )
        boxes = self.model.encoder.boxes_to_cells(boxes)
        maps = output.attention.weights[shown].float().unflatten(-1, (rows, columns)).cpu()
        for weights, box in zip(maps, boxes.cpu(), strict=True):
            self.scores.update_map(weights, box)

    def _log_metrics(self, split: str) -> None:
        for name in (*SEQUENCE_METRICS, *(SEQUENCE_MAP_METRICS if self.maps_scored else ())):
            self.log(f"{split}/{name}", self.scores[name], prog_bar=name == "sequence_error")
        self.maps_scored = False

    def _teacher_force(
        self, features: Float[Tensor, "b c y x"], batch: DigitSequenceBatch
    ) -> tuple[TeacherForcedOutput, Int[Tensor, " p"], Int[Tensor, " b"]]:
        """Return the output for the true sequences, the targets, and the order of the images."""
        order = batch.lengths.argsort(descending=True, stable=True)
        lengths, tokens = batch.lengths[order], self._tokens(batch)[order]
        start, end = (torch.full_like(tokens[:, :1], token) for token in (START, END))
        targets = torch.cat((tokens.masked_fill(tokens == PAD, END), end), 1)
        inputs = torch.cat((start, tokens), 1)
        output = self.model.teacher_force(features, inputs, lengths + 1, order)
        return output, targets[output.rows, output.steps], order

    def _tokens(self, batch: DigitSequenceBatch) -> Int[Tensor, "b t"]:
        """Return the vocabulary indices of the labels; those of padding are `PAD`."""
        padding = batch.labels == IGNORE_LABEL
        return (batch.labels + len(SPECIAL_TOKENS)).masked_fill(padding, PAD)

    def _search(self, features: Float[Tensor, "b c y x"]) -> list[str]:
        """Return the sequence of each image that beam search finds."""
        output = self.model.search(features, beam_size=self.beam_size, max_length=self.max_length)
        return [self._text(tokens) for tokens in output.tokens[:, 0]]

    def _text(self, tokens: Int[Tensor, " t"]) -> str:
        return "".join(self.model.words[token] for token in tokens.tolist() if token > UNKNOWN)
