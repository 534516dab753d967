"""Data sets of captioned images: photos or cached features, also mirrored with their captions."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.captions.batch import CaptionSample, split_words
from visattn.data.captions.files import CaptionEntry
from visattn.data.feature_cache import FeatureCache
from visattn.data.loading.loader import PathList, ReadFallback
from visattn.data.loading.samplers import mix_seed, per_sample_uniforms
from visattn.data.phrases import phrases_to_input
from visattn.geometry.affine import Geometry
from visattn.images.reader import PathLike, read_image, read_size
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.io.safe_paths import SafeDirectory
from visattn.io.sources import Source
from visattn.results.captions import Phrase

# Words for left and right, or how they begin. Where spaces separate words, "bright" is no side.
_SIDES = re.compile(
    r"\b(?:left|right"  # English
    r"|links|linke(?!d)|recht[se]"  # German, Dutch
    r"|gauche|droit"  # French
    r"|izquierd|derech"  # Spanish
    r"|(?:sini|de)str[aeio]\b"  # Italian
    r"|esquerd|direit"  # Portuguese
    r"|слева|справа|(?:в|на)?(?:лев|прав)[ыаоуе])"  # Russian
    r"|يسار|يمين|يسر|يمن"  # Arabic, which writes articles and prepositions before them
    r"|[左右]|ひだり|みぎ"  # Chinese, Japanese
    r"|왼|오른|[좌우]측",  # Korean
    re.IGNORECASE,
)


def says_side(text: str) -> bool:
    """Return whether a text says left or right, in any of twelve languages.

    The languages are English, German, Dutch, French, Spanish, Italian, Portuguese, Russian, Arabic,
    Chinese, Japanese and Korean. Other meanings count as well, as in "no seats left".

    Example:
        >>> [text for text in ("a left-hand drive", "狗在右边", "a bright day") if says_side(text)]
        ['a left-hand drive', '狗在右边']
    """
    return _SIDES.search(unicodedata.normalize("NFKC", text)) is not None


class CaptionedImages(Dataset[CaptionSample]):
    """Images, each with all of its captions.

    Args:
        entries: Captions of each image.
        photos: The images, such as the rows of a table.
        resize: Resizing to the network's input.
    """

    def __init__(
        self, entries: Sequence[CaptionEntry], photos: Sequence[Source], resize: ResizeSpec
    ) -> None:
        self.entries = entries
        self.photos = photos
        self.resize = resize

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> CaptionSample:
        entry = self.entries[index]
        pixels, _ = self.load_input(index)
        return CaptionSample(entry.id, pixels, entry.captions, references=entry.captions)

    def load_input(self, index: int) -> tuple[UInt8[Tensor, "3 y x"], Geometry]:
        """Return the network's input for an image, and its geometry."""
        return resize_to_input(read_image(self.photos[index]), self.resize)

    def geometry(self, index: int) -> Geometry:
        """Return the geometry of an image; only its header is read."""
        return self.resize.geometry(read_size(self.photos[index]))


class CaptionedPhotos(CaptionedImages):
    """Photos in a folder, each with all of its captions.

    Args:
        entries: As `read_captions` and `select_listed` return them.
        folder: Folder that the files of the entries are relative to.
        resize: Resizing to the network's input.

    Raises:
        FileNotFoundError: If the folder, or any photo in it, is missing or empty.
        ValueError: If the path of a photo, or a link, leads outside of the folder.

    Example:
        >>> from PIL import Image
        >>> folder = getfixture("tmp_path")
        >>> Image.new("RGB", (7, 5)).save(folder / "a.png")
        >>> entries = [CaptionEntry("a", "a.png", ("A dark room .",))]
        >>> photos = CaptionedPhotos(entries, folder, ResizeSpec((3, 3)))
        >>> photos[0].image.shape, photos[0].captions
        (torch.Size([3, 3, 3]), ('A dark room .',))
    """

    def __init__(
        self, entries: Sequence[CaptionEntry], folder: PathLike, resize: ResizeSpec
    ) -> None:
        check_photos(entries, folder)
        files = PathList(Path(folder, entry.file) for entry in entries)
        super().__init__(tuple(entries), files, resize)


def check_photos(entries: Sequence[CaptionEntry], folder: PathLike) -> None:
    """Raise if a photo is missing in the folder or empty; none is decoded.

    Raises:
        FileNotFoundError: If there is such a photo, or the folder itself is missing.
        ValueError: If the path of a file, or a link, leads outside of the folder.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; give the folder of the photos")
    directory = SafeDirectory(folder)
    missing = [entry.file for entry in entries if not _is_nonempty(directory.path(entry.file))]
    if missing:
        examples = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise FileNotFoundError(
            f"{len(missing):,} of {len(entries):,} photos are missing or empty in {folder}: "
            f"{examples}; add them, or remove their captions"
        )


def _is_nonempty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


Phrases = Mapping[str, Mapping[tuple[str, ...], tuple[Phrase, ...]]]


class CaptionDataset(Dataset[CaptionSample]):
    """Photos with all their captions; cached features replace the pixels if there are any.

    Args:
        photos: The photos and their captions.
        feature_cache: Features of the same photos in the same order, or None.
        phrases: Phrases with boxes, by file or id of the photo and by the words of the caption.
            `phrase_coverage` returns the fraction of captions that have any.
        hflip: Flip each photo with probability 0.5, unless a caption of it says left or right. With
            a feature cache, its second view is the flipped one. Indices may exceed the length: with
            n photos, i + n is photo i with a new random flip.
        seed: Seed of the flips.
        fallback: Replaces photos that cannot be read, with their captions; None raises.

    Example:
        >>> from PIL import Image
        >>> from visattn.data.captions.files import CaptionEntry
        >>> from visattn.data.captions.dataset import CaptionedPhotos
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
        self.photos = photos
        self.feature_cache = feature_cache
        self.hflip = hflip
        self.seed = seed
        self.phrases = phrases or {}
        self.fallback = fallback
        self._phrase_memo: dict[int, tuple[tuple[Phrase, ...], ...]] = {}

    def __len__(self) -> int:
        return len(self.photos)

    def __iter__(self) -> Iterator[CaptionSample]:
        # Without this, iteration would not end: __getitem__ never raises IndexError.
        return (self[index] for index in range(len(self)))

    def __getitem__(self, epoch_index: int) -> CaptionSample:
        mirror = self.hflip and bool(
            per_sample_uniforms(mix_seed(self.seed), [epoch_index], 1) < 0.5
        )

        def read(index: int) -> CaptionSample:
            flipped = mirror and not any(map(says_side, self.photos.entries[index].captions))
            sample = self._load(index, flipped=flipped)._replace(phrases=self.phrases_of(index))
            return sample._replace(phrases=_flip_phrases(sample.phrases)) if flipped else sample

        index = epoch_index % len(self)
        return read(index) if self.fallback is None else self.fallback.read(index, read)

    def phrases_of(self, index: int) -> tuple[tuple[Phrase, ...], ...]:
        """Return, for each caption, its phrases with boxes relative to the network's input."""
        if index not in self._phrase_memo:
            self._phrase_memo[index] = self._map_phrases(index)
        return self._phrase_memo[index]

    def _map_phrases(self, index: int) -> tuple[tuple[Phrase, ...], ...]:
        annotations = self._annotations(index)
        captions = self.photos.entries[index].captions
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


def _flip_phrases(phrases: tuple[tuple[Phrase, ...], ...]) -> tuple[tuple[Phrase, ...], ...]:
    """Return phrases with mirrored boxes."""
    return tuple(tuple(map(_flip_phrase, of_caption)) for of_caption in phrases)


def _flip_phrase(phrase: Phrase) -> Phrase:
    return phrase._replace(boxes=tuple((1 - x1, y0, 1 - x0, y1) for x0, y0, x1, y1 in phrase.boxes))
