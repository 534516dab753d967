"""Scores of word maps against the boxes of phrases, with swapped and untrained controls."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.data.phrases.grounding import normalize_maps, score_phrases
from visattn.data.phrases.phrases import phrases_to_input
from visattn.data.phrases.samples import PhrasedPhoto
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.models.captioner import Captioner
from visattn.models.serialization.config import build_model, model_config
from visattn.pipelines.word_source import WordGrids, WordSource, word_grids
from visattn.results.captions import Phrase

Control = Literal["none", "swapped", "untrained"]
CONTROLS: tuple[Control, ...] = get_args(Control)
WORD_BASELINES = ("uniform", "center")
"""Maps that do not depend on the model."""
_CENTER_SIGMA = 0.25  # of the side


ReadWords = Callable[[nn.Module, LoadedImage, Sequence[str] | None], WordSource]
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
    max_controls: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the scores of each phrase by each method, and those of the controls.

    `swapped` maps the same words on the photo before, and scores them with the boxes of their own;
    `untrained` maps them with a model of random weights. A map that is zero everywhere is scored as
    the uniform one.

    Args:
        model: The model.
        photos: Photos with captions.
        methods: Methods for words.
        generated: Whether to score the captions that the model generates, by the phrases that
            they contain; otherwise the first reference caption that has phrases.
        controls: Which to compute; `none` is the model itself.
        max_controls: Number of captions for which other controls than `none` are computed; None
            for all.

    Raises:
        ValueError: If a method is unknown.
    """
    options = {"generated": generated, "controls": controls, "max_controls": max_controls}
    for scored in evaluate_photos(model, photos, methods, **options):
        yield from scored.rows


class ScoredPhoto(NamedTuple):
    """The scores of a photo.

    Args:
        name: Its name.
        content: Digest of all that they depend on but for model and options: pixels, captions, and
            the photo before, which is the control.
        rows: As `evaluate_words` yields them.
    """

    name: str
    content: str
    rows: list[dict[str, Any]]


Saved = Callable[[str, str], list[dict[str, Any]] | None]
"""Returns the rows of a photo, by its name and content, if they are known."""


def evaluate_photos(
    model: WordModel,
    photos: Iterable[PhrasedPhoto],
    methods: Sequence[str],
    *,
    saved: Saved = lambda *_: None,
    generated: bool = False,
    controls: Sequence[Control] = CONTROLS,
    max_controls: int | None = None,
) -> Iterator[ScoredPhoto]:
    """Yield the scores of each photo, as `evaluate_words` describes them.

    Args:
        model: The model.
        photos: Photos with captions.
        methods: Methods for words.
        saved: Rows that are known and not computed again.
        generated: Whether to score the captions that the model generates.
        controls: Which to compute.
        max_controls: Number of captions for which other controls than `none` are computed.

    Raises:
        ValueError: If a method is unknown.
    """
    untrained = model.untrained() if "untrained" in controls else model
    before: LoadedImage | None = None
    digest, count = "", 0
    for photo in photos:
        image = photo.load()
        own = _digest(image.pixels.tobytes(), repr((image.size, photo.captions)).encode())
        used: list[Control] = list(controls)
        if max_controls is not None and count >= max_controls:
            used = ["none"] if "none" in controls else []
        content = _digest(own.encode(), digest.encode(), repr(used).encode())
        rows = saved(photo.name, content)
        if rows is None:
            words, phrases = _caption_of(model, photo, image, generated=generated)
            rows = [{"kind": "caption", "image": photo.name, "caption": " ".join(words),
                     "phrases": len(phrases)}] if words and generated else []  # fmt: skip
            for control in used if phrases else ():
                shown = before if control == "swapped" else image
                if shown is None:
                    continue
                source = untrained if control == "untrained" else model
                maps = source.maps(shown, words, methods)
                for name, (values, cells) in _with_baselines(maps, control).items():
                    own_rows = _phrase_rows(values, phrases, cells)
                    labels = {"kind": "phrase", "image": photo.name, "method": name}
                    rows += [{**labels, "control": control, **row} for row in own_rows]
        yield ScoredPhoto(photo.name, content, rows)
        count += any(row["kind"] == "phrase" for row in rows)
        before, digest = image, own


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]


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
    sums, maps = values.clamp(min=0).sum((-2, -1)), normalize_maps(values)
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
