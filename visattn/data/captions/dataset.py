"""Captioned photos as inputs of a captioner: pixels or cached features, phrases, flips."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from visattn.data.augment import says_side
from visattn.data.captions.batch import CaptionSample, split_words
from visattn.data.feature_cache import FeatureCache
from visattn.data.phrases import phrases_to_input
from visattn.data.source import read_photo
from visattn.images.reader import read_size
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.results.captions import Phrase

Phrases = Mapping[str, Mapping[tuple[str, ...], tuple[Phrase, ...]]]
"""For each photo (file or id), the phrases of its captions by their words."""


@dataclass
class CaptionInput:
    """Prepares the input of a captioner from a photo with its captions.

    Args:
        resize: Resizing to the network's input.
        features: Cached features to use instead of pixels.
        phrases: Phrases with boxes relative to the photo.
        hflip: Flip half of the photos, unless a caption says left or right.
        value_range: See `read_photo`.
    """

    resize: ResizeSpec
    features: FeatureCache | None = None
    phrases: Phrases = field(default_factory=dict)
    hflip: bool = False
    value_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        self._on_input: dict[str, tuple[tuple[Phrase, ...], ...]] = {}

    def __call__(self, sample: Any, seed: int) -> CaptionSample:
        """Return the sample with its pixels or features; a rendered scene is returned as is."""
        sample = CaptionSample.of(sample)
        if isinstance(sample.image, Tensor):
            return sample
        mirror = self.hflip and seed % 2 == 1 and not any(map(says_side, sample.captions))
        sample = sample._replace(phrases=self.phrases_of(sample))
        if self.features is not None:
            grids = self.features.read(sample.image, mirrored=mirror)
            sample = sample._replace(image=None, grids=grids)
        else:
            pixels, _ = resize_to_input(read_photo(sample.image, self.value_range), self.resize)
            sample = sample._replace(image=pixels.flip(-1) if mirror else pixels)
        if not mirror:
            return sample
        mirrored = tuple(tuple(map(_mirrored, phrases)) for phrases in sample.phrases)
        return sample._replace(phrases=mirrored)

    def annotations(self, sample: CaptionSample) -> Mapping[tuple[str, ...], tuple[Phrase, ...]]:
        """Return the phrases of a photo by the words of its captions."""
        file = str(sample.image).replace("\\", "/")
        names = (sample.id, file.rpartition("/")[2], file)
        return next((self.phrases[name] for name in names if name in self.phrases), {})

    def phrases_of(self, sample: CaptionSample) -> tuple[tuple[Phrase, ...], ...]:
        """Return the phrases of each caption, with boxes relative to the network's input."""
        known = self.annotations(sample)
        if not known:
            return ()
        if sample.id not in self._on_input:
            geometry = self.resize.geometry(read_size(sample.image))
            self._on_input[sample.id] = tuple(
                phrases_to_input(known.get(tuple(split_words(caption)), ()), geometry)
                for caption in sample.captions
            )
        return self._on_input[sample.id]


def _mirrored(phrase: Phrase) -> Phrase:
    return phrase._replace(boxes=tuple((1 - x1, y0, 1 - x0, y1) for x0, y0, x1, y1 in phrase.boxes))
