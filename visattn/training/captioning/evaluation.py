"""Validation and test of captioners: captions with maps, and their metrics."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from visattn.data.captions.batch import CaptionBatch
from visattn.data.phrases import match_phrases
from visattn.functional.captions import caption_loss
from visattn.metrics.ptb_tokenizer import join_words
from visattn.models.captioning.captioner import Captioner, TeacherForcedOutput
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.models.config import build_model, model_config
from visattn.results.captions import Phrase
from visattn.results.kinds import END
from visattn.training.captioning.metrics import (
    PHRASE_METRICS,
    REFERENCE_METRICS,
    SCENE_CAPTION_METRICS,
    SCENE_MAP_METRICS,
    PhraseScores,
    ReferenceScores,
    SceneScores,
)
from visattn.training.data_module import InputSpec
from visattn.training.metrics import Evaluation, WeightedMean
from visattn.training.optim import OptimConfig
from visattn.training.reduce import all_gather_union
from visattn.training.task import Task


class CaptionWithMaps(NamedTuple):
    """A caption of an image with the attention map of each word."""

    image_index: int
    """Index of the image in the batch."""
    caption_index: int
    """Index among the captions of the image; 0 for a generated caption."""
    text: str
    maps: Float[Tensor, "_t _gy _gx"]
    gates: Float[Tensor, " _t"]
    """Share of the image in the context vector of each word."""
    heads: Float[Tensor, "_t l h _gy _gx"] | None = None
    """Maps of each layer and head, if the captioner gives them."""


def encode_images(model: Captioner, batch: CaptionBatch) -> Float[Tensor, "b c y x"]:
    """Return the features of the images of a batch, from cached grids if the batch has them."""
    if batch.grids:
        return model.encoder.merge_stages(batch.grids)
    if batch.images is None:
        raise ValueError("a batch needs images or cached features, got neither")
    return model.encoder(batch.images)


def teacher_force_batch(model: Captioner, batch: CaptionBatch) -> TeacherForcedOutput:
    """Return the logits and the attention of the model for the captions of a batch."""
    features = encode_images(model, batch)
    # A caption of the tokens <start> a red <end>, whose length is 3:
    #
    #     step               0         1     2
    #     token read         <start>   a     red      captions[:, :-1]
    #     token predicted    a         red   <end>    captions[rows, steps + 1], the targets
    inputs = batch.captions[:, :-1]
    return model.teacher_force(
        features, inputs, batch.packing or batch.lengths, batch.image_indices
    )


def generate_captions(
    model: Captioner, batch: CaptionBatch, *, beam_size: int, length_penalty: float = 0.0
) -> list[CaptionWithMaps]:
    """Return the best caption of each image by beam search, with its attention maps."""
    features = encode_images(model, batch)
    output = model.search(features, beam_size=beam_size, length_penalty=length_penalty)
    tokens = output.tokens[:, 0].cpu()
    attention = output.attention_steps
    weights = attention.weights[:, 0].cpu()
    gates = attention.gate[:, 0].cpu()
    heads = None if attention.heads is None else attention.heads[:, 0].cpu()
    return [
        CaptionWithMaps(
            image,
            0,
            _decode(model, tokens[image, :length]),
            weights[image, :length].unflatten(-1, model.encoder.grid_size),
            gates[image, :length],
            _grids(model, None if heads is None else heads[image, :length]),
        )
        for image, length in enumerate(output.lengths[:, 0].tolist())
    ]


def reference_captions(
    model: Captioner, batch: CaptionBatch, output: TeacherForcedOutput | None = None
) -> list[CaptionWithMaps]:
    """Return the captions of a batch, with the attention maps of teacher forcing.

    `output` is the result of `teacher_force_batch`, if it was computed before.
    """
    output = output or teacher_force_batch(model, batch)
    order = output.rows.argsort(stable=True)  # the words of each caption, in their order
    lengths = batch.lengths.tolist()
    weights, gates = (
        values.detach()[order].cpu().split(lengths)
        for values in (output.attention.weights, output.attention.gate)
    )
    heads = output.attention.heads
    row_heads = None if heads is None else heads.detach()[order].cpu().split(lengths)
    image_indices = batch.image_indices.tolist()
    captions = batch.captions.cpu()
    results: list[CaptionWithMaps] = []
    for row, (maps, row_gates) in enumerate(zip(weights, gates, strict=True)):
        tokens = captions[row, 1 : len(maps) + 1]
        num_words = int((tokens != END).sum())
        results.append(
            CaptionWithMaps(
                image_indices[row],
                batch.caption_indices[row],
                _decode(model, tokens[:num_words]),
                maps[:num_words].unflatten(-1, model.encoder.grid_size),
                row_gates[:num_words],
                _grids(model, None if row_heads is None else row_heads[row][:num_words]),
            )
        )
    return results


def _grids(
    model: Captioner, heads: Float[Tensor, "t l h n"] | None
) -> Float[Tensor, "t l h gy gx"] | None:
    return None if heads is None else heads.unflatten(-1, model.encoder.grid_size)


def _decode(model: Captioner, tokens: Tensor) -> str:
    words = [model.words[token] for token in tokens.tolist() if token != END]
    return join_words(words)


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

    Captions can be scored against the `annotations`, `scenes`, `references` or both; None if the
    data do not say. For the other options see `CaptioningTask`.
    """

    model: Captioner

    def __init__(
        self,
        model: Captioner,
        *,
        beam_size: int,
        length_penalty: float,
        optim: OptimConfig,
        annotations: Sequence[str] | None = None,
        monitor: str | None = None,
    ) -> None:
        scored = [name for name in _METRICS if name in (annotations or ())]
        default = _DEFAULT_MONITOR[scored[0]] if scored else "val/loss"
        super().__init__(model, optim, monitor or default)
        self.beam_size = beam_size
        self.length_penalty = length_penalty
        # In a tuple: a module would become a part of the task, and of its checkpoints.
        self._untrained: tuple[Captioner, ...] = ()
        names = chain.from_iterable(_METRICS[name] for name in annotations or _METRICS)
        metrics = ("loss", *names)
        self.evaluations.update(
            {
                split: CaptionEvaluation(model, split, metrics)
                for split in (*GENERATED, *TEACHER_FORCED)
            }
        )

    @property
    def input_spec(self) -> InputSpec:
        """The input of the encoder, and the encoder itself."""
        encoder = self.model.encoder
        return InputSpec(encoder.img_size, encoder.mean, encoder.std, encoder)

    def validation_step(self, batch: CaptionBatch, batch_idx: int) -> None:
        """Score generated captions and the loss; outside of `fit`, also teacher-forced maps."""
        output = teacher_force_batch(self.model, batch)
        num_words = len(output.rows)
        targets = batch.captions[output.rows, output.steps + 1]
        loss = caption_loss(output.logits, targets, len(batch.lengths), reduction="mean")
        self.evaluation("val").update_loss(loss, num_words)
        self._update("val", self._generate(self.model, batch), batch)
        if not self.fitting:
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
        if not self._untrained:
            self._untrained = (self._build_untrained(),)
        (untrained,) = self._untrained
        self._update("untrained", self._generate(untrained, batch), batch)
        self._update("untrained_teacher_forced", reference_captions(untrained, batch), batch)

    def on_test_end(self) -> None:
        """Free the model of the control, whose device may be another one in the next test."""
        self._untrained = ()

    def _update(self, split: str, captions: Sequence[CaptionWithMaps], batch: CaptionBatch) -> None:
        self.evaluation(split).update(captions, batch, complete=not self.fitting)

    def _generate(self, model: Captioner, batch: CaptionBatch) -> list[CaptionWithMaps]:
        return generate_captions(
            model, batch, beam_size=self.beam_size, length_penalty=self.length_penalty
        )

    def _build_untrained(self) -> Captioner:
        """Return a model with the same architecture and random weights, always the same ones."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = cast("Captioner", build_model(model_config(self.model)))
        return model.eval().to(self.device)


class CaptionEvaluation(Evaluation):
    """Metrics of the captions of a split, against whatever annotations its images have.

    A split is one of `GENERATED` or `TEACHER_FORCED`; `names` are the metrics that validation logs
    if the images have these annotations.
    """

    def __init__(self, model: Captioner, split: str, names: Sequence[str]) -> None:
        super().__init__()
        self.split = split
        self.names = names
        self.loss = WeightedMean()
        self.scenes = SceneScores()
        self.phrases = PhraseScores()
        self.references = ReferenceScores()
        self.result = CaptionResult()
        self.heads = nn.ModuleDict(_head_scores(model, split))
        self.updated: set[str] = set()

    def update_loss(self, loss: Float[Tensor, ""], num_words: int) -> None:
        """Add the mean loss of the words of a batch."""
        self.loss.update(loss * num_words, num_words)
        self.updated.add("loss")

    def update(
        self,
        captions: Sequence[CaptionWithMaps],
        batch: CaptionBatch,
        *,
        complete: bool,
    ) -> None:
        """Update each metric for which the batch has annotations.

        If `complete`, phrases and single heads are scored too.
        """
        if all(sample.world for sample in batch.samples):
            self._update_scenes(captions, batch, complete=complete)
        if complete and any(sample.phrases for sample in batch.samples):
            self._update_phrases(captions, batch)
        if self.split in GENERATED and all(sample.references for sample in batch.samples):
            samples = [batch.samples[caption.image_index] for caption in captions]
            self.references.update(samples, [caption.text for caption in captions])
            self.updated.add("references")

    def _update_scenes(
        self,
        captions: Sequence[CaptionWithMaps],
        batch: CaptionBatch,
        *,
        complete: bool,
    ) -> None:
        first = [caption for caption in captions if caption.caption_index == 0]
        worlds = [batch.samples[caption.image_index].world for caption in first]
        for scores, maps in self._scores_with_maps("scenes", first, heads=complete):
            cast("SceneScores", scores).update(
                [caption.text for caption in first],
                maps,
                [world for world in worlds if world],
                [caption.gates for caption in first],
                size=cast("Tensor", batch.images).shape[-1],
            )
        self.updated.add("scenes")

    def _update_phrases(
        self,
        captions: Sequence[CaptionWithMaps],
        batch: CaptionBatch,
    ) -> None:
        generated = self.split in GENERATED
        phrases = [_phrases(caption, batch, generated=generated) for caption in captions]
        for scores, maps in self._scores_with_maps("phrases", captions, heads=True):
            cast("PhraseScores", scores).update(maps, phrases)
        self.updated.add("phrases")

    def _scores_with_maps(
        self, annotation: str, captions: Sequence[CaptionWithMaps], *, heads: bool
    ) -> Iterator[tuple[nn.Module, list[Tensor]]]:
        """Yield the scores with the maps of the captions, then those of each head."""
        scores = self.scenes if annotation == "scenes" else self.phrases
        yield scores, [caption.maps for caption in captions]
        if heads and annotation in self.heads:
            head_scores = cast("_HeadScores", self.heads[annotation])
            maps = [cast("Tensor", caption.heads) for caption in captions]
            yield from head_scores.with_maps(maps)

    def compute(self) -> dict[str, Tensor]:
        """Return all metrics that any process updated."""
        updated = all_gather_union(self.updated)
        values = {"loss": self.loss.compute()} if "loss" in updated else {}
        if "scenes" in updated:
            # torchmetrics warns of metrics without an update
            self.scenes.update([], [], [], [], size=1)
            values |= {name: self.scenes[name].compute() for name in _scene_metrics(self.split)}
        if "phrases" in updated:
            self.phrases.update([], [])
            values |= {name: self.phrases[name].compute() for name in PHRASE_METRICS}
        if "references" in updated:
            captions, scores = self.references.compute()
            self.result = CaptionResult(captions, scores.signature)
            values |= {name.lower(): torch.tensor(v) for name, v in scores.corpus.items()}
            for warning in scores.warnings:
                rank_zero_warn(warning)
        return values

    def notes(self, split: str) -> dict[str, Any]:
        """Return the captions, and the scores of each head."""
        updated = all_gather_union(self.updated)
        notes: dict[str, Any] = {
            f"{split}_heads": cast("_HeadScores", scores).rows()
            for annotation, scores in self.heads.items()
            if annotation in updated
        }
        if "references" in updated:
            captions, signature = self.result
            notes[f"{split}_captions"] = [
                {"image_id": image_id, "caption": caption} for image_id, caption in captions.items()
            ]
            notes["signature"] = signature
        return notes

    def reset(self) -> None:
        """Reset all metrics."""
        super().reset()
        self.references.reset()
        self.updated.clear()


class CaptionResult(NamedTuple):
    """Captions of all processes by image id, and the signature of their scores."""

    captions: Mapping[str, str] = {}
    signature: str = ""


class _HeadScores(nn.Module):
    """Scores of the maps of each layer and head."""

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
        """Return layer, head and scores of each head, indices from 0."""
        rows: list[dict[str, Any]] = []
        for index, scores in enumerate(self.scores):
            layer, head = divmod(index, self.num_heads)
            metrics = cast("SceneScores | PhraseScores", scores)
            values = {name: float(metrics[name].compute()) for name in HEAD_METRICS}
            rows.append({"layer": layer, "head": head, **values})
        return rows


def _head_scores(model: Captioner, split: str) -> dict[str, _HeadScores]:
    """Return the scores of heads by annotation; none without heads, and for controls."""
    if not isinstance(model, TransformerCaptioner) or model.maps != "all":
        return {}
    if split not in ("val", "test", "val_teacher_forced", "teacher_forced"):
        return {}
    return {
        annotation: _HeadScores(new_scores, model.decoder.num_layers, model.decoder.num_heads)
        for annotation, new_scores in (("phrases", PhraseScores), ("scenes", SceneScores))
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
