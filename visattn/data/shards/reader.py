"""Random access to samples in shards, and the data sets of captions and classes on them."""

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from visattn.data.augment.images import Augmentation
from visattn.data.captions.dataset import CaptionedImages
from visattn.data.captions.files import CaptionEntry
from visattn.data.classification.datasets import LabeledBatch, LabeledImages
from visattn.data.shards.format import (
    BLOCK,
    MAX_IMAGE_BYTES,
    MAX_RECORD_BYTES,
    ShardInfo,
    file_sha256,
    index_name,
    open_index,
    sample_key,
    shard_name,
)
from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageError, LoadedImage, PathLike, read_image, read_size
from visattn.images.resize import ResizeSpec
from visattn.io.safe_text import decode_utf8, parse_json

_MAX_OPEN_TARS = 32


class ShardSamples:
    """The samples of one split, read on access.

    Opening checks the index and the sizes of the tars without reading them, so that it does not
    depend on the size of the images; the index is memory-mapped, 32 bytes per sample. Samples may
    be read from any thread, from forked processes, and from spawned ones after pickling.

    Args:
        folder: Folder that `visattn data shards` wrote.
        split: One of its splits.

    Raises:
        FileNotFoundError: If there are no shards, they are incomplete, or one is missing.
        ValueError: If there is no such split, or something is damaged.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> ShardSamples(folder, "train")
        Traceback (most recent call last):
        FileNotFoundError: ... holds no shards; visattn data shards --out ... writes them
    """

    def __init__(self, folder: PathLike, split: str) -> None:
        self.folder = Path(folder)
        self.split = split
        self.info = ShardInfo.read(folder)
        self._metadata = self.info.split_metadata(folder, split)
        self._check_files()
        self._open()

    def _check_files(self) -> None:
        """Raise if a tar is missing or truncated, or the index does not belong to the tars."""
        for number, shard in enumerate(self._metadata.shards):
            path = self.folder / shard_name(self.split, number)
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing, but info.json lists it")
            if path.stat().st_size != shard.bytes:
                raise ValueError(
                    f"{path} is damaged: it has {path.stat().st_size:,} bytes and must have "
                    f"{shard.bytes:,}; copy it again, or write the shards again"
                )
        path = self.folder / index_name(self.split)
        if path.is_file() and file_sha256(path) != self._metadata.index:
            raise ValueError(
                f"{path} is damaged, or of other shards: its SHA-256 differs from that in "
                "info.json; copy it again, or write the shards again"
            )

    def _open(self) -> None:
        self._rows = open_index(self.folder, self.split, self._metadata)
        self._tars: dict[int, _Tar] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        return self._metadata.samples

    @property
    def labels(self) -> Int[Tensor, " n"]:
        """Class index of each sample.

        Raises:
            ValueError: If an index is missing or out of range.
        """
        labels = np.array(self._rows["label"])
        classes = len(self.info.classes)
        if invalid := np.flatnonzero((labels < 0) | (labels >= classes))[:1].tolist():
            raise ValueError(
                f"{self.location(invalid[0])}: the class index must lie in [0, {classes}), "
                f"got {labels[invalid[0]]}"
            )
        return torch.from_numpy(labels.astype(np.int64))

    def location(self, number: int) -> str:
        """Return the location of a sample for messages: tar and key."""
        path = self.folder / shard_name(self.split, self.shard(number))
        return f"{path}, key {sample_key(number)}"

    def shard(self, number: int) -> int:
        """Return the number of the tar that contains a sample."""
        return int(self._row(number)["shard"])

    def spans(self, number: int) -> set[tuple[int, int]]:
        """Return offset and size of a sample's image and record in its tar."""
        row = self._row(number)
        return {(int(row[name]), int(row[f"{name}_bytes"])) for name in ("image", "record")}

    def image_bytes(self, number: int) -> bytes:
        """Return the encoded image of a sample.

        Raises:
            IndexError: If there is no such sample.
            ValueError: If the index is wrong; the message names tar and key.
        """
        return self._read_member(number, "image", MAX_IMAGE_BYTES)

    def record(self, number: int) -> dict[str, Any]:
        """Return the JSON record of a sample.

        Raises:
            IndexError: If there is no such sample.
            ValueError: If the index is wrong, or it is not a JSON object.
        """
        content = self._read_member(number, "record", MAX_RECORD_BYTES)
        try:
            record = parse_json(decode_utf8(content))
        except ValueError as error:
            raise ValueError(f"{self.location(number)}: invalid JSON: {error}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{self.location(number)}: not a JSON object")  # noqa: TRY004
        return record

    def image(self, number: int) -> LoadedImage:
        """Return a sample's image, upright, in RGB.

        Raises:
            ImageError: If it cannot be read; the message names tar and key.
        """
        return decode_image(self.image_bytes(number), self.location(number))

    def size(self, number: int) -> tuple[tuple[int, int], int]:
        """Return height and width of a sample's upright image, and its EXIF orientation.

        Raises:
            ImageError: If its header cannot be read; the message names tar and key.
        """
        try:
            return read_size(self.image_bytes(number))
        except ImageError as error:
            raise _with_location(self.location(number), error) from error

    def _row(self, number: int) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(f"index must lie in [0, {len(self)}), got {number}")
        return self._rows[number]

    def _read_member(self, number: int, name: str, max_size: int) -> bytes:
        """Return the content of a tar member, after validating the header before it."""
        row = self._row(number)
        shard, offset, size = (int(row[key]) for key in ("shard", name, f"{name}_bytes"))
        inside = shard < len(self._metadata.shards) and offset >= BLOCK and size <= max_size
        if inside and offset + size <= self._metadata.shards[shard].bytes:
            # The header before the content proves that the index belongs to this tar.
            data = self._tar(shard).read(offset - BLOCK, BLOCK + size)
            key_matches = data.startswith(f"{sample_key(number)}.".encode())
            if key_matches and len(data) == BLOCK + size and _header_size(data) == size:
                return data[BLOCK:]
        raise ValueError(
            f"{self.location(number)}: the index does not point to a member with this key; "
            "the shard or the index is damaged: find out with visattn data shards --check --out "
            f"{self.folder}"
        )

    def _tar(self, number: int) -> "_Tar":
        """Return an open tar from a cache of the most recently used ones.

        A tar is closed when its last reference is dropped, because a thread may still read from
        it. Each dictionary operation is atomic and tolerates other threads; a lock could be copied
        in its locked state into a forked process.
        """
        tar = self._tars.pop(number, None)
        if tar is None:
            tar = _Tar(self.folder / shard_name(self.split, number))
        self._tars[number] = tar
        for oldest in list(self._tars)[:-_MAX_OPEN_TARS]:
            self._tars.pop(oldest, None)
        return tar


def decode_image(content: bytes, location: str) -> LoadedImage:
    """Decode an image as upright RGB, named after its location.

    Raises:
        ImageError: If it cannot be read; the message names the location.

    Example:
        >>> decode_image(b"no image", "train-000000.tar, key 000000007")
        Traceback (most recent call last):
        visattn.images.reader.ImageError: train-000000.tar, key 000000007: not an image of ...
    """
    try:
        return replace(read_image(content), name=location)
    except ImageError as error:
        raise _with_location(location, error) from error


def _with_location(location: str, error: ImageError) -> ImageError:
    return ImageError(f"{location}: {str(error).removeprefix('image: ')}")


_NOT_PICKLED = ("_rows", "_tars")


class _Tar:
    """A file read at offsets, without a file position that forked processes would share."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes at an offset, fewer at the end of the file."""
        return os.pread(self._descriptor, size, offset)


def _header_size(header: bytes) -> int:
    """Return the member size in a tar header; -1 if it is not a number."""
    # Octal digits. A size of 8 GB or more has another form, and is above the limit anyway.
    digits = header[124:136].strip(b"\0 ")
    return int(digits, 8) if digits.isdigit() and b"8" not in digits and b"9" not in digits else -1


T = TypeVar("T")


class _ReadOnAccess(Sequence[T], ABC):
    """A part of each sample of shards, read on access; a slice is a list."""

    def __init__(self, samples: ShardSamples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    @abstractmethod
    def _read(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        """Return one, or several.

        Raises:
            IndexError: If there is no such sample.
            ValueError: If it cannot be read; the message names tar and key.
        """
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self._read(index)


class ShardEntries(_ReadOnAccess[CaptionEntry]):
    """Caption entries of a split, read on access."""

    def _read(self, index: int) -> CaptionEntry:
        record = self.samples.record(index)
        return caption_entry(record, self.samples.location(index), self.samples.split)


def caption_entry(record: Mapping[str, Any], location: str, split: str) -> CaptionEntry:
    """Return the caption entry of a sample's record.

    Raises:
        ValueError: If it has no captions; the message names the location.

    Example:
        >>> caption_entry({"id": "a", "file": "a.jpg", "captions": ["A dog ."]}, "here", "test").id
        'a'
    """
    name = record.get("id")
    file = record.get("file")
    captions = record.get("captions")
    if (
        not isinstance(name, str)
        or not isinstance(file, str)
        or not isinstance(captions, list)
        or not captions
        or not all(isinstance(caption, str) for caption in captions)
    ):
        raise ValueError(
            f"{location}: expected id, file and a list of captions, "
            f"got {', '.join(record) or 'nothing'}"
        )
    return CaptionEntry(name, file, tuple(captions), split)


class ShardedPhotos(CaptionedImages):
    """Photos in shards, each with all of its captions.

    Raises:
        ValueError: If the shards hold no captions.
    """

    def __init__(self, samples: ShardSamples, resize: ResizeSpec) -> None:
        if samples.info.kind != "captions":
            raise ValueError(f"{samples.folder} holds images with classes, not with captions")
        super().__init__(ShardEntries(samples), resize)
        self.samples = samples

    def load_image(self, index: int) -> LoadedImage:
        """Return a photo at its own size; an error names tar and key."""
        return self.samples.image(index)

    def geometry(self, index: int) -> Geometry:
        """Return the geometry of a photo; only its header is decoded."""
        size, orientation = self.samples.size(index)
        return self.resize.geometry(size, orientation)


class ShardImages(_ReadOnAccess[LoadedImage]):
    """The images of shards, read on access."""

    def _read(self, index: int) -> LoadedImage:
        return self.samples.image(index)


class ShardedTensors(LabeledImages):
    """Small images of one size in shards, used without resizing."""

    def __init__(
        self,
        samples: ShardSamples,
        augmentations: Sequence[Augmentation] = (),
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(samples.labels, augmentations, seed=seed)
        self.samples = samples

    def __getitem__(self, indices: list[int]) -> LabeledBatch:
        """Return the batch of images with these indices, augmented."""
        rows = self.image_indices(indices)
        images = torch.stack([self._load_tensor(row) for row in rows.tolist()])
        return LabeledBatch(self.augment(images, indices), self.labels[rows])

    def _load_tensor(self, row: int) -> UInt8[Tensor, "c y x"]:
        image = self.samples.image(row)
        info = self.samples.info
        if image.size != info.size:
            raise ImageError(f"{image.name}: must have {info.size} pixels, got {image.size}")
        return torch.from_numpy(image.pixels.transpose(2, 0, 1)[: info.channels].copy())
