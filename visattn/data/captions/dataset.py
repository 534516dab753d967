"""Caption dataset: photos or cached features, with captions, phrases and horizontal flips."""

from collections.abc import Iterator, Mapping

from torch.utils.data import Dataset

from visattn.data.captions.batch import CaptionSample
from visattn.data.captions.images import CaptionedImages
from visattn.data.captions.sides import swap_sides
from visattn.data.captions.vocabulary import split_words
from visattn.data.feature_cache import FeatureCache
from visattn.data.loading.fallback import ReadFallback
from visattn.data.loading.sample_seed import mix_seed, per_sample_uniforms
from visattn.data.phrases.phrases import phrases_to_input
from visattn.results.captions import Phrase

Phrases = Mapping[str, Mapping[tuple[str, ...], tuple[Phrase, ...]]]


class CaptionDataset(Dataset[CaptionSample]):
    """Photos with all their captions; cached features replace the pixels if there are any.

    Args:
        photos: The photos and their captions.
        feature_cache: Features of the same photos in the same order, or None.
        phrases: Phrases with boxes, by file or id of the photo and by the words of the caption.
            `phrase_coverage` returns the fraction of captions that have any.
        hflip: Flip each photo with probability 0.5, and swap left and right in its captions and
            phrases. With a feature cache, its second view is the flipped one. Indices may exceed
            the length: with n photos, i + n is photo i with a new random flip.
        seed: Seed of the flips.
        fallback: Replaces photos that cannot be read, with their captions; None raises.

    Example:
        >>> from PIL import Image
        >>> from visattn.data.captions.files import CaptionEntry
        >>> from visattn.data.captions.images import CaptionedPhotos
        >>> from visattn.images.resize import ResizeSpec
        >>> folder = getfixture("tmp_path")
        >>> Image.new("RGB", (7, 5)).save(folder / "a.png")
        >>> entries = [CaptionEntry("a", "a.png", ("A dark room .",))]
        >>> dataset = CaptionDataset(CaptionedPhotos(entries, folder, ResizeSpec((3, 3))))
        >>> dataset[0].captions, dataset[0].image.shape
        (('A dark room .',), torch.Size([3, 3, 3]))
    """

    def __init__(
        self,
        photos: CaptionedImages,
        *,
        feature_cache: FeatureCache | None = None,
        phrases: Phrases | None = None,
        hflip: bool = False,
        seed: int = 0,
        fallback: ReadFallback | None = None,
    ) -> None:
        self.photos, self.feature_cache, self.hflip, self.seed = photos, feature_cache, hflip, seed
        self.phrases, self.fallback = phrases or {}, fallback
        self._phrase_memo: dict[int, tuple[tuple[Phrase, ...], ...]] = {}

    def __len__(self) -> int:
        return len(self.photos)

    def __iter__(self) -> Iterator[CaptionSample]:
        # Without this, iteration would not end: __getitem__ never raises IndexError.
        return (self[index] for index in range(len(self)))

    def __getitem__(self, epoch_index: int) -> CaptionSample:
        flipped = self.hflip and bool(
            per_sample_uniforms(mix_seed(self.seed), [epoch_index], 1) < 0.5
        )

        def read(index: int) -> CaptionSample:
            sample = self._load(index, flipped=flipped)._replace(phrases=self.phrases_of(index))
            return hflip_sample(sample) if flipped else sample

        index = epoch_index % len(self)
        return read(index) if self.fallback is None else self.fallback.read(index, read)

    def phrases_of(self, index: int) -> tuple[tuple[Phrase, ...], ...]:
        """Return, for each caption, its phrases with boxes relative to the network's input."""
        if index not in self._phrase_memo:
            self._phrase_memo[index] = self._map_phrases(index)
        return self._phrase_memo[index]

    def _map_phrases(self, index: int) -> tuple[tuple[Phrase, ...], ...]:
        annotations, captions = self._annotations(index), self.photos.entries[index].captions
        if not annotations:
            return ()
        geometry = self.photos.geometry(index)
        return tuple(
            phrases_to_input(annotations.get(tuple(split_words(caption)), ()), geometry)
            for caption in captions
        )

    def _annotations(self, index: int) -> Mapping[tuple[str, ...], tuple[Phrase, ...]]:
        entry = self.photos.entries[index]
        return self.phrases.get(entry.file) or self.phrases.get(entry.id) or {}

    def phrase_coverage(self) -> float:
        """Return the fraction of captions that have phrase annotations."""
        annotated = [
            tuple(split_words(caption)) in self._annotations(index)
            for index, entry in enumerate(self.photos.entries)
            for caption in entry.captions
        ]
        return sum(annotated) / max(1, len(annotated))

    def _load(self, index: int, *, flipped: bool) -> CaptionSample:
        """Return a sample with cached features, if there are any, else with pixels."""
        entry = self.photos.entries[index]
        sample = CaptionSample(entry.id, None, entry.captions, references=entry.captions)
        if self.feature_cache is not None:
            return sample._replace(grids=self.feature_cache.read(index, int(flipped)))
        pixels, _ = self.photos.load_input(index)
        return sample._replace(image=pixels.flip(-1) if flipped else pixels)


def hflip_sample(sample: CaptionSample) -> CaptionSample:
    """Return a sample with left and right swapped in its captions, phrases and boxes.

    The references are not changed.

    Example:
        >>> ball = Phrase(0, 2, ((0.0, 0.0, 0.25, 1.0),), (), "left ball")
        >>> sample = CaptionSample("a", None, ("Left ball .",), phrases=((ball,),))
        >>> flipped = hflip_sample(sample)
        >>> flipped.captions, flipped.phrases[0][0].text, flipped.phrases[0][0].boxes
        (('Right ball .',), 'right ball', ((0.75, 0.0, 1.0, 1.0),))
    """
    return sample._replace(
        captions=tuple(map(swap_sides, sample.captions)),
        phrases=tuple(tuple(map(_flip_phrase, phrases)) for phrases in sample.phrases),
    )


def _flip_phrase(phrase: Phrase) -> Phrase:
    boxes = tuple((1 - x1, y0, 1 - x0, y1) for x0, y0, x1, y1 in phrase.boxes)
    return phrase._replace(boxes=boxes, text=swap_sides(phrase.text))
