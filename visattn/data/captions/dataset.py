"""Data sets of captioned images: photos or cached features, also mirrored with their captions."""

import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.captions.batch import CaptionSample, split_words
from visattn.data.captions.files import CaptionEntry
from visattn.data.feature_cache import FeatureCache
from visattn.data.loading.loader import ReadFallback
from visattn.data.loading.samplers import mix_seed, per_sample_uniforms
from visattn.data.phrases import phrases_to_input
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage, PathLike, read_image, read_size
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.io.locations import Source
from visattn.io.safe_paths import SafeDirectory
from visattn.results.captions import Phrase

_PAIRS = (
    ("left", "right"),
    ("leftmost", "rightmost"),
    ("leftward", "rightward"),
    ("leftwards", "rightwards"),
    ("lefthand", "righthand"),
)
_OPPOSITES = {word: other for pair in _PAIRS for word, other in (pair, pair[::-1])}
_SIDE = re.compile(
    rf"(?<!\w)(?:{'|'.join(sorted(_OPPOSITES, key=len)[::-1])})(?!\w)", re.IGNORECASE
)

# What stands beside a word that names a side, whatever else does.
_BEFORE_SIDE = re.compile(
    r"(?:\b(?:the|on|to|at|from|towards?|his|her|its|their|your|my|our|whose|far|near|upper|lower|top|"
    r"bottom|front|back|rear|center|middle|mid|hard|(?:left|right)(?:\s*/\s*|\s+(?:and|or|to)\s+))|'s)"
    r"\W*$",
    re.IGNORECASE,
)
_BEFORE_LEFT = re.compile(  # "walks left", whereas "walks right behind" may mean "closely"
    r"\b(?:fac|turn|look|lean|point|head|mov|veer|walk|go|bank|gaz|glanc|swerv|tilt|jump|run|step|slid|"
    r"div|fly|flies|kick|swing)\w*\W+$",
    re.IGNORECASE,
)
_AFTER_SIDE = re.compile(r"(?:\W*-|\W+(?:of|side|hand|handed|most|corner|edge)\b)", re.IGNORECASE)
# What no side has behind it, whatever stands before.
_AFTER_NO_SIDE = {
    "left": re.compile(  # the left over food, whereas a dog is "on the left over there"
        r"\W+overs?\b(?!\s+(?:there|here|the|an?|his|her|its|their|by|on|in|at)\b)", re.IGNORECASE
    ),
    "right": re.compile(  # a right angle, the right time
        r"\W+(?:angles?|angled|triangles?|time|place|moment|amount|size|answer|choice|now|away)\b",
        re.IGNORECASE,
    ),
}
# What stands beside left for "remaining" or "went away", and beside right for "exactly".
_BEFORE_OTHER = {
    "left": re.compile(
        r"\b(?:is|are|was|were|be|been|being|has|have|had|having|gets?|getting|got|just|already|"
        r"nothing|anything|none|he|she|it|they|we|you|who|which|"
        r"(?:no|any|few|little|only|enough|much|slices?|pieces?|bites?)(?:\s+[\w']+){0,3})\s+$",
        re.IGNORECASE,
    ),
    "right": re.compile(r"\b(?:all|just|quite|is|are|was|were|be|not)\s+$", re.IGNORECASE),
}
_AFTER_OTHER = {
    "left": re.compile(
        r"\s+(?:behind|over|overs|alone|open|out|outside|inside|unattended|untouched|uneaten|empty|"
        r"abandoned|overnight|for|standing|hanging|lying|parked|after|in|on|by|with)\b",
        re.IGNORECASE,
    ),
    "right": re.compile(
        r"\s+(?:next|by|beside|behind|before|after|above|below|under|underneath|beneath|over|in|into|"
        r"on|onto|at|up|down|out|off|through|there|here|where|when|as|near|against|along|alongside|"
        r"across|around|between|inside|outside|past|beyond|atop|back|towards?)\b",
        re.IGNORECASE,
    ),
}


def swap_sides(text: str) -> str:
    """Return a text about the mirrored image: left and right change places, all else stays.

    Case and punctuation stay. So do words that name no side, as far as the words beside them show:
    "left" for remaining or gone, as in "no seats left", and "right" for exactly or correct, as in
    "right next to" and "a right angle".

    Example:
        >>> swap_sides("A left-hand drive, Left. No seats left, right behind it.")
        'A right-hand drive, Right. No seats left, right behind it.'
    """
    return _SIDE.sub(lambda match: _opposite(match) if _is_side(match) else match[0], text)


def _is_side(match: re.Match[str]) -> bool:
    """Return whether a word names a side."""
    word = match[0].lower()
    text = match.string
    if word not in _BEFORE_OTHER:
        return True
    # The first of these tests that holds decides:
    #
    #     "a right angle", "the left over food"   correct, remaining: no side
    #     "on the left", "the left wall"          a word stands beside it that only sides have
    #     "walks left in the park"                a movement, while "left in" may mean "remained"
    #     "two slices left", "right next to"      remaining, exactly: no side
    #     "turn right"                            all others: a side
    #
    # Only 60 characters before: a pattern that ends in $ is tried from every place of its text.
    before = text[max(0, match.start() - 60) : match.start()]
    end = match.end()
    if _AFTER_NO_SIDE[word].match(text, end):
        return False
    if _BEFORE_SIDE.search(before) or _AFTER_SIDE.match(text, end):
        return True
    if word == "left" and _BEFORE_LEFT.search(before):
        return True
    return not (_BEFORE_OTHER[word].search(before) or _AFTER_OTHER[word].match(text, end))


def _opposite(match: re.Match[str]) -> str:
    word = match[0]
    opposite = _OPPOSITES[word.lower()]
    if word.isupper():
        return opposite.upper()
    return opposite.title() if word[0].isupper() else opposite


class CaptionedImages(Dataset[CaptionSample]):
    """Images, each with all of its captions, from any storage.

    Args:
        entries: Captions of each image.
        resize: Resizing to the network's input.
    """

    def __init__(self, entries: Sequence[CaptionEntry], resize: ResizeSpec) -> None:
        self.entries = entries
        self.resize = resize

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> CaptionSample:
        entry = self._entry(index)
        pixels, _ = self.load_input(index)
        return CaptionSample(entry.id, pixels, entry.captions, references=entry.captions)

    def load_input(self, index: int) -> tuple[UInt8[Tensor, "3 y x"], Geometry]:
        """Return the network's input for an image, and its geometry."""
        return resize_to_input(self.load_image(index), self.resize)

    @abstractmethod
    def load_image(self, index: int) -> LoadedImage:
        """Return an image at its own size.

        Raises:
            ImageError: If it cannot be read; the message names its location.
        """

    @abstractmethod
    def geometry(self, index: int) -> Geometry:
        """Return the geometry of an image; only its header is read."""

    def _entry(self, index: int) -> CaptionEntry:
        if not 0 <= index < len(self.entries):
            raise IndexError(f"index must lie in [0, {len(self.entries)}), got {index}")
        return self.entries[index]


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
        super().__init__(tuple(entries), resize)
        self.folder = Path(folder)
        check_photos(entries, folder)

    def load_image(self, index: int) -> LoadedImage:
        """Return a photo at its own size; an error names its file."""
        return read_image(self.folder / self._entry(index).file)

    def geometry(self, index: int) -> Geometry:
        """Return the geometry of a photo; only the header of its file is read."""
        size, orientation = read_size(self.folder / self._entry(index).file)
        return self.resize.geometry(size, orientation)


class CaptionedSources(CaptionedImages):
    """Photos of any source, such as the rows of a table, each with all of its captions.

    Args:
        entries: The captions of each photo.
        photos: The photos.
        resize: Resizing to the network's input.
    """

    def __init__(
        self, entries: Sequence[CaptionEntry], photos: Sequence[Source], resize: ResizeSpec
    ) -> None:
        super().__init__(entries, resize)
        self.photos = photos

    def load_image(self, index: int) -> LoadedImage:
        """Return a photo at its own size; an error names its place."""
        return read_image(self.photos[index])

    def geometry(self, index: int) -> Geometry:
        """Return the geometry of a photo, from its header."""
        size, orientation = read_size(self.photos[index])
        return self.resize.geometry(size, orientation)


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
            f"{examples}{_folder_hint(Path(folder), missing[0])}"
        )


def _is_nonempty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _folder_hint(folder: Path, file: str) -> str:
    """Return a hint if the photo is in a subfolder or a sibling of this folder."""
    parents = [path for path in (folder, folder.absolute().parent) if os.access(path, os.R_OK)]
    candidates = [
        Path(candidate)
        for parent in parents
        for candidate in sorted(os.scandir(parent), key=lambda candidate: candidate.name)
        if candidate.is_dir() and os.access(candidate, os.X_OK)
    ]
    match = next((path for path in candidates if _is_nonempty(path / file)), None)
    if match is None:
        return "; add them, or remove their captions"
    return f"; {match} contains the first one: is it the folder?"


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
