"""Sources of shards: captioned photos, photos in class folders, or images in memory."""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Int, UInt8
from PIL import Image
from torch import Tensor

from visattn.data.captions.batch import split_words
from visattn.data.captions.dataset import check_photos
from visattn.data.captions.files import CaptionEntry, check_disjoint_splits
from visattn.data.classification.datasets import find_classes, list_labeled_files
from visattn.data.shards.format import ShardKind
from visattn.images.formats import image_formats
from visattn.images.reader import ImageError, PathLike, read_image

EXTENSIONS = {
    "JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp",
    "TIFF": "tif", "PPM": "ppm", "AVIF": "avif", "HEIF": "heic",
}  # fmt: skip


@dataclass(frozen=True)
class ShardSample:
    """One sample to write into a shard.

    Args:
        label: Its class index; -1 without classes.
    """

    image: bytes
    record: Mapping[str, Any]
    label: int = -1


class ShardSource:
    """The samples of one split to write.

    Args:
        labels: Class index of each image; None with captions.
    """

    def __init__(
        self,
        files: Sequence[Path],
        records: Sequence[Mapping[str, Any]],
        labels: Sequence[int] | None = None,
    ) -> None:
        self.files = files
        self.records = records
        self.labels = [-1] * len(records) if labels is None else labels

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: int) -> ShardSample:
        """Return a sample, with the image file's content.

        Raises:
            ImageError: If the image cannot be read; the message names its file.
        """
        path = self.files[number]
        read_image(path)  # unreadable images must not get into a shard
        return ShardSample(path.read_bytes(), self.records[number], self.labels[number])

    def has_image(self, number: int, content: bytes) -> bool:
        """Return whether the file of an image has this content now."""
        path = self.files[number]
        return path.stat().st_size == len(content) and path.read_bytes() == content

    def fingerprint_items(self) -> Iterator[object]:
        """Yield the values that identify the samples in the plan hash; file contents are not.

        They are compared byte by byte with what was written.
        """
        yield from zip(self.records, self.labels, strict=True)


class InMemorySource(ShardSource):
    """Grayscale or RGB images in memory, written as PNG."""

    def __init__(
        self,
        images: UInt8[Tensor, "n c y x"],
        labels: Int[Tensor, " n"],
        classes: Sequence[str],
    ) -> None:
        records = [{"class": classes[label]} for label in labels.tolist()]
        super().__init__((), records, labels.tolist())
        self.images = images

    def __getitem__(self, number: int) -> ShardSample:
        """Return a sample, its image as PNG."""
        pixels = self.images[number].permute(1, 2, 0).numpy()
        file = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "png")
        return ShardSample(file.getvalue(), self.records[number], self.labels[number])

    def has_image(self, number: int, content: bytes) -> bool:  # noqa: ARG002
        """Return True: the pixels are part of the plan hash, and encoders of PNG differ."""
        return True

    def fingerprint_items(self) -> Iterator[object]:
        """Yield the values that identify the samples in the plan hash, pixels included."""
        yield hashlib.sha256(self.images.contiguous().view(-1).numpy().data).hexdigest()
        yield from super().fingerprint_items()


@dataclass(frozen=True)
class ShardPlan:
    """Contents of a folder of shards to write; fields as in `ShardInfo`.

    Args:
        word_counts: Word frequencies in the captions of each split.
    """

    kind: ShardKind
    sources: Mapping[str, ShardSource]
    classes: tuple[str, ...] = ()
    channels: int = 3
    size: tuple[int, int] | None = None
    word_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.sources.values()))

    def hash(self, per_shard: int) -> str:
        """Return a hash of everything that determines the shards."""
        digest = hashlib.sha256()
        settings = {"per_shard": per_shard, "kind": self.kind, "classes": self.classes}
        digest.update(
            json.dumps({**settings, "channels": self.channels, "size": self.size}).encode()
        )
        for split, source in self.sources.items():
            digest.update(split.encode())
            for item in source.fingerprint_items():
                digest.update(json.dumps(item).encode() + b"\n")
        return digest.hexdigest()


def caption_plan(splits: Mapping[str, Sequence[CaptionEntry]], photos: PathLike) -> ShardPlan:
    """Return the plan of shards of photos with captions.

    Raises:
        FileNotFoundError: If the folder, or a photo, is missing.
        ValueError: If two splits share a photo.

    Example:
        >>> from visattn.data.captions.files import read_captions
        >>> folder = getfixture("tmp_path")
        >>> Image.new("RGB", (7, 5)).save(folder / "a.png")
        >>> plan = caption_plan({"train": [CaptionEntry("a", "a.png", ("A dark room .",))]}, folder)
        >>> plan.sources["train"][0].record
        {'id': 'a', 'file': 'a.png', 'captions': ['A dark room .']}
    """
    check_disjoint_splits(splits)
    for entries in splits.values():
        check_photos(entries, photos)
    sources = {
        split: ShardSource(
            [Path(photos, entry.file) for entry in entries],
            [
                {"id": entry.id, "file": entry.file, "captions": list(entry.captions)}
                for entry in entries
            ],
        )
        for split, entries in splits.items()
    }
    word_counts: dict[str, dict[str, int]] = {}
    for split, entries in splits.items():
        captions = (caption for entry in entries for caption in entry.captions)
        word_counts[split] = dict(Counter(w for caption in captions for w in split_words(caption)))
    return ShardPlan("captions", sources, word_counts=word_counts)


def folder_plan(root: PathLike, splits: Mapping[str, str]) -> ShardPlan:
    """Return the plan of shards of photos in ROOT/SPLIT/CLASS/PHOTO.

    Raises:
        FileNotFoundError: If a class has no folder or no photos.
        ValueError: If a split has a class that the training split lacks.
    """
    classes = tuple(find_classes(Path(root, splits["train"])))
    sources: dict[str, ShardSource] = {}
    for split, folder in splits.items():
        files, labels = list_labeled_files(Path(root, folder), classes)
        numbers = labels.tolist()
        records = [
            {"file": file.relative_to(root).as_posix(), "class": classes[number]}
            for file, number in zip(files, numbers, strict=True)
        ]
        sources[split] = ShardSource(files, records, numbers)
    return ShardPlan("classes", sources, classes)


def in_memory_plan(
    parts: Mapping[str, tuple[UInt8[Tensor, "n c y x"], Int[Tensor, " n"]]],
    classes: Sequence[str],
) -> ShardPlan:
    """Return the plan of shards of small images in memory, used without resizing.

    Example:
        >>> part = torch.zeros(2, 1, 5, 3, dtype=torch.uint8), torch.tensor([1, 0])
        >>> in_memory_plan({"train": part}, ["no", "yes"]).size
        (5, 3)
    """
    (channels, height, width), *others = {tuple(part.shape[1:]) for part, _ in parts.values()}
    if others:
        raise ValueError(f"images must have one shape, got {(channels, height, width)}, {others}")
    sources = {split: InMemorySource(*part, classes) for split, part in parts.items()}
    return ShardPlan("classes", sources, tuple(classes), channels, (height, width))


def image_extension(image: bytes) -> str:
    """Return the file extension of an encoded image, by its content.

    Raises:
        ImageError: If its format is unknown.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("L", (2, 2)).save(file, "png")
        >>> image_extension(file.getvalue())
        'png'
    """
    with Image.open(io.BytesIO(image), formats=image_formats()) as opened:
        image_format = str(opened.format)
    if image_format not in EXTENSIONS:
        raise ImageError(f"unsupported image format {image_format}")
    return EXTENSIONS[image_format]
