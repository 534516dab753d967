"""Scoring a captioner, by whatever is known of the images."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import Any, cast

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from visattn.data.captions.batch import CaptionBatch
from visattn.data.phrases.phrases import Phrase, spoken_phrases
from visattn.functional.captioning.losses import caption_loss
from visattn.models.captioner import Captioner
from visattn.models.serialization.config import build, describe
from visattn.training.base import Task
from visattn.training.distributed.reduce import known_anywhere
from visattn.training.metrics.captioning import (
    OF_MAPS,
    OF_REFERENCES,
    OF_WORDS,
    ReferenceScores,
    SceneScores,
)
from visattn.training.metrics.grounding import OF_PHRASES, PhraseScores
from visattn.training.metrics.weighted_mean import WeightedMean
from visattn.training.tasks.caption_generation import CaptionWithMaps, generated, given, read

MADE_UP = ("val", "test", "novel", "shuffled", "untrained")
GIVEN = ("val_given", "given", "shuffled_given", "untrained_given")
_SCORES = {"scenes": (*OF_WORDS, *OF_MAPS), "references": OF_REFERENCES}
_PREFERRED = {"scenes": "truth", "references": "cider-d"}


class CaptionEvalTask(Task):
    """A captioner with its scores; what trains it comes on top.

    Made-up captions: `val`, `test`, and `novel` for the test's second set of images. `given` are
    captions that the model reads, for the sake of its maps. Controls: `shuffled`, captions held
    against the other image of a pair of neighbors; `untrained`, a model of the same make with
    fresh weights. Scores are those of all processes together, each image counted once.

    Args:
        model: The captioner.
        beam: Captions searched at once per image.
        length_penalty: Exponent of the length penalty of the search; 0 compares log-probabilities.
        known: What captions of the data can be scored by, of `scenes` and `references`; None if
            the data do not say.
    """

    model: Captioner

    def __init__(
        self,
        model: Captioner,
        *,
        beam: int,
        length_penalty: float,
        known: Sequence[str] | None = None,
    ) -> None:
        super().__init__(model)
        self.beam, self.length_penalty = beam, length_penalty
        self.known = known
        self.loss = WeightedMean()
        splits = (*MADE_UP, *GIVEN)
        self.scenes = nn.ModuleDict({split: SceneScores() for split in splits})
        self.phrases = nn.ModuleDict({split: PhraseScores() for split in splits})
        self.references = {split: ReferenceScores() for split in MADE_UP}
        self.scored: set[str] = set()
        self.notes: dict[str, Any] = {}

    @property
    def val_scores(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The scores that validation logs during training; all possible ones if data do not say."""
        known = _SCORES if self.known is None else self.known
        names = [name for kind in known for name in _SCORES[kind]]
        return tuple(f"val/{name}" for name in ("loss", *names))

    @property
    def preferred_score(self) -> str:
        """The validation score by which the best checkpoint is chosen unless another is named."""
        known = self.known or ()
        kind = next((kind for kind in _SCORES if kind in known), None)
        return f"val/{_PREFERRED[kind]}" if kind else "val/loss"

    @abstractmethod
    def training_step(self, batch: CaptionBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""

    def validation_step(self, batch: CaptionBatch, batch_idx: int) -> None:
        """Score made-up captions and, for the loss and the maps, given ones."""
        told = read(self.model, batch)
        words = len(told.rows)
        targets = batch.captions[told.rows, told.steps + 1]
        surprise = caption_loss(told.logits, targets, len(batch.lengths), reduction="mean")
        self.loss.update(surprise * words, words)
        self.log("val/loss", self.loss, prog_bar=True)
        self._score("val", self._generated(self.model, batch), batch)
        if self.trainer.state.fn != "fit":
            self._score("val_given", given(self.model, batch, told), batch)

    def test_step(self, batch: CaptionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score made-up captions; on the first set of images, given ones and controls as well."""
        told = self._generated(self.model, batch)
        self._score("novel" if dataloader_idx else "test", told, batch)
        if dataloader_idx:
            return
        self._score("given", given(self.model, batch), batch)
        if batch.paired:  # an image alone has no other
            others = batch.swapped()
            self._score("shuffled", _of_pairs(self._generated(self.model, others), batch), batch)
            self._score("shuffled_given", _of_pairs(given(self.model, others), batch), batch)
        fresh = self._fresh()
        self._score("untrained", self._generated(fresh, batch), batch)
        self._score("untrained_given", given(fresh, batch), batch)

    def on_validation_epoch_end(self) -> None:
        """Score all captions together."""
        self._tell_scores()
        self._score_references("val")

    def on_test_epoch_end(self) -> None:
        """Score all captions together."""
        self._tell_scores()
        for split in MADE_UP[1:]:
            self._score_references(split)

    def _score(self, split: str, told: Sequence[CaptionWithMaps], batch: CaptionBatch) -> None:
        """Take in captions, with each of the applicable scores."""
        if all(sample.world for sample in batch.samples):
            self._score_scenes(split, told, batch)
        if any(sample.phrases for sample in batch.samples) and self.trainer.state.fn != "fit":
            self._score_phrases(split, told, batch)
        if split in self.references and all(sample.references for sample in batch.samples):
            tellers = [batch.samples[one.image] for one in told]
            self.references[split].update(tellers, [one.text for one in told])

    def _score_scenes(
        self, split: str, told: Sequence[CaptionWithMaps], batch: CaptionBatch
    ) -> None:
        once = [one for one in told if one.number == 0]
        worlds = [batch.samples[one.image].world for one in once]
        scores = cast("SceneScores", self.scenes[split])
        scores.update(
            [one.text for one in once],
            [one.maps for one in once],
            [world for world in worlds if world],
        )
        self.scored.add(f"scenes/{split}")

    def _score_phrases(
        self, split: str, told: Sequence[CaptionWithMaps], batch: CaptionBatch
    ) -> None:
        scores = cast("PhraseScores", self.phrases[split])
        said = [_phrases(one, batch, made_up=split in MADE_UP) for one in told]
        scores.update([one.maps for one in told], said)
        self.scored.add(f"phrases/{split}")

    def _tell_scores(self) -> None:
        """Log what was scored in any process, in each of them: else some would wait for others."""
        for named in known_anywhere(self.scored):
            kind, split = named.split("/")
            if kind == "scenes":
                of_scenes = cast("SceneScores", self.scenes[split])
                of_scenes.update([], [], [])  # scores without any are asked for all the same
                for name in _of_scenes(split):
                    self.log(
                        f"{split}/{name}",
                        of_scenes[name],
                        prog_bar=f"{split}/{name}" == "val/truth",
                    )
            else:
                of_phrases = cast("PhraseScores", self.phrases[split])
                of_phrases.update([], [])
                for name in OF_PHRASES:
                    self.log(f"{split}/{name}", of_phrases[name])
        self.scored.clear()

    def _score_references(self, split: str) -> None:
        scores = self.references[split]
        if not known_anywhere({split} if scores.captions else ()):
            return
        captions, found = scores.compute()
        scores.reset()
        for name, value in found.corpus.items():
            shown = f"{split}/{name.lower()}"
            self.log(shown, value, prog_bar=shown == "val/cider-d", sync_dist=True)
        self.notes[f"{split}_captions"] = [
            {"image_id": name, "caption": caption} for name, caption in captions.items()
        ]
        self.notes["signature"] = found.signature
        for said in found.warnings:
            rank_zero_warn(said)

    def _generated(self, model: Captioner, batch: CaptionBatch) -> list[CaptionWithMaps]:
        return generated(model, batch, beam=self.beam, length_penalty=self.length_penalty)

    def _fresh(self) -> Captioner:
        """Return an untrained model of the same make, the same whenever it is asked for."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            fresh = cast("Captioner", build(describe(self.model)))
        return fresh.eval().to(self.device)


def _of_pairs(told: Sequence[CaptionWithMaps], batch: CaptionBatch) -> list[CaptionWithMaps]:
    """Return the captions of those images of a batch that have another one as partner."""
    return [one for one in told if one.image < batch.paired]


def _of_scenes(split: str) -> tuple[str, ...]:
    """Return which scores of scenes are told of a split."""
    if split in ("shuffled", "untrained"):
        return OF_WORDS  # of true captions there are too few to speak of maps
    return OF_MAPS if split in GIVEN else (*OF_WORDS, *OF_MAPS)


def _phrases(told: CaptionWithMaps, batch: CaptionBatch, *, made_up: bool) -> tuple[Phrase, ...]:
    """Return the phrases that a caption says and whose place is known."""
    known = batch.samples[told.image].phrases
    if not known:
        return ()
    if made_up:
        return spoken_phrases(told.text.split(), chain.from_iterable(known))
    return known[told.number]
