"""Scores of word maps against the boxes of phrases, with swapped and untrained controls."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.data.phrases.grounding import normalize_maps, score_phrases
from visattn.data.phrases.phrases import phrases_to_input
from visattn.data.phrases.samples import PhrasedPhoto
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.models.captioner import Captioner
from visattn.models.serialization.config import build_model, model_config
from visattn.pipelines.captioning import caption
from visattn.pipelines.explain_words import caption_maps, check_word_method
from visattn.results.captions import Phrase
from visattn.results.kinds import UNKNOWN, WordMethod

Control = Literal["none", "swapped", "untrained"]
CONTROLS: tuple[Control, ...] = get_args(Control)
WORD_BASELINES = ("uniform", "center")
"""Maps that do not depend on the model."""
CONTRAST = "contrast"
"""Name of the contrast with another prompt among the methods, for models of transformers."""
_CENTER_SIGMA = 0.25  # of the side


class WordExplainer(ABC):
    """A model that can caption photos and map the words of any caption."""

    @abstractmethod
    def generate(self, image: LoadedImage) -> tuple[str, ...]:
        """Return the words of the caption that the model generates."""

    @abstractmethod
    def check(self, method: str) -> None:
        """Refuse a method that does not fit the model."""

    @abstractmethod
    def maps(
        self, image: LoadedImage, words: Sequence[str], methods: Sequence[str]
    ) -> dict[str, tuple[Float[Tensor, "t gy gx"], Geometry]]:
        """Return a map per word of a given caption by several methods, each with its geometry."""

    @abstractmethod
    def untrained(self) -> "WordExplainer":
        """Return the same with random weights, always the same ones."""


@dataclass(frozen=True, eq=False)
class CaptionerExplainer(WordExplainer):
    """Word maps of a captioner of visattn.

    Args:
        model: The captioner.
        resize_mode: How images get the shape of its input.
    """

    model: Captioner
    resize_mode: ResizeMode = "crop"

    def generate(self, image: LoadedImage) -> tuple[str, ...]:
        """Return the words of the best caption by beam search."""
        [result] = caption(self.model, [image], resize_mode=self.resize_mode)
        return result.words

    def check(self, method: str) -> None:
        """Refuse an unknown method, and those for models of transformers."""
        check_word_method(method)

    def maps(
        self, image: LoadedImage, words: Sequence[str], methods: Sequence[str]
    ) -> dict[str, tuple[Float[Tensor, "t gy gx"], Geometry]]:
        """Return a map per word; words outside of the vocabulary are read as unknown."""
        ids = {word: token for token, word in enumerate(self.model.words)}
        tokens = [ids.get(word, UNKNOWN) for word in words]
        spec = ResizeSpec(size=self.model.encoder.img_size, mode=self.resize_mode)
        pixels, geometry = resize_to_input(image, spec)
        batch = pixels[None].to(self.model.encoder.shift.device)
        maps = caption_maps(self.model, batch, tokens, cast("Sequence[WordMethod]", methods))
        if (placement := self.model.encoder.placement) is not None:
            geometry = geometry.with_placement(placement)
        # windows of occlusion divide the image, wherever the features look
        return {
            name: (values.cpu(), geometry.from_edges() if name == "occlusion" else geometry)
            for name, values in maps.items()
        }

    def untrained(self) -> "CaptionerExplainer":
        """Return the same architecture with random weights."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = cast("Captioner", build_model(model_config(self.model)))
        return CaptionerExplainer(model.eval(), self.resize_mode)


@dataclass(frozen=True, eq=False)
class ReplayExplainer(WordExplainer):
    """Word maps of a model of transformers.

    Args:
        model: The model.
        processor: Its processor, as for `generate_and_replay`.
        prompt: Text before the caption.
        max_new_tokens: Maximum number of generated tokens.
        contrast: Another prompt, for the method `contrast`.
    """

    model: nn.Module
    processor: Any
    prompt: str | None = None
    max_new_tokens: int = 40
    contrast: str | None = None

    def generate(self, image: LoadedImage) -> tuple[str, ...]:
        """Return the words of the greedy caption."""
        from visattn.pipelines.words.replay import generate_and_replay

        [[replay]] = generate_and_replay(
            self.model,
            [image],
            processor=self.processor,
            prompt=self.prompt,
            max_new_tokens=self.max_new_tokens,
            do_sample=False,
        )
        return replay.words

    def check(self, method: str) -> None:
        """Refuse an unknown method."""
        from visattn.pipelines.words.methods import check_replay_method

        if method != CONTRAST:
            check_replay_method(method)
        elif self.contrast is None:
            raise ValueError("contrast compares two prompts: pass the other one as contrast=")

    def maps(
        self, image: LoadedImage, words: Sequence[str], methods: Sequence[str]
    ) -> dict[str, tuple[Float[Tensor, "t gy gx"], Geometry]]:
        """Return a map per word."""
        from visattn.pipelines.words.contrast import contrast_maps
        from visattn.pipelines.words.methods import placed_maps, replay_given
        from visattn.pipelines.words.processing import PhotoProcessor

        process = PhotoProcessor(self.model, self.processor, self.prompt)
        replay = replay_given(self.model, image, words, process)
        plain = [name for name in methods if name != CONTRAST]
        maps = placed_maps(replay, plain, processor=self.processor, prompt=self.prompt)
        if CONTRAST in methods:
            other = PhotoProcessor(self.model, self.processor, self.contrast)
            maps[CONTRAST] = contrast_maps(replay, other), replay.placement.geometry
        return maps

    def untrained(self) -> "ReplayExplainer":
        """Return the same architecture with random weights."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = type(self.model)(self.model.config)
        own: Any = self.model
        cast("Any", model).generation_config = own.generation_config
        return replace(self, model=model.eval())


def evaluate_words(
    explainer: WordExplainer,
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
        explainer: The model.
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
    for scored in evaluate_photos(explainer, photos, methods, **options):
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
    explainer: WordExplainer,
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
        explainer: The model.
        photos: Photos with captions.
        methods: Methods for words.
        saved: Rows that are known and not computed again.
        generated: Whether to score the captions that the model generates.
        controls: Which to compute.
        max_controls: Number of captions for which other controls than `none` are computed.

    Raises:
        ValueError: If a method is unknown.
    """
    for method in methods:
        explainer.check(method)
    untrained = explainer.untrained() if "untrained" in controls else explainer
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
            words, phrases = _caption_of(explainer, photo, image, generated=generated)
            rows = [{"kind": "caption", "image": photo.name, "caption": " ".join(words),
                     "phrases": len(phrases)}] if words and generated else []  # fmt: skip
            for control in used if phrases else ():
                shown = before if control == "swapped" else image
                if shown is None:
                    continue
                source = untrained if control == "untrained" else explainer
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
    explainer: WordExplainer, photo: PhrasedPhoto, image: LoadedImage, *, generated: bool
) -> tuple[tuple[str, ...], tuple[Phrase, ...]]:
    if generated:
        words = explainer.generate(image)
        return words, photo.match(words)
    return next((pair for pair in photo.captions if pair[1]), ((), ()))


Placed = dict[str, tuple[Tensor, Geometry]]


def _with_baselines(maps: Placed, control: Control) -> Placed:
    """Return the maps, with those that need no model beside the model's own."""
    if control != "none":
        return maps
    like, geometry = next(iter(maps.values()))
    y, x = (torch.linspace(-0.5, 0.5, side) for side in like.shape[-2:])
    center = (-(y[:, None] ** 2 + x**2) / (2 * _CENTER_SIGMA**2)).exp().expand_as(like)
    return {**maps, "uniform": (torch.ones_like(like), geometry), "center": (center, geometry)}


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
