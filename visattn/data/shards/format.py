"""File format of shards: tar files of samples, and an index array per split.

A folder of shards holds, for each split, `SPLIT-000000.tar` and so on, in the WebDataset layout: a
sample is a run of members whose names differ in their extension only, its image first, `KEY.json`
last; the key is its index in nine digits. `SPLIT.index.npy` has a row for each sample, in the order
of the indices. `info.json` describes the contents, with a hash of every file; it is written last,
so that a folder without it is incomplete.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from visattn.images.reader import PathLike
from visattn.io.atomic import atomic_write
from visattn.io.safe_text import (
    open_regular_file,
    printable_name,
    read_json_object,
)

FORMAT = "visattn-shards-1"
INFO = "info.json"
PLAN = "plan.json"
WORD_COUNTS = "words.json"
SPLITS = ("train", "validation", "test")
BLOCK = 512  # bytes of a tar block
ROW = np.dtype(
    [
        ("shard", "<u4"),
        ("image", "<u8"),  # offset of its bytes in the tar
        ("image_bytes", "<u4"),
        ("record", "<u8"),
        ("record_bytes", "<u4"),
        ("label", "<i4"),  # -1 without classes
    ]
)
MAX_IMAGE_BYTES = 256 * 2**20  # of one sample
MAX_RECORD_BYTES = 16 * 2**20
MAX_INFO_BYTES = 64 * 2**20

ShardKind = Literal["captions", "classes"]


@dataclass(frozen=True)
class ShardMetadata:
    """Metadata of one tar file."""

    samples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class SplitMetadata:
    """Metadata of one split.

    Args:
        samples: Number of samples in all of its shards.
        index: SHA-256 of its index file.
        shards: Metadata of each tar file.
    """

    samples: int
    index: str
    shards: tuple[ShardMetadata, ...]


@dataclass(frozen=True)
class ShardInfo:
    """Description of a folder of shards.

    Args:
        kind: Annotation of each image: captions, or its class.
        plan: Hash of the shard plan, by which an interrupted run is resumed.
        splits: Metadata of the splits by name.
        classes: Class names in the order of their indices; empty with captions.
        channels: 1 if all images are grayscale and are read as such, else 3.
        size: Height and width if all images are used without resizing.

    Example:
        >>> shard = ShardMetadata(7, 20_480, 64 * "0")
        >>> info = ShardInfo("captions", "a plan", {"train": SplitMetadata(7, 64 * "0", (shard,))})
        >>> info.write(getfixture("tmp_path"))
        >>> ShardInfo.read(getfixture("tmp_path")) == info
        True
    """

    kind: ShardKind
    plan: str
    splits: Mapping[str, SplitMetadata]
    classes: tuple[str, ...] = ()
    channels: int = 3
    size: tuple[int, int] | None = None

    def write(self, folder: Path) -> None:
        """Write the description to a folder atomically."""
        write_json(folder / INFO, {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: PathLike) -> "ShardInfo":
        """Read the description of a folder of shards.

        Raises:
            FileNotFoundError: If there are no shards, or they are incomplete.
            ValueError: If it is damaged or of another format.
        """
        path = Path(folder, INFO)
        if not path.is_file():
            resumable = (
                " (incomplete: run the command that writes them again)"
                if read_plan_hash(folder)
                else ""
            )
            raise FileNotFoundError(
                f"{folder} holds no shards{resumable}; "
                f"visattn data shards --out {folder} writes them"
            )
        try:
            return cls._from_json(read_json_object(path, MAX_INFO_BYTES))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged, or not in the format {FORMAT} ({printable_name(str(error))}); "
                "write the shards again"
            ) from error

    @classmethod
    def _from_json(cls, fields: dict[str, Any]) -> "ShardInfo":
        if fields.pop("format") != FORMAT or fields["kind"] not in ("captions", "classes"):
            raise ValueError("another format")
        if not set(fields["splits"]) <= set(SPLITS):
            raise ValueError(f"splits must be of {', '.join(SPLITS)}")
        size = fields.pop("size")
        arguments = {
            **fields,
            "splits": {name: _parse_split(split) for name, split in fields["splits"].items()},
            "classes": tuple(map(str, fields["classes"])),
            "size": size and (int(size[0]), int(size[1])),
        }
        return cls(**arguments)

    def split_metadata(self, folder: PathLike, name: str) -> SplitMetadata:
        """Return the metadata of a split.

        Raises:
            ValueError: If there is no such split.
        """
        if name not in self.splits:
            raise ValueError(f"{folder} has no split {name}; it has {', '.join(self.splits)}")
        return self.splits[name]


def _parse_split(fields: dict[str, Any]) -> SplitMetadata:
    shards = tuple(
        ShardMetadata(int(shard["samples"]), int(shard["bytes"]), str(shard["sha256"]))
        for shard in fields["shards"]
    )
    samples = int(fields["samples"])
    if samples != sum(shard.samples for shard in shards) or samples < 1:
        raise ValueError(f"{samples} samples in shards of {sum(s.samples for s in shards)}")
    return SplitMetadata(samples, str(fields["index"]), shards)


def shard_name(split: str, number: int) -> str:
    """Return the file name of a shard.

    Example:
        >>> shard_name("train", 3)
        'train-000003.tar'
    """
    return f"{split}-{number:06d}.tar"


def index_name(split: str) -> str:
    """Return the file name of the index of a split."""
    return f"{split}.index.npy"


def sample_key(number: int) -> str:
    """Return the key of a sample: the name of its members without extension.

    Example:
        >>> sample_key(17)
        '000000017'
    """
    return f"{number:09d}"


def padded_size(size: int) -> int:
    """Return the size of a tar member rounded up to whole blocks, without its header."""
    return -(-size // BLOCK) * BLOCK


def open_index(folder: PathLike, split: str, metadata: SplitMetadata) -> Shaped[np.ndarray, " n"]:
    """Return the memory-mapped index of a split.

    Raises:
        ValueError: If the file is missing or damaged.
    """
    path = Path(folder, index_name(split))
    try:
        with open_regular_file(path):  # NumPy itself would block on a pipe
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise ValueError(
            f"{path} is missing or damaged: {error}; write the shards again"
        ) from error
    if not isinstance(rows, np.memmap) or rows.dtype != ROW or rows.shape != (metadata.samples,):
        raise ValueError(
            f"{path} must hold {metadata.samples:,} rows of {ROW.itemsize} bytes, got "
            f"{rows.dtype} {rows.shape}; write the shards again"
        )
    return rows


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, read in chunks.

    Example:
        >>> path = getfixture("tmp_path") / "empty"
        >>> path.touch()
        >>> file_sha256(path)[:8]
        'e3b0c442'
    """
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_plan_hash(folder: PathLike) -> str | None:
    """Return the plan hash of incomplete shards; None if there are none."""
    path = Path(folder, PLAN)
    return str(read_json_object(path, MAX_INFO_BYTES).get("plan")) if path.is_file() else None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    atomic_write(path, json.dumps(content, ensure_ascii=False, separators=(",", ":")))
