"""Samples of shards by their number: a look into flat arrays, then one reading at a place."""

import json
import os
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from visattn.data.images.reader import ImageError, LoadedImage, PathLike, read_image, read_size
from visattn.data.shards.format import (
    BLOCK,
    MOST_IMAGE,
    MOST_RECORD,
    ShardInfo,
    hash_of,
    index_name,
    key_of,
    open_index,
    shard_name,
)

_OPEN_AT_ONCE = 32


class ShardSamples:
    """The samples of one split, each read when it is asked for.

    Opening looks at the index and at the lengths of the tars, never into them: it takes as long
    for large images as for small ones, and the index stays on disk, 32 bytes a sample. What is
    open is not shared: samples may be read from any thread, in processes that were forked, and in
    those that were started afresh and got this by pickle.

    Args:
        folder: That which `visattn data shards` wrote.
        split: One of those that it holds.

    Raises:
        FileNotFoundError: If there are no shards, they are unfinished, or one is missing.
        ValueError: If there is no such split, or something is damaged.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> ShardSamples(folder, "train")
        Traceback (most recent call last):
        FileNotFoundError: ... holds no shards; visattn data shards --out ... writes them
    """

    def __init__(self, folder: PathLike, split: str) -> None:
        self.folder, self.split = Path(folder), split
        self.info = ShardInfo.read(folder)
        self._facts = self.info.split(folder, split)
        self._check_files()
        self._open()

    def _check_files(self) -> None:
        """Refuse what is missing, cut off, or not the index that belongs to these tars."""
        for number, facts in enumerate(self._facts.shards):
            path = self.folder / shard_name(self.split, number)
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing; {self.folder} names it")
            if path.stat().st_size != facts.bytes:
                raise ValueError(
                    f"{path} is damaged: it has {path.stat().st_size:,} bytes and must have "
                    f"{facts.bytes:,}; copy it again, or write the shards anew"
                )
        path = self.folder / index_name(self.split)
        if path.is_file() and hash_of(path) != self._facts.index:
            raise ValueError(
                f"{path} is damaged, or of other shards: its SHA-256 is not the one that "
                f"{self.folder} names; copy it again, or write the shards anew"
            )

    def _open(self) -> None:
        self._rows = open_index(self.folder, self.split, self._facts)
        self._tars: dict[int, _Tar] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _OPENED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        return self._facts.samples

    @property
    def labels(self) -> Int[Tensor, " n"]:
        """The class of each sample.

        Raises:
            ValueError: If a sample has none, or one that is not named.
        """
        labels = np.array(self._rows["label"])
        classes = len(self.info.classes)
        if wrong := np.flatnonzero((labels < 0) | (labels >= classes))[:1].tolist():
            raise ValueError(
                f"{self.place(wrong[0])}: the class must be one of {classes}, "
                f"got number {labels[wrong[0]]}"
            )
        return torch.from_numpy(labels.astype(np.int64))

    def place(self, number: int) -> str:
        """Return in words where a sample lies: the tar and the key."""
        shard = int(self._row(number)["shard"])
        return f"{self.folder / shard_name(self.split, shard)}, key {key_of(number)}"

    def shard(self, number: int) -> int:
        """Return the number of the tar that a sample lies in."""
        return int(self._row(number)["shard"])

    def spans(self, number: int) -> set[tuple[int, int]]:
        """Return where in its tar a sample's image and record lie: offsets and sizes."""
        row = self._row(number)
        return {(int(row[name]), int(row[f"{name}_bytes"])) for name in ("image", "record")}

    def content(self, number: int) -> bytes:
        """Return a sample's image as it was in its file.

        Raises:
            IndexError: If there is no such sample.
            ValueError: If it is not where the index says; the message names tar and key.
        """
        row = self._row(number)
        return self._member(number, int(row["image"]), int(row["image_bytes"]), MOST_IMAGE)

    def record(self, number: int) -> dict[str, Any]:
        """Return what is told of a sample.

        Raises:
            IndexError: If there is no such sample.
            ValueError: If it is not where the index says, or no JSON object.
        """
        row = self._row(number)
        told = self._member(number, int(row["record"]), int(row["record_bytes"]), MOST_RECORD)
        try:
            found = json.loads(told)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.place(number)}: no JSON: {error}") from error
        if not isinstance(found, dict):
            raise ValueError(f"{self.place(number)}: no JSON object")  # noqa: TRY004
        return found

    def image(self, number: int) -> LoadedImage:
        """Return a sample's image, upright, in RGB.

        Raises:
            ImageError: If it cannot be read; the message names tar and key.
        """
        return decoded(self.content(number), self.place(number))

    def size(self, number: int) -> tuple[tuple[int, int], int]:
        """Return height and width of a sample's image, upright, and its EXIF code.

        Raises:
            ImageError: If its head cannot be read; the message names tar and key.
        """
        try:
            return read_size(self.content(number))
        except ImageError as error:
            raise _unreadable(self.place(number), error) from error

    def _row(self, number: int) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(f"index must lie in [0, {len(self)}), got {number}")
        return self._rows[number]

    def _member(self, number: int, offset: int, size: int, most: int) -> bytes:
        """Return what a member of a tar holds, after a look at the header before it."""
        shard = int(self._row(number)["shard"])
        inside = shard < len(self._facts.shards) and offset >= BLOCK and size <= most
        if inside and offset + size <= self._facts.shards[shard].bytes:
            read = self._tar(shard).read(offset - BLOCK, BLOCK + size)
            named = read.startswith(f"{key_of(number)}.".encode())
            if named and len(read) == BLOCK + size and _size(read) == size:
                return read[BLOCK:]
        raise ValueError(
            f"{self.place(number)}: nothing of that key lies where the index says; the shard or "
            f"the index is damaged: visattn data shards --check --out {self.folder} tells which"
        )

    def _tar(self, number: int) -> "_Tar":
        """Return an open tar; the one that was not asked for longest makes room.

        Nobody closes a tar that a thread may still read from: it closes when the last lets it go.
        Each step on the dictionary is whole and bears that another thread came first; a lock would
        be copied, perhaps locked, into a process that is forked.
        """
        tar = self._tars.pop(number, None)
        if tar is None:
            tar = _Tar(self.folder / shard_name(self.split, number))
        self._tars[number] = tar
        for oldest in list(self._tars)[:-_OPEN_AT_ONCE]:
            self._tars.pop(oldest, None)
        return tar


def decoded(content: bytes, place: str) -> LoadedImage:
    """Return an image, upright, in RGB, named after where it lies.

    Raises:
        ImageError: If it cannot be read; the message names the place.

    Example:
        >>> decoded(b"no image", "train-000000.tar, key 000000007")
        Traceback (most recent call last):
        visattn.data.images.reader.ImageError: train-000000.tar, key 000000007: not an image of ...
    """
    try:
        return replace(read_image(content), name=place)
    except ImageError as error:
        raise _unreadable(place, error) from error


def _unreadable(place: str, error: ImageError) -> ImageError:
    return ImageError(f"{place}: {str(error).removeprefix('image: ')}")


_OPENED = ("_rows", "_tars")


class _Tar:
    """A file that is read at places: no position is kept, so that nothing is shared by a fork."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes at a place, fewer where the file ends."""
        return os.pread(self._descriptor, size, offset)


def _size(header: bytes) -> int:
    """Return the size that the header of a member says; -1 if it is no number."""
    digits = header[124:136].strip(b"\0 ")
    return int(digits, 8) if digits.isdigit() and b"8" not in digits and b"9" not in digits else -1
