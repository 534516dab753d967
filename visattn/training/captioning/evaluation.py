"""Captions with maps of a batch, and the metrics of a split of captioned images."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from visattn.data.captions.batch import CaptionBatch
from visattn.data.phrases import match_phrases
from visattn.metrics.ptb_tokenizer import join_words
from visattn.models.captioning.captioner import Captioner, TeacherForcedOutput
from visattn.results.captions import Phrase
from visattn.results.kinds import END
from visattn.training.captioning.metrics import (
    PHRASE_METRICS,
    SCENE_CAPTION_METRICS,
    SCENE_MAP_METRICS,
    PhraseScores,
    ReferenceScores,
    SceneScores,
)
from visattn.training.metrics import Evaluation, WeightedMean
from visattn.training.reduce import all_gather, all_gather_union


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
    weights = output.attention_steps.weights[:, 0].unflatten(-1, model.encoder.grid_size).cpu()
    gates = output.attention_steps.gate[:, 0].cpu()
    return [
        CaptionWithMaps(i, 0, _decode(model, tokens[i, :n]), weights[i, :n], gates[i, :n])
        for i, n in enumerate(output.lengths[:, 0].tolist())
    ]


def reference_captions(
    model: Captioner, batch: CaptionBatch, output: TeacherForcedOutput | None = None
) -> list[CaptionWithMaps]:
    """Return the reference captions of a batch, with the attention maps of teacher forcing.

    `output` is the result of `teacher_force_batch`, if available.
    """
    output = output or teacher_force_batch(model, batch)
    order = output.rows.argsort(stable=True)  # the words of each caption, in their order
    weights, gates = (
        values.detach()[order].cpu().split(batch.lengths.tolist())
        for values in (output.attention.weights, output.attention.gate)
    )
    captions = batch.captions.cpu()
    results: list[CaptionWithMaps] = []
    for row, image in enumerate(batch.image_indices.tolist()):
        tokens = captions[row, 1 : len(gates[row]) + 1]
        n = int((tokens != END).sum())
        maps = weights[row][:n].unflatten(-1, model.encoder.grid_size)
        text = _decode(model, tokens[:n])
        index = batch.caption_indices[row]
        results.append(CaptionWithMaps(image, index, text, maps, gates[row][:n]))
    return results


def _decode(model: Captioner, tokens: Tensor) -> str:
    return join_words([model.words[token] for token in tokens.tolist() if token != END])


GENERATED = ("val", "test", "novel", "shuffled", "untrained")
TEACHER_FORCED = (
    "val_teacher_forced",
    "teacher_forced",
    "shuffled_teacher_forced",
    "untrained_teacher_forced",
)


class CaptionEvaluation(Evaluation):
    """Metrics of the captions of a split, for the annotations that its images have.

    A split is one of `GENERATED` or `TEACHER_FORCED`; `names` are the metrics that validation logs
    for these annotations.
    """

    def __init__(self, split: str, names: Sequence[str]) -> None:
        super().__init__()
        self.split = split
        self.names = names
        self.loss = WeightedMean()
        self.scenes = SceneScores()
        self.phrases = PhraseScores()
        self.references = ReferenceScores()
        self.texts: Counter[str] = Counter()
        self.scored: tuple[dict[str, str], str] = ({}, "")
        self.updated: set[str] = set()

    def update_loss(self, loss: Float[Tensor, ""], num_words: int) -> None:
        """Add the mean loss of the words of a batch."""
        self.loss.update(loss * num_words, num_words)
        self.updated.add("loss")

    def update(
        self, captions: Sequence[CaptionWithMaps], batch: CaptionBatch, *, complete: bool
    ) -> None:
        """Update each metric for which the batch has annotations; phrases if `complete`."""
        generated = self.split in GENERATED
        worlds = [sample.world for sample in batch.samples if sample.world]
        if len(worlds) == len(batch.samples) and batch.images is not None:
            first = [caption for caption in captions if caption.caption_index == 0]
            self.scenes.update(
                [caption.text for caption in first],
                [caption.maps for caption in first],
                [worlds[caption.image_index] for caption in first],
                [caption.gates for caption in first],
                size=batch.images.shape[-1],
            )
            self.updated.add("scenes")
        if complete and any(sample.phrases for sample in batch.samples):
            maps = [caption.maps for caption in captions]
            self.phrases.update(maps, [_phrases(each, batch, generated) for each in captions])
            self.updated.add("phrases")
        if generated:
            self.texts.update(caption.text for caption in captions)
            if all(sample.references for sample in batch.samples):
                samples = [batch.samples[caption.image_index] for caption in captions]
                self.references.update(samples, [caption.text for caption in captions])
                self.updated.add("references")

    def compute(self) -> dict[str, Tensor]:
        """Return all metrics that any process updated."""
        updated = all_gather_union(self.updated)
        values = {"loss": self.loss.compute()} if "loss" in updated else {}
        if "scenes" in updated:
            self.scenes.update([], [], [], [], size=1)  # torchmetrics warns if there was no update
            names = () if self.split in TEACHER_FORCED else SCENE_CAPTION_METRICS
            if self.split not in ("shuffled", "untrained"):  # too few captions are correct
                names = (*names, *SCENE_MAP_METRICS)
            values |= self.scenes.compute(*names)
        if "phrases" in updated:
            self.phrases.update([], [])
            values |= self.phrases.compute(*PHRASE_METRICS)
        if "references" in updated:
            captions, scores = self.references.compute()
            self.scored = (captions, scores.signature)
            values |= {name.lower(): torch.tensor(v) for name, v in scores.corpus.items()}
            for warning in scores.warnings:
                rank_zero_warn(warning)
        return values

    def notes(self, split: str) -> dict[str, Any]:
        """Return the captions, and a note if nearly all images have the same one."""
        notes: dict[str, Any] = {}
        if "references" in all_gather_union(self.updated):
            captions, notes["signature"] = self.scored
            notes[f"{split}_captions"] = [
                {"image_id": image_id, "caption": caption} for image_id, caption in captions.items()
            ]
        texts = sum(all_gather(self.texts), Counter[str]())
        [(text, count)] = texts.most_common(1) or [("", 0)]
        total = texts.total()
        if split in ("val", "test") and total > 4 and count > 0.9 * total:
            notes["chance"] = f"{split}: {count:,} of {total:,} images have the caption {text!r}"
        return notes

    def reset(self) -> None:
        """Reset all metrics."""
        super().reset()
        self.references.reset()
        self.texts.clear()
        self.updated.clear()


def _phrases(caption: CaptionWithMaps, batch: CaptionBatch, generated: bool) -> tuple[Phrase, ...]:
    """Return the phrases of a caption whose boxes are known."""
    phrases = batch.samples[caption.image_index].phrases
    if not phrases:
        return ()
    if generated:
        return match_phrases(caption.text.split(), chain.from_iterable(phrases))
    return phrases[caption.caption_index]
