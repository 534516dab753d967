"""Training a captioner."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import AdamW, Optimizer

from visattn.data.captions.batch import CaptionBatch
from visattn.data.phrases.grounding import Words, supervised_words
from visattn.functional.captioning.losses import (
    Reduction,
    attention_supervision,
    caption_loss,
    doubly_stochastic_penalty,
    packed_targets,
)
from visattn.models.captioner import Captioner, TeacherForcedOutput
from visattn.training.callbacks.monitor import monitor_of
from visattn.training.checkpoint.reader import read_model
from visattn.training.distributed.reduce import fair_share, processes
from visattn.training.optim import trapezoid, with_schedule
from visattn.training.tasks.caption_eval import CaptionEvalTask
from visattn.training.tasks.caption_generation import read

ADAMW = partial(AdamW, lr=2e-3, weight_decay=1e-2)


class CaptioningTask(CaptionEvalTask):
    """Train a captioner on images with captions.

    What validation and test say of it depends on what is known of the images: where they are
    drawn scenes, how many generated captions are true; where people wrote captions, BLEU, ROUGE-L
    and CIDEr-D; where it is known what lies where, whether attention lay on what words speak of.
    The test adds controls.

    Args:
        captioner: The captioner; it gets its words from the data.
        data_info: What the data tells of itself; `words` is the vocabulary, `known` what captions
            can be scored by: `scenes`, `references`.
        penalty: Weight of the doubly stochastic penalty; 0 leaves it out.
        reduction: How loss and penalty are summed: as in the `paper`, as in the authors' code
            (`arctic`), or as the `mean` over words.
        smoothing: Share of label smoothing.
        supervision: Weight of the loss that draws attention to the boxes of phrases, where the data
            has such; 0 leaves it out.
        supervised: Which words of a phrase it is for: `all`, or the `last` one.
        optimizer: The optimizer; by default AdamW with a rate of 2e-3 and a weight decay of 1e-2.
        encoder_rate: Learning rate of the encoder, as a multiple of the optimizer's.
        warm: Steps in which the learning rate rises.
        hold: Share of the run after which the learning rate falls.
        beam: Captions searched at once per image in validation and test.
        length_penalty: Exponent of the length penalty of this search; 0 compares log-probabilities,
            which favors short captions.
        best_by: The validation score by which the best checkpoint is chosen. By default `val/truth`
            where the data are drawn scenes, `val/cider-d` where they have references, else
            `val/loss`.
        start: A checkpoint of a captioner of the same make, with the same words: its weights are
            what training starts from. To go on with a run as it was, there is `--ckpt_path`.
    """

    def __init__(
        self,
        captioner: Callable[[list[str]], Captioner],
        data_info: dict[str, Any],
        *,
        penalty: float = 0.0,
        reduction: Reduction = "mean",
        smoothing: float = 0.0,
        supervision: float = 0.0,
        supervised: Words = "all",
        optimizer: Callable[[Iterable[Any]], Optimizer] | None = None,
        encoder_rate: float = 1.0,
        warm: int = 100,
        hold: float = 0.4,
        beam: int = 5,
        length_penalty: float = 0.0,
        best_by: str | None = None,
        start: str | None = None,
    ) -> None:
        if min(penalty, encoder_rate, supervision) < 0:
            raise ValueError(
                "penalty, encoder_rate and supervision must be >= 0, "
                f"got {penalty}, {encoder_rate} and {supervision}"
            )
        super().__init__(
            captioner(data_info["words"]),
            beam=beam,
            length_penalty=length_penalty,
            known=data_info.get("known"),
        )
        if start is not None:
            self._start_from(Path(start))
        self.reduction: Reduction = reduction
        self.penalty, self.smoothing = penalty, smoothing
        self.supervision = supervision
        self.supervised: Words = supervised
        self.optimizer, self.encoder_rate = optimizer or ADAMW, encoder_rate
        self.warm, self.hold = warm, hold
        self.monitor = monitor_of(best_by or self.preferred_score)

    def _start_from(self, checkpoint: Path) -> None:
        """Take over the weights of another run."""
        model = read_model(checkpoint)
        self._refuse_other_words(getattr(model, "words", ()))
        weights = model.state_dict()
        self.load_state_dict({f"model.{name}": tensor for name, tensor in weights.items()})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights that were trained for other words, of which there may be as many."""
        super().on_load_checkpoint(checkpoint)
        saved = checkpoint.get("visattn", {}).get("model", {}).get("arguments", {}).get("words")
        if saved is not None:
            self._refuse_other_words(saved)

    def _refuse_other_words(self, words: Sequence[str]) -> None:
        if tuple(words) != self.model.words:
            raise ValueError(
                "the checkpoint was trained with another vocabulary: say the same data options; "
                f"only one of the two has {sorted(set(words) ^ set(self.model.words))[:5]}"
            )

    def configure_optimizers(self) -> Any:
        """Return the optimizer, with the encoder at its own rate, and the schedule."""
        encoder = {id(parameter) for parameter in self.model.encoder.parameters()}
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in trained if id(p) not in encoder], "rate": 1.0},
            {"params": [p for p in trained if id(p) in encoder], "rate": self.encoder_rate},
        ]
        optimizer = self.optimizer([group for group in groups if group["params"]])
        total = int(self.trainer.estimated_stepping_batches)
        share = partial(trapezoid, total=total, warm=self.warm, hold=self.hold)
        return with_schedule(optimizer, share)

    def training_step(self, batch: CaptionBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        told = read(self.model, batch)
        targets = batch.captions[told.rows, told.steps + 1]
        count = len(batch.lengths)
        loss = caption_loss(
            told.logits, targets, count, reduction=self.reduction, smoothing=self.smoothing
        )
        self.log("train/loss", loss.detach(), prog_bar=True)
        self.log("train/entropy", _entropy(told.look.weights.detach()))
        words = len(targets) if self.reduction == "mean" else count
        loss = loss * fair_share(words, loss.device)
        if self.penalty:
            missed = doubly_stochastic_penalty(
                told.look.weights, told.rows, count, reduction=self.reduction
            )
            summed = self.reduction == "arctic"  # over captions: those of all processes
            share = processes() if summed else fair_share(count, loss.device)
            loss = loss + self.penalty * share * missed
        if self.supervision:
            guided = self._guidance(told, batch)
            loss = loss + self.supervision * guided
        return loss

    def _guidance(self, told: TeacherForcedOutput, batch: CaptionBatch) -> Float[Tensor, ""]:
        """Return how far attention lies from the boxes of what the words speak of."""
        known = supervised_words(batch.phrases(), self.model.encoder.grid, words=self.supervised)
        place = told.look.weights.device
        laid, shown = packed_targets(*(part.to(place) for part in known), lengths=batch.lengths)
        guided = attention_supervision(told.look.weights, laid, shown)
        self.log("train/supervision", guided.detach())
        return guided * fair_share(shown.sum(), place)


def _entropy(weights: Float[Tensor, "p n"]) -> Float[Tensor, ""]:
    """Return how widely the attention is spread, in nats; log n is everywhere alike."""
    return torch.special.entr(weights).sum(-1).mean()
