"""Scores of word maps against the boxes of phrases, with swapped and untrained controls."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.data.phrases import PhrasedPhoto, normalize_maps, phrases_to_input, score_phrases
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.models.captioning.captioner import Captioner
from visattn.models.saving.config import build_model, model_config
from visattn.pipelines.word_source import WordGrids, WordSource, word_grids
from visattn.results.captions import Phrase

Control = Literal["none", "swapped", "untrained"]
CONTROLS: tuple[Control, ...] = get_args(Control)
WORD_BASELINES = ("uniform", "center")
"""Maps that do not depend on the model."""
_CENTER_SIGMA = 0.25  # of the side


ReadWords = Callable[[Any, LoadedImage, Sequence[str] | None], WordSource]
"""Returns the given words of a photo for a model; for None those that the model generates."""


@dataclass(frozen=True, eq=False)
class WordModel:
    """A model that captions photos, whose words are scored.

    Args:
        model: The model.
        read: `CaptionerWords.read` or `ReplayedWords.read`, with their options.
    """

    model: nn.Module
    read: ReadWords

    def words(self, image: LoadedImage) -> tuple[str, ...]:
        """Return the words of the caption that the model generates."""
        return self.read(self.model, image, None).words

    def maps(
        self, image: LoadedImage, words: Sequence[str], methods: Sequence[str]
    ) -> dict[str, WordGrids]:
        """Return a map per word of a given caption by several methods."""
        source = self.read(self.model, image, words)
        return {name: grids for name, (grids,) in word_grids(source, methods).items()}

    def untrained(self) -> "WordModel":
        """Return the same with random weights, always the same ones."""
        own: Any = self.model
        with torch.random.fork_rng():
            torch.manual_seed(0)
            if isinstance(own, Captioner):
                model: Any = build_model(model_config(own))
            else:
                model = type(own)(own.config)
                model.generation_config = own.generation_config
        return replace(self, model=model.eval())


def evaluate_words(
    model: WordModel,
    photos: Iterable[PhrasedPhoto],
    methods: Sequence[str],
    *,
    generated: bool = False,
    controls: Sequence[Control] = CONTROLS,
) -> Iterator[dict[str, Any]]:
    """Yield the scores of each phrase by each method, and those of the controls.

    Args:
        model: The model.
        photos: Photos with captions.
        methods: Methods for words.
        generated: As for `photo_rows`.
        controls: As for `photo_rows`.

    Raises:
        ValueError: If a method is unknown.
    """
    untrained = model.untrained() if "untrained" in controls else None
    before: LoadedImage | None = None
    for photo in photos:
        image = photo.load()
        models: dict[Control, WordModel] = {"none": model, "swapped": model}
        shown: dict[Control, LoadedImage] = {"none": image}
        if before is not None:
            shown["swapped"] = before
        if untrained is not None:
            models["untrained"], shown["untrained"] = untrained, image
        pairs: dict[Control, tuple[WordModel, LoadedImage]] = {
            name: (models[name], shown[name]) for name in controls if name in shown
        }
        yield from photo_rows(model, photo, image, methods, pairs, generated=generated)
        before = image


def photo_rows(
    model: WordModel,
    photo: PhrasedPhoto,
    image: LoadedImage,
    methods: Sequence[str],
    controls: Mapping[Control, tuple[WordModel, LoadedImage]],
    *,
    generated: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the scores of each phrase of a photo.

    `swapped` maps the same words on another photo, and scores them with the boxes of their own;
    `untrained` maps them with a model of random weights. A map that is zero everywhere is scored as
    the uniform one.

    Args:
        model: The model, which generates the caption.
        photo: The photo with its captions.
        image: Its pixels.
        methods: Methods for words.
        controls: Which to compute, `none` being the model itself: the model and the photo that it
            gets.
        generated: Whether to score the captions that the model generates, by the phrases that they
            contain; otherwise the first reference caption that has phrases.

    Raises:
        ValueError: If a method is unknown.
    """
    words, phrases = _caption_of(model, photo, image, generated=generated)
    if words and generated:
        yield {"kind": "caption", "image": photo.name, "caption": " ".join(words),
               "phrases": len(phrases)}  # fmt: skip
    for control, (reader, shown) in controls.items() if phrases else ():
        maps = reader.maps(shown, words, methods)
        for name, (values, cells) in _with_baselines(maps, control).items():
            labels = {"kind": "phrase", "image": photo.name, "method": name, "control": control}
            for row in _phrase_rows(values, phrases, cells):
                yield {**labels, **row}


def _caption_of(
    model: WordModel, photo: PhrasedPhoto, image: LoadedImage, *, generated: bool
) -> tuple[tuple[str, ...], tuple[Phrase, ...]]:
    if generated:
        words = model.words(image)
        return words, photo.match(words)
    return next((pair for pair in photo.captions if pair[1]), ((), ()))


def _with_baselines(maps: dict[str, WordGrids], control: Control) -> dict[str, WordGrids]:
    """Return the maps, with those that need no model beside the model's own."""
    if control != "none":
        return maps
    like, geometry = next(iter(maps.values()))
    y, x = (torch.linspace(-0.5, 0.5, side) for side in like.shape[-2:])
    center = (-(y[:, None] ** 2 + x**2) / (2 * _CENTER_SIGMA**2)).exp().expand_as(like)
    baselines = {"uniform": torch.ones_like(like), "center": center}
    return {**maps, **{name: WordGrids(each, geometry) for name, each in baselines.items()}}


def _phrase_rows(
    values: Float[Tensor, "t gy gx"], phrases: Sequence[Phrase], geometry: Geometry
) -> Iterator[dict[str, Any]]:
    """Yield the scores of each phrase that lies in the input."""
    sums = values.clamp(min=0).sum((-2, -1))
    maps = normalize_maps(values)
    placed = phrases_to_input(phrases, geometry)
    for phrase, result in zip(placed, score_phrases(maps, placed), strict=True):
        empty = bool((sums[phrase.start : phrase.start + phrase.num_words] <= 0).all())
        yield {
            "start": phrase.start,
            "phrase": phrase.text,
            "pointing": float(result.pointing_hit),
            "mass": result.mean_correctness,
            "area": result.baseline,
            "empty": empty,
        }


def mean_word_scores(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the means over phrases: by method and control.

    `lift` is the mass in the boxes minus their share of the area, which is what uniform attention
    has there; `empty` is the share of maps that were zero everywhere.

    Args:
        rows: As `evaluate_words` yields them.

    Example:
        >>> row = {"kind": "phrase", "method": "attention", "control": "none", "empty": False}
        >>> rows = [{**row, "pointing": 1.0, "mass": 0.75, "area": 0.25}]
        >>> mean_word_scores(rows)["attention"]["none"]["lift"]
        0.5
    """
    groups: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row["kind"] == "phrase":
            by_control = groups.setdefault(row["method"], {})
            by_control.setdefault(row["control"], []).append(row)
    return {
        method: {control: _means(own) for control, own in by_control.items()}
        for method, by_control in groups.items()
    }


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = ("pointing", "mass", "area", "empty")
    means = {name: fmean(float(row[name]) for row in rows) for name in names}
    return {"count": len(rows), **means, "lift": means["mass"] - means["area"]}
