"""What goes into shards: photos with captions, photos in class folders, or images in memory."""

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

from visattn.data.captions.files import CaptionEntry, check_disjoint
from visattn.data.captions.images import missing_photos
from visattn.data.captions.vocabulary import split_words
from visattn.data.classification.datasets import class_folders, labeled_files
from visattn.data.images.reader import FORMATS, ImageError, PathLike, read_image
from visattn.data.shards.format import Kind

ENDINGS = {
    "JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp",
    "TIFF": "tif", "PPM": "ppm", "AVIF": "avif",
}  # fmt: skip


@dataclass(frozen=True)
class ShardSample:
    """One sample on its way into a shard.

    Args:
        image: The bytes of an image's file.
        record: What is told of it; plain values.
        label: The number of its class; -1 where there are none.
    """

    image: bytes
    record: Mapping[str, Any]
    label: int = -1


class ShardSource:
    """The samples of one split, to be written.

    Args:
        files: Where the images lie.
        records: What is told of each.
        labels: The class of each; none with captions.
    """

    def __init__(
        self,
        files: Sequence[Path],
        records: Sequence[Mapping[str, Any]],
        labels: Sequence[int] | None = None,
    ) -> None:
        self.files, self.records = files, records
        self.labels = [-1] * len(records) if labels is None else labels

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: int) -> ShardSample:
        """Return a sample, its image as it lies in its file.

        Raises:
            ImageError: If the image cannot be read; the message names its file.
        """
        path = self.files[number]
        read_image(path)  # what cannot be read must not get into a shard
        return ShardSample(path.read_bytes(), self.records[number], self.labels[number])

    def told(self) -> Iterator[object]:
        """Yield all by which other samples would be known as others; pixels of files are not."""
        yield from zip(self.records, self.labels, strict=True)


class HeldSource(ShardSource):
    """Images in memory, to be written as PNG.

    Args:
        images: Gray or RGB.
        labels: The class of each.
        classes: Their names.
    """

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

    def told(self) -> Iterator[object]:
        """Yield all by which other samples would be known as others, their pixels too."""
        yield hashlib.sha256(self.images.contiguous().view(-1).numpy().data).hexdigest()
        yield from super().told()


@dataclass(frozen=True)
class ShardPlan:
    """All that shards are to hold.

    Args:
        kind: What is told of each image: captions, or its class.
        sources: By split.
        classes: Their names, in the order of their numbers.
        channels: 1 where all images are gray and are to be read so.
        size: Height and width of all images where they are to be shown as they are.
        words: For each split how often each word stands in its captions.
    """

    kind: Kind
    sources: Mapping[str, ShardSource]
    classes: tuple[str, ...] = ()
    channels: int = 3
    size: tuple[int, int] | None = None
    words: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.sources.values()))

    def hash(self, per_shard: int) -> str:
        """Return what changes whenever the shards would."""
        digest = hashlib.sha256()
        told = {"per_shard": per_shard, "kind": self.kind, "classes": self.classes}
        digest.update(json.dumps({**told, "channels": self.channels, "size": self.size}).encode())
        for split, source in self.sources.items():
            digest.update(split.encode())
            for one in source.told():
                digest.update(json.dumps(one).encode() + b"\n")
        return digest.hexdigest()


def caption_plan(splits: Mapping[str, Sequence[CaptionEntry]], photos: PathLike) -> ShardPlan:
    """Return the plan of shards of photos with captions.

    Args:
        splits: Of `train`, `validation` and `test`.
        photos: Folder below which the files of the entries lie.

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
    check_disjoint(splits)
    for entries in splits.values():
        if missing := missing_photos(entries, photos):
            raise FileNotFoundError(
                f"{len(missing):,} of {len(entries):,} photos are missing or empty in {photos}: "
                f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
            )
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
    return ShardPlan("captions", sources, words={s: _counted(e) for s, e in splits.items()})


def _counted(entries: Sequence[CaptionEntry]) -> dict[str, int]:
    said = (caption for entry in entries for caption in entry.captions)
    return dict(Counter(word for caption in said for word in split_words(caption)))


def folder_plan(root: PathLike, splits: Mapping[str, str]) -> ShardPlan:
    """Return the plan of shards of photos that lie as ROOT/SPLIT/CLASS/PHOTO.

    Args:
        root: The folder that holds those of the splits.
        splits: Names of these folders, by `train`, `validation` and `test`.

    Raises:
        FileNotFoundError: If there is no folder or no photo of a class.
        ValueError: If a split has a class that training has not.
    """
    classes = tuple(class_folders(Path(root, splits["train"])))
    sources: dict[str, ShardSource] = {}
    for split, folder in splits.items():
        files, labels = labeled_files(Path(root, folder), classes)
        numbers = labels.tolist()
        records = [
            {"file": file.relative_to(root).as_posix(), "class": classes[number]}
            for file, number in zip(files, numbers, strict=True)
        ]
        sources[split] = ShardSource(files, records, numbers)
    return ShardPlan("classes", sources, classes)


def held_plan(
    parts: Mapping[str, tuple[UInt8[Tensor, "n c y x"], Int[Tensor, " n"]]],
    classes: Sequence[str],
) -> ShardPlan:
    """Return the plan of shards of small images in memory, which are shown as they are.

    Args:
        parts: Images and their classes, by split; all of one form.
        classes: Names of the classes.

    Example:
        >>> part = torch.zeros(2, 1, 5, 3, dtype=torch.uint8), torch.tensor([1, 0])
        >>> held_plan({"train": part}, ["no", "yes"]).size
        (5, 3)
    """
    (channels, height, width), *others = {tuple(part.shape[1:]) for part, _ in parts.values()}
    if others:
        raise ValueError(f"images must be of one form, got {(channels, height, width)}, {others}")
    sources = {split: HeldSource(*part, classes) for split, part in parts.items()}
    return ShardPlan("classes", sources, tuple(classes), channels, (height, width))


def ending(image: bytes) -> str:
    """Return the ending for the name of an image's file, by what it holds.

    Raises:
        ImageError: If it is of no known format.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("L", (2, 2)).save(file, "png")
        >>> ending(file.getvalue())
        'png'
    """
    with Image.open(io.BytesIO(image), formats=FORMATS) as image:
        form = str(image.format)
    if form not in ENDINGS:
        raise ImageError(f"an image of the format {form} has no ending here")
    return ENDINGS[form]
