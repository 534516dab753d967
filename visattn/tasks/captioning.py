"""Training a captioner, and scoring it where the truth is known."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from visattn.data.batches import CaptionBatch
from visattn.functional.captions import Reduction, caption_loss, doubly_stochastic_penalty
from visattn.models.captioners import END, Captioner, Unrolled
from visattn.models.descriptions import build, describe
from visattn.tasks.bases import Task
from visattn.tasks.ratios import Ratio
from visattn.tasks.scene_scores import OF_MAPS, OF_WORDS, SceneScores
from visattn.tasks.schedules import trapezoid

Told = tuple[list[str], list[Float[Tensor, "_t gy gx"]]]
ADAMW = partial(AdamW, lr=2e-3, weight_decay=1e-2)
SPLITS = (
    "val",
    "test",
    "novel",
    "given",
    "shuffled",
    "shuffled_given",
    "untrained",
    "untrained_given",
)


class CaptionTask(Task):
    """Train a captioner on pictures with captions.

    Where the pictures are scenes, validation says how many generated captions are true and
    whether the attention lay on what they speak of; the test adds held-out pairs and controls.

    Args:
        captioner: The captioner; it gets its words from the data.
        data_info: What the data tells of itself; `words` is the vocabulary.
        penalty: Weight of the doubly stochastic penalty; 0 leaves it out.
        reduction: How loss and penalty are summed: as in the `paper`, as in the authors' code
            (`arctic`), or as the `mean` over words.
        smoothing: Share of label smoothing.
        optimizer: The optimizer; by default AdamW with a rate of 2e-3 and a weight decay of 1e-2.
        encoder_rate: Learning rate of the encoder, as a multiple of the optimizer's.
        warm: Steps in which the learning rate rises.
        hold: Share of the run after which the learning rate falls.
        beam: Captions searched at once per picture in validation and test.
        best_by: The score by which the best checkpoint is chosen.
    """

    def __init__(
        self,
        captioner: Callable[[list[str]], Captioner],
        data_info: dict[str, Any],
        *,
        penalty: float = 0.0,
        reduction: Reduction = "mean",
        smoothing: float = 0.0,
        optimizer: Callable[[Iterable[Any]], Optimizer] | None = None,
        encoder_rate: float = 1.0,
        warm: int = 100,
        hold: float = 0.4,
        beam: int = 5,
        best_by: str = "val/truth",
    ) -> None:
        if penalty < 0 or encoder_rate < 0:
            raise ValueError(
                f"penalty and encoder_rate must be >= 0, got {penalty} and {encoder_rate}"
            )
        super().__init__(captioner(data_info["words"]))
        self.model: Captioner
        self.reduction: Reduction = reduction
        self.penalty, self.smoothing = penalty, smoothing
        self.optimizer, self.encoder_rate = optimizer or ADAMW, encoder_rate
        self.warm, self.hold, self.beam = warm, hold, beam
        self.monitor = (best_by, "min" if best_by.endswith("loss") else "max")
        self.loss = Ratio()
        self.scores = nn.ModuleDict({split: SceneScores() for split in SPLITS})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights that were trained for other words, of which there may be as many."""
        saved = checkpoint.get("visattn", {}).get("model", {}).get("arguments", {}).get("words")
        if saved is not None and tuple(saved) != self.model.words:
            raise ValueError(
                "the checkpoint was trained with another vocabulary: say the same data options; "
                f"only one of the two has {sorted(set(saved) ^ set(self.model.words))[:5]}"
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
        for group in optimizer.param_groups:
            group["lr"] *= group["rate"]
        total = int(self.trainer.estimated_stepping_batches)
        share = partial(trapezoid, total=total, warm=self.warm, hold=self.hold)
        schedule = {"scheduler": LambdaLR(optimizer, share), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def training_step(self, batch: CaptionBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        read = self._read(self.model, batch)
        loss = self._loss(read, batch, smoothing=self.smoothing)
        self.log("train/loss", loss.detach(), prog_bar=True)
        self.log("train/entropy", _entropy(read.look.weights.detach()))
        if self.penalty:
            loss = loss + self.penalty * doubly_stochastic_penalty(
                read.look.weights, read.rows, len(batch.lengths), reduction=self.reduction
            )
        return loss

    def validation_step(self, batch: CaptionBatch, batch_idx: int) -> None:
        """Score generated captions and, for the loss, given ones."""
        read = self._read(self.model, batch)
        words = len(read.rows)
        self.loss.update(self._loss(read, batch, reduction="mean") * words, words)
        self.log("val/loss", self.loss, prog_bar=True)
        self._score("val", self._generated(self.model, batch), batch)

    def test_step(self, batch: CaptionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score generated captions; on the test split, given captions and controls as well.

        `test` and `novel` are captions that the model makes up. `given` are true captions that it
        reads. Controls: `shuffled`, the captions of other pictures; `untrained`, a model of the
        same make with fresh weights.
        """
        told = self._generated(self.model, batch)
        self._score("novel" if dataloader_idx else "test", told, batch)
        if dataloader_idx:
            return
        self._score("given", self._given(self.model, batch), batch, names=OF_MAPS)
        if len(batch.samples) > 1:  # a picture alone has no other
            others = batch._replace(pictures=batch.pictures.roll(1, 0))
            self._score("shuffled", self._generated(self.model, others), batch, names=OF_WORDS)
            self._score("shuffled_given", self._given(self.model, others), batch, names=OF_MAPS)
        fresh = self._fresh()
        self._score("untrained", self._generated(fresh, batch), batch, names=OF_WORDS)
        self._score("untrained_given", self._given(fresh, batch), batch, names=OF_MAPS)

    def _score(
        self, split: str, told: Told, batch: CaptionBatch, *, names: Sequence[str] = ()
    ) -> None:
        worlds = [sample.world for sample in batch.samples if sample.world]
        if len(worlds) < len(batch.samples):
            return
        scores = cast("SceneScores", self.scores[split])
        scores.update(*told, worlds)
        for name in names or (*OF_WORDS, *OF_MAPS):
            shown = f"{split}/{name}"
            self.log(shown, scores[name], add_dataloader_idx=False, prog_bar=shown == "val/truth")

    def _read(self, model: Captioner, batch: CaptionBatch) -> Unrolled:
        features = model.encoder(batch.pictures)
        return model.unroll(features, batch.captions[:, :-1], batch.lengths, batch.owners)

    def _loss(
        self,
        read: Unrolled,
        batch: CaptionBatch,
        *,
        smoothing: float = 0.0,
        reduction: Reduction | None = None,
    ) -> Float[Tensor, ""]:
        targets = batch.captions[read.rows, read.steps + 1]
        return caption_loss(
            read.logits,
            targets,
            len(batch.lengths),
            reduction=reduction or self.reduction,
            smoothing=smoothing,
        )

    def _generated(self, model: Captioner, batch: CaptionBatch) -> Told:
        """Return a caption for each picture, and the maps of its words."""
        found = model.search(batch.pictures, beam=self.beam)
        captions, maps = [], []
        for tokens, length, weights in zip(
            found.tokens[:, 0], found.lengths[:, 0].tolist(), found.looks.weights[:, 0], strict=True
        ):
            captions.append(_text(model, tokens[:length]))
            maps.append(weights[:length].unflatten(-1, model.encoder.grid).cpu())
        return captions, maps

    def _given(self, model: Captioner, batch: CaptionBatch) -> Told:
        """Return one given caption for each picture, and the maps when the model reads it."""
        read = self._read(model, batch)
        captions, maps = [], []
        for picture in range(len(batch.pictures)):
            row = int((batch.owners == picture).nonzero()[0])
            said = (read.rows == row) & (read.steps < batch.lengths[row] - 1)
            captions.append(_text(model, batch.captions[row, 1 : batch.lengths[row]]))
            maps.append(read.look.weights[said].unflatten(-1, model.encoder.grid).cpu())
        return captions, maps

    def _fresh(self) -> Captioner:
        """Return an untrained model of the same make, the same whenever it is asked for."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            fresh = cast("Captioner", build(describe(self.model)))
        return fresh.eval().to(self.device)


def _text(model: Captioner, tokens: Tensor) -> str:
    return " ".join(model.words[token] for token in tokens.tolist() if token != END)


def _entropy(weights: Float[Tensor, "p n"]) -> Float[Tensor, ""]:
    """Return how widely the attention is spread, in nats; log n is everywhere alike."""
    return torch.special.entr(weights).sum(-1).mean()
