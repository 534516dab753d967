"""Base class of captioning tasks: validation and test metrics."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

import torch
from jaxtyping import Float
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torchmetrics import Metric

from visattn.data.captions.batch import CaptionBatch
from visattn.data.phrases.grounding import phrases_to_cells
from visattn.data.phrases.phrases import match_phrases
from visattn.functional.captioning.losses import caption_loss
from visattn.models.captioner import Captioner
from visattn.models.serialization.config import build_model, model_config
from visattn.results.captions import Phrase
from visattn.training.data_module import InputSpec
from visattn.training.distributed.reduce import all_gather_union
from visattn.training.metrics.captioning import (
    REFERENCE_METRICS,
    SCENE_CAPTION_METRICS,
    SCENE_MAP_METRICS,
    ReferenceScores,
    SceneScores,
)
from visattn.training.metrics.grounding import PHRASE_METRICS, PhraseScores
from visattn.training.metrics.weighted_mean import WeightedMean
from visattn.training.task import Task
from visattn.training.tasks.caption_generation import (
    CaptionWithMaps,
    generate_captions,
    reference_captions,
    teacher_force_batch,
)

GENERATED = ("val", "test", "novel", "shuffled", "untrained")
TEACHER_FORCED = (
    "val_teacher_forced",
    "teacher_forced",
    "shuffled_teacher_forced",
    "untrained_teacher_forced",
)
HEAD_METRICS = ("pointing_game", "correctness", "lift")
_METRICS = {
    "scenes": (*SCENE_CAPTION_METRICS, *SCENE_MAP_METRICS),
    "references": REFERENCE_METRICS,
}
_DEFAULT_MONITOR = {"scenes": "val/caption_accuracy", "references": "val/cider-d"}


class CaptionEvalTask(Task):
    """A captioner with its validation and test metrics; subclasses add the training.

    The first part of a metric's name says which captions it scores. Generated captions: `val`,
    `test`, and `novel` for the second test set. `teacher_forced`: reference captions, of which
    only the attention maps are scored. Controls: `shuffled`, captions scored against the other
    image of a pair of neighbors; `untrained`, a model with the same architecture and random
    weights. Metrics are computed over all processes, and each image counts once.

    A `TransformerCaptioner` with `maps: all` is also scored head by head, outside of `fit`, in
    `val_heads.json`, `test_heads.json` and, for reference captions, `teacher_forced_heads.json` and
    `val_teacher_forced_heads.json`: one head may point where the mean of them does not.

    Args:
        model: The captioner.
        beam_size: Beam size of the search.
        length_penalty: Exponent of the length penalty of the search; 0 compares log-probabilities.
        annotations: What the captions can be scored against: `scenes`, `references` or both; None
            if the data do not say.
    """

    model: Captioner

    def __init__(
        self,
        model: Captioner,
        *,
        beam_size: int,
        length_penalty: float,
        annotations: Sequence[str] | None = None,
    ) -> None:
        super().__init__(model)
        self.beam_size, self.length_penalty = beam_size, length_penalty
        self.annotations = annotations
        self.loss = WeightedMean()
        splits = (*GENERATED, *TEACHER_FORCED)
        self.scene_scores = nn.ModuleDict({split: SceneScores() for split in splits})
        self.phrase_scores = nn.ModuleDict({split: PhraseScores() for split in splits})
        self.head_scores = nn.ModuleDict(_head_scores(model))
        self.reference_scores = {split: ReferenceScores() for split in GENERATED}
        self.updated_metrics: set[str] = set()

    @property
    def input_spec(self) -> InputSpec:
        """The input of the encoder, and the encoder itself."""
        encoder = self.model.encoder
        return InputSpec(encoder.img_size, encoder.mean, encoder.std, encoder)

    @property
    def val_scores(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The metrics that validation logs; all possible ones if the annotations are unknown."""
        annotations = _METRICS if self.annotations is None else self.annotations
        names = [name for kind in annotations for name in _METRICS[kind]]
        return tuple(f"val/{name}" for name in ("loss", *names))

    @property
    def default_monitor(self) -> str:
        """The metric that selects the best checkpoint unless another one is configured."""
        annotations = self.annotations or ()
        return next(
            (_DEFAULT_MONITOR[kind] for kind in _METRICS if kind in annotations), "val/loss"
        )

    @abstractmethod
    def training_step(self, batch: CaptionBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""

    def validation_step(self, batch: CaptionBatch, batch_idx: int) -> None:
        """Score generated captions and the loss; outside of `fit`, also teacher-forced maps."""
        output = teacher_force_batch(self.model, batch)
        num_words = len(output.rows)
        targets = batch.captions[output.rows, output.steps + 1]
        loss = caption_loss(output.logits, targets, len(batch.lengths), reduction="mean")
        self.loss.update(loss * num_words, num_words)
        self.log("val/loss", self.loss, prog_bar=True)
        self._update("val", self._generate(self.model, batch), batch)
        if self.trainer.state.fn != "fit":
            references = reference_captions(self.model, batch, output)
            self._update("val_teacher_forced", references, batch)

    def test_step(self, batch: CaptionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score generated captions; on the first test set also teacher-forced maps and controls."""
        captions = self._generate(self.model, batch)
        self._update("novel" if dataloader_idx else "test", captions, batch)
        if dataloader_idx:
            return
        self._update("teacher_forced", reference_captions(self.model, batch), batch)
        if batch.num_paired:  # a single image has no partner
            swapped = batch.swap_images()
            generated = _paired(self._generate(self.model, swapped), batch)
            self._update("shuffled", generated, batch)
            references = _paired(reference_captions(self.model, swapped), batch)
            self._update("shuffled_teacher_forced", references, batch)
        untrained = self._untrained_model()
        self._update("untrained", self._generate(untrained, batch), batch)
        self._update("untrained_teacher_forced", reference_captions(untrained, batch), batch)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_map_metrics()
        self._log_reference_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_map_metrics()
        for split in GENERATED[1:]:
            self._log_reference_metrics(split)

    def _update(self, split: str, captions: Sequence[CaptionWithMaps], batch: CaptionBatch) -> None:
        """Update each metric for which the batch has annotations."""
        if all(sample.world for sample in batch.samples):
            self._update_scene_scores(split, captions, batch)
        if any(sample.phrases for sample in batch.samples) and self.trainer.state.fn != "fit":
            self._update_phrase_scores(split, captions, batch)
        if split in self.reference_scores and all(sample.references for sample in batch.samples):
            samples = [batch.samples[caption.image_index] for caption in captions]
            self.reference_scores[split].update(samples, [caption.text for caption in captions])

    def _update_scene_scores(
        self, split: str, captions: Sequence[CaptionWithMaps], batch: CaptionBatch
    ) -> None:
        first = [caption for caption in captions if caption.caption_index == 0]
        worlds = [batch.samples[caption.image_index].world for caption in first]
        for scores, maps in self._scores_with_maps("scenes", split, first):
            cast("SceneScores", scores).update(
                [caption.text for caption in first],
                maps,
                [world for world in worlds if world],
                [caption.gates for caption in first],
                size=cast("Tensor", batch.images).shape[-1],
                boxes_to_cells=self.model.encoder.boxes_to_cells,
            )
        self.updated_metrics.add(f"scenes/{split}")

    def _update_phrase_scores(
        self, split: str, captions: Sequence[CaptionWithMaps], batch: CaptionBatch
    ) -> None:
        generated = split in GENERATED
        phrases = [
            phrases_to_cells(
                _phrases(caption, batch, generated=generated), self.model.encoder.boxes_to_cells
            )
            for caption in captions
        ]
        for scores, maps in self._scores_with_maps("phrases", split, captions):
            cast("PhraseScores", scores).update(maps, phrases)
        self.updated_metrics.add(f"phrases/{split}")

    def _scores_with_maps(
        self, kind: str, split: str, captions: Sequence[CaptionWithMaps]
    ) -> Iterator[tuple[nn.Module, list[Tensor]]]:
        """Yield the scores of a split with the maps of the captions, then those of each head."""
        scores = self.scene_scores if kind == "scenes" else self.phrase_scores
        yield scores[split], [caption.maps for caption in captions]
        if f"{kind}/{split}" in self.head_scores and self.trainer.state.fn != "fit":
            heads = cast("_HeadScores", self.head_scores[f"{kind}/{split}"])
            yield from heads.with_maps([cast("Tensor", caption.heads) for caption in captions])

    def _log_map_metrics(self) -> None:
        """Log, in every process, the metrics that any process updated; else some would wait."""
        for key in all_gather_union(self.updated_metrics):
            kind, split = key.split("/")
            if kind == "scenes":
                scenes = cast("SceneScores", self.scene_scores[split])
                scenes.update(
                    [], [], [], [], size=1
                )  # torchmetrics warns of metrics without an update
                for name in _scene_metrics(split):
                    metric = f"{split}/{name}"
                    self.log(metric, scenes[name], prog_bar=metric == "val/caption_accuracy")
            else:
                phrases = cast("PhraseScores", self.phrase_scores[split])
                phrases.update([], [])
                for name in PHRASE_METRICS:
                    self.log(f"{split}/{name}", phrases[name])
            if key in self.head_scores and self.trainer.state.fn != "fit":
                self.notes[f"{split}_heads"] = cast("_HeadScores", self.head_scores[key]).rows()
        self.updated_metrics.clear()

    def _log_reference_metrics(self, split: str) -> None:
        metrics = self.reference_scores[split]
        if not all_gather_union({split} if metrics.captions else ()):
            return
        captions, scores = metrics.compute()
        metrics.reset()
        for name, value in scores.corpus.items():
            key = f"{split}/{name.lower()}"
            self.log(key, value, prog_bar=key == "val/cider-d", sync_dist=True)
        self.notes[f"{split}_captions"] = [
            {"image_id": image_id, "caption": caption} for image_id, caption in captions.items()
        ]
        self.notes["signature"] = scores.signature
        for warning in scores.warnings:
            rank_zero_warn(warning)

    def _generate(self, model: Captioner, batch: CaptionBatch) -> list[CaptionWithMaps]:
        return generate_captions(
            model, batch, beam_size=self.beam_size, length_penalty=self.length_penalty
        )

    def _untrained_model(self) -> Captioner:
        """Return a model with the same architecture and random weights, always the same ones."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = cast("Captioner", build_model(model_config(self.model)))
        return model.eval().to(self.device)


class _HeadScores(nn.Module):
    """Scores of the maps of each layer and head.

    Args:
        new_scores: Builds the scores of one head.
        num_layers: Number of layers.
        num_heads: Number of heads of a layer.
    """

    def __init__(
        self, new_scores: Callable[[], SceneScores | PhraseScores], num_layers: int, num_heads: int
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scores = nn.ModuleList(new_scores() for _ in range(num_layers * num_heads))

    def with_maps(
        self, heads: Sequence[Float[Tensor, "_t l h _gy _gx"]]
    ) -> Iterator[tuple[nn.Module, list[Tensor]]]:
        """Yield the scores of each head with its maps of all captions."""
        for index, scores in enumerate(self.scores):
            layer, head = divmod(index, self.num_heads)
            yield scores, [maps[:, layer, head] for maps in heads]

    def rows(self) -> list[dict[str, Any]]:
        """Return layer, head and scores of each head, indices from 0; reset the scores."""
        rows: list[dict[str, Any]] = []
        for index, scores in enumerate(self.scores):
            layer, head = divmod(index, self.num_heads)
            metrics = cast("SceneScores | PhraseScores", scores)
            values = {name: float(metrics[name].compute()) for name in HEAD_METRICS}
            rows.append({"layer": layer, "head": head, **values})
            for metric in metrics.metrics.values():
                cast("Metric", metric).reset()
        return rows


def _head_scores(model: Captioner) -> dict[str, _HeadScores]:
    """Return the scores of heads by kind and split; none if the model gives no heads."""
    if (heads := model.head_attention()) is None:
        return {}
    splits = ("val", "test", "val_teacher_forced", "teacher_forced")
    return {
        f"{kind}/{split}": _HeadScores(new_scores, *heads)
        for kind, new_scores in (("scenes", SceneScores), ("phrases", PhraseScores))
        for split in splits
    }


def _paired(captions: Sequence[CaptionWithMaps], batch: CaptionBatch) -> list[CaptionWithMaps]:
    """Return the captions of those images of a batch that have a partner."""
    return [caption for caption in captions if caption.image_index < batch.num_paired]


def _scene_metrics(split: str) -> tuple[str, ...]:
    """Return the scene metrics that are logged for a split."""
    if split in ("shuffled", "untrained"):
        return SCENE_CAPTION_METRICS  # too few captions are true for metrics of their maps
    if split in TEACHER_FORCED:
        return SCENE_MAP_METRICS
    return (*SCENE_CAPTION_METRICS, *SCENE_MAP_METRICS)


def _phrases(
    caption: CaptionWithMaps, batch: CaptionBatch, *, generated: bool
) -> tuple[Phrase, ...]:
    """Return the phrases of a caption whose boxes are known."""
    phrases = batch.samples[caption.image_index].phrases
    if not phrases:
        return ()
    if generated:
        return match_phrases(caption.text.split(), chain.from_iterable(phrases))
    return phrases[caption.caption_index]
