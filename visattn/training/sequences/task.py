"""Training of sequence recognizers: cross-entropy of the symbols, errors of whole sequences."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torchmetrics.functional.text import edit_distance

from visattn.data.classification.digit_sequences import DigitSequenceBatch
from visattn.metrics.grounding import attention_correctness, box_coverage, pointing_hit
from visattn.models.captioning.captioner import Captioner, TeacherForcedOutput
from visattn.results.kinds import END, IGNORE_LABEL, PAD, SPECIAL_TOKENS, START, UNKNOWN
from visattn.training.metrics import Evaluation, Means
from visattn.training.optim import OptimConfig
from visattn.training.reduce import all_gather_union, ddp_loss_scale
from visattn.training.task import Task

SEQUENCE_METRICS = ("sequence_error", "digit_error", "loss")
SEQUENCE_MAP_METRICS = ("pointing_game", "correctness", "uniform_baseline")


class SequenceScores(Evaluation):
    """Metrics of recognized sequences, and of the attention of their symbols.

    `sequence_error`: fraction of the sequences with a wrong symbol or a wrong length.
    `digit_error`: edit distance to the true sequences per true symbol. `loss`: updated by the task.
    `pointing_game`: how often the maximum cell of a map overlaps the box of its symbol.
    `correctness`: the attention inside the box; `uniform_baseline`: that of uniform attention.

    Example:
        >>> scores = SequenceScores()
        >>> scores.update(["314", "27"], ["314", "2"])
        >>> scores.means.compute("sequence_error", "digit_error")
        {'sequence_error': tensor(0.5000), 'digit_error': tensor(0.2500)}

    Source:
        Pointing: Zhang et al. 2016, arXiv:1608.00507, with half a cell as the tolerance, since a
        narrow digit may not contain the center of a cell.
    """

    names = SEQUENCE_METRICS

    def __init__(self) -> None:
        super().__init__()
        self.means = Means(*SEQUENCE_METRICS, *SEQUENCE_MAP_METRICS)

    def update(self, predicted: Sequence[str], true: Sequence[str]) -> None:
        """Add predicted sequences and the true ones."""
        errors = sum(a != b for a, b in zip(predicted, true, strict=True))
        edits = edit_distance(list(predicted), list(true), reduction="sum")
        self.means.add(sequence_error=(errors, len(true)), digit_error=(edits, sum(map(len, true))))

    def update_map(self, weights: Float[Tensor, "gy gx"], box: Float[Tensor, "4"]) -> None:
        """Add the map of a symbol and its box: left, top, right, bottom, as fractions."""
        rows, columns = weights.shape
        coverage = box_coverage(box[None], (rows, columns))
        # Extended by half a cell: the center of a cell is in the larger box if the cell overlaps
        # the box.
        reach = box.new_tensor([-0.5 / columns, -0.5 / rows, 0.5 / columns, 0.5 / rows])
        self.means.add(
            pointing_game=(pointing_hit(weights, (box + reach)[None]), 1),
            correctness=(attention_correctness(weights, coverage), 1),
            uniform_baseline=(coverage.mean(), 1),
        )

    def compute(self) -> dict[str, Tensor]:
        """Return all metrics by name; those of maps if any process updated them."""
        has_maps = self.means["correctness"].update_called
        maps = all_gather_union(SEQUENCE_MAP_METRICS if has_maps else ())
        return self.means.compute(*SEQUENCE_METRICS, *(SEQUENCE_MAP_METRICS if maps else ()))


_OPTIM = OptimConfig(warmup_steps=100)


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
        optim: The optimizer, by default AdamW with a learning rate of 2e-3 and a weight decay of
            1e-2.
        label_smoothing: Label smoothing of the cross-entropy.
        beam_size: Beam size of the search in validation and test.
        monitor: The validation metric that selects the best checkpoint.
    """

    model: Captioner
    default_optimizer = staticmethod(partial(AdamW, lr=2e-3, weight_decay=1e-2))

    def __init__(
        self,
        captioner: Callable[[list[str]], Captioner],
        data_info: dict[str, Any],
        *,
        optim: OptimConfig = _OPTIM,
        label_smoothing: float = 0.0,
        beam_size: int = 3,
        monitor: str = "val/sequence_error",
    ) -> None:
        super().__init__(captioner(data_info["words"]), optim, monitor)
        self.label_smoothing = label_smoothing
        self.beam_size = beam_size
        self.max_length = 2 * data_info["max_length"]
        self.add_evaluations(SequenceScores)

    def training_step(self, batch: DigitSequenceBatch, batch_idx: int) -> Tensor:
        """Return the cross-entropy per symbol, end tokens included."""
        features = self.model.encoder(batch.images.expand(-1, 3, -1, -1))
        output, targets, _ = self._teacher_force(features, batch)
        loss = cross_entropy(output.logits, targets, label_smoothing=self.label_smoothing)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch.images))
        return loss * ddp_loss_scale(len(targets), loss.device)

    def evaluate(self, batch: DigitSequenceBatch, split: str) -> None:
        """Update the metrics of a split; those of maps only outside of `fit`."""
        scores: SequenceScores = self.evaluation(split)
        features = self.model.encoder(batch.images.expand(-1, 3, -1, -1))
        output, targets, order = self._teacher_force(features, batch)
        loss = cross_entropy(output.logits, targets, reduction="sum")
        scores.means.add(loss=(loss, len(targets)))
        best = self.model.search(features, beam_size=self.beam_size, max_length=self.max_length)
        predicted = [self._text(tokens) for tokens in best.tokens[:, 0]]
        true = [self._text(tokens) for tokens in self._tokens(batch)]
        scores.update(predicted, true)
        if not self.fitting and torch.equal(batch.lengths, batch.num_digits):  # not needed for sums
            self._update_maps(scores, output, batch, order)

    def _update_maps(
        self,
        scores: SequenceScores,
        output: TeacherForcedOutput,
        batch: DigitSequenceBatch,
        order: Int[Tensor, " b"],
    ) -> None:
        """Score the maps of the true digits against their boxes."""
        rows, columns = self.model.encoder.grid_size
        height, width = batch.images.shape[-2:]
        images = order[output.rows]
        digits = output.steps
        shown = digits < batch.num_digits[images]  # not the end token
        boxes = batch.boxes[images[shown], digits[shown]] / batch.boxes.new_tensor(
            [width, height, width, height]
        )
        maps = output.attention.weights[shown].float().unflatten(-1, (rows, columns)).cpu()
        for weights, box in zip(maps, boxes.cpu(), strict=True):
            scores.update_map(weights, box)

    def _teacher_force(
        self, features: Float[Tensor, "b c y x"], batch: DigitSequenceBatch
    ) -> tuple[TeacherForcedOutput, Int[Tensor, " p"], Int[Tensor, " b"]]:
        """Return the output for the true sequences, the targets, and the order of the images."""
        # Labels 3 7 and padding, read as START 3 7 with the targets 3 7 END: `lengths + 1` words.
        # Later columns are not read.
        order = batch.lengths.argsort(descending=True, stable=True)
        lengths = batch.lengths[order]
        tokens = self._tokens(batch)[order]
        start, end = (torch.full_like(tokens[:, :1], token) for token in (START, END))
        targets = torch.cat((tokens.masked_fill(tokens == PAD, END), end), 1)
        inputs = torch.cat((start, tokens), 1)
        output = self.model.teacher_force(features, inputs, lengths + 1, order)
        return output, targets[output.rows, output.steps], order

    def _tokens(self, batch: DigitSequenceBatch) -> Int[Tensor, "b t"]:
        """Return the vocabulary indices of the labels, with `PAD` for padding."""
        padding = batch.labels == IGNORE_LABEL
        return (batch.labels + len(SPECIAL_TOKENS)).masked_fill(padding, PAD)

    def _text(self, tokens: Int[Tensor, " t"]) -> str:
        return "".join(self.model.words[token] for token in tokens.tolist() if token > UNKNOWN)
