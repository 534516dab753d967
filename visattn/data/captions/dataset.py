"""Photos with captions, features and phrases, put together as training and scoring want them."""

from collections.abc import Iterator, Mapping

from torch.utils.data import Dataset

from visattn.data.captions.batch import CaptionSample
from visattn.data.captions.images import CaptionedImages
from visattn.data.captions.vocabulary import split_words
from visattn.data.feature_cache.cache import FeatureCache
from visattn.data.loading.fallback import ReadFallback
from visattn.data.loading.sample_seed import mixed, numbered_uniforms
from visattn.data.phrases.phrases import Phrase, phrases_on_input

_SIDES = {"left": "right", "right": "left", "leftmost": "rightmost", "rightmost": "leftmost"}
Phrases = Mapping[str, Mapping[tuple[str, ...], tuple[Phrase, ...]]]


class CaptionDataset(Dataset[CaptionSample]):
    """Photos with all their captions; with features in place of pixels where these were kept.

    Args:
        photos: The photos and their captions.
        cache: Features of the same photos in the same order, or none.
        phrases: For a photo, by its file or id, and a caption, by its words, the phrases with
            boxes. `phrases_known` says how many captions found theirs.
        mirror: Show every second photo mirrored, at random, and swap left and right in what is
            said of it. With a cache, its second view is the mirrored one. Numbers go on behind
            the last photo: with n photos, i + n is photo i, for which the lot is cast anew.
        seed: Another seed, others are mirrored.
        substitutes: What stands in, with its captions, for a photo that cannot be read; none if
            left out.

    Example:
        >>> from PIL import Image
        >>> from visattn.data.captions.files import CaptionEntry
        >>> from visattn.data.captions.images import CaptionedPhotos
        >>> from visattn.data.images.resize import ResizeSpec
        >>> folder = getfixture("tmp_path")
        >>> Image.new("RGB", (7, 5)).save(folder / "a.png")
        >>> entries = [CaptionEntry("a", "a.png", ("A dark room .",))]
        >>> told = CaptionDataset(CaptionedPhotos(entries, folder, ResizeSpec((3, 3))))
        >>> told[0].captions, told[0].image.shape
        (('A dark room .',), torch.Size([3, 3, 3]))
    """

    def __init__(
        self,
        photos: CaptionedImages,
        *,
        cache: FeatureCache | None = None,
        phrases: Phrases | None = None,
        mirror: bool = False,
        seed: int = 0,
        substitutes: ReadFallback | None = None,
    ) -> None:
        self.photos, self.cache, self.mirror, self.seed = photos, cache, mirror, seed
        self.phrases, self.substitutes = phrases or {}, substitutes
        self._placed: dict[int, tuple[tuple[Phrase, ...], ...]] = {}

    def __len__(self) -> int:
        return len(self.photos)

    def __iter__(self) -> Iterator[CaptionSample]:
        return (self[index] for index in range(len(self)))  # numbers alone would never end

    def __getitem__(self, number: int) -> CaptionSample:
        mirrored = self.mirror and bool(numbered_uniforms(mixed(self.seed), [number], 1) < 0.5)

        def read(index: int) -> CaptionSample:
            sample = self._seen(index, mirrored=mirrored)._replace(phrases=self.phrases_of(index))
            return mirrored_words(sample) if mirrored else sample

        index = number % len(self)
        return read(index) if self.substitutes is None else self.substitutes.read(index, read)

    def phrases_of(self, index: int) -> tuple[tuple[Phrase, ...], ...]:
        """Return, for each caption, its phrases with boxes as shares of what the network sees."""
        if index not in self._placed:
            self._placed[index] = self._place(index)
        return self._placed[index]

    def _place(self, index: int) -> tuple[tuple[Phrase, ...], ...]:
        known, captions = self._known(index), self.photos.entries[index].captions
        if not known:
            return ()
        geometry = self.photos.geometry(index)
        return tuple(
            phrases_on_input(known.get(tuple(split_words(caption)), ()), geometry)
            for caption in captions
        )

    def _known(self, index: int) -> Mapping[tuple[str, ...], tuple[Phrase, ...]]:
        entry = self.photos.entries[index]
        return self.phrases.get(entry.file) or self.phrases.get(entry.id) or {}

    def phrases_known(self) -> float:
        """Return the share of captions of which phrases are known."""
        told = [
            tuple(split_words(caption)) in self._known(index)
            for index, entry in enumerate(self.photos.entries)
            for caption in entry.captions
        ]
        return sum(told) / max(1, len(told))

    def _seen(self, index: int, *, mirrored: bool) -> CaptionSample:
        """Return what the network gets of a photo: features if they were kept, else pixels."""
        entry = self.photos.entries[index]
        sample = CaptionSample(entry.id, None, entry.captions, references=entry.captions)
        if self.cache is not None:
            return sample._replace(grids=self.cache.read(index, int(mirrored)))
        pixels, _ = self.photos.framed(index)
        return sample._replace(image=pixels.flip(-1) if mirrored else pixels)


def mirrored_words(sample: CaptionSample) -> CaptionSample:
    """Return a sample in which left and right change places, in words and boxes.

    References stay as they were written.

    Example:
        >>> ball = Phrase(0, 2, ((0.0, 0.0, 0.25, 1.0),), (), "left ball")
        >>> sample = CaptionSample("a", None, ("Left ball .",), phrases=((ball,),))
        >>> turned = mirrored_words(sample)
        >>> turned.captions, turned.phrases[0][0].text, turned.phrases[0][0].boxes
        (('right ball .',), 'right ball', ((0.75, 0.0, 1.0, 1.0),))
    """
    return sample._replace(
        captions=tuple(map(_swapped, sample.captions)),
        phrases=tuple(tuple(map(_mirrored, phrases)) for phrases in sample.phrases),
    )


def _swapped(text: str) -> str:
    return " ".join(_SIDES.get(word.lower(), word) for word in text.split(" "))


def _mirrored(phrase: Phrase) -> Phrase:
    boxes = tuple((1 - x1, y0, 1 - x0, y1) for x0, y0, x1, y1 in phrase.boxes)
    return phrase._replace(boxes=boxes, text=_swapped(phrase.text))
