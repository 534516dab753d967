"""How shards lie on disk: tars of whole samples, and flat arrays that say where each one is.

A folder of shards holds, for each split, `SPLIT-000000.tar` and so on, in the layout of WebDataset:
a sample is some members in a row whose names differ in their ending alone, its image first,
`KEY.json` last; the key is its number in nine digits. `SPLIT.index.npy` has a row for each sample,
in the order of the numbers. `info.json` says what there is, with a hash of every file; it is
written last, so that a folder without it is unfinished.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from visattn.data.images.reader import PathLike
from visattn.io.atomic import write_whole
from visattn.io.regular_files import open_regular
from visattn.io.safe_text import bounded_bytes, named, parsed_json, plain_text

FORMAT = "visattn-shards-1"
INFO, PLAN, WORDS = "info.json", "plan.json", "words.json"
SPLITS = ("train", "validation", "test")
BLOCK = 512  # tars are made of blocks
ROW = np.dtype(
    [
        ("shard", "<u4"),
        ("image", "<u8"),  # offset of its bytes in the tar
        ("image_bytes", "<u4"),
        ("record", "<u8"),
        ("record_bytes", "<u4"),
        ("label", "<i4"),  # -1 where there are no classes
    ]
)
MOST_IMAGE, MOST_RECORD = 256 * 2**20, 16 * 2**20  # bytes that a sample's parts may have
_MOST_INFO = 64 * 2**20

Kind = Literal["captions", "classes"]


@dataclass(frozen=True)
class ShardFacts:
    """What is known of one tar.

    Args:
        samples: In it.
        bytes: Its length.
        sha256: Of the whole file, in hexadecimal digits.
    """

    samples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class SplitFacts:
    """What is known of one split.

    Args:
        samples: In all of its shards.
        index: SHA-256 of its index.
        shards: One after the other.
    """

    samples: int
    index: str
    shards: tuple[ShardFacts, ...]


@dataclass(frozen=True)
class ShardInfo:
    """What a folder of shards holds.

    Args:
        kind: What is told of each image: captions, or its class.
        plan: A hash of what was to be written, by which a run that goes on knows its own.
        splits: By name.
        classes: Their names in the order of their numbers; none with captions.
        channels: 1 where all images are gray and are to be read so, else 3.
        size: Height and width of all images where they are alike and shown as they are.

    Example:
        >>> facts = ShardFacts(7, 20_480, 64 * "0")
        >>> info = ShardInfo("captions", "a plan", {"train": SplitFacts(7, 64 * "0", (facts,))})
        >>> info.write(getfixture("tmp_path"))
        >>> ShardInfo.read(getfixture("tmp_path")) == info
        True
    """

    kind: Kind
    plan: str
    splits: Mapping[str, SplitFacts]
    classes: tuple[str, ...] = ()
    channels: int = 3
    size: tuple[int, int] | None = None

    def write(self, folder: Path) -> None:
        """Put this into a folder, at once."""
        write_json(folder / INFO, {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: PathLike) -> "ShardInfo":
        """Return what a folder says of itself.

        Raises:
            FileNotFoundError: If there are no shards, or they are not finished.
            ValueError: If what it says is damaged or of another format.
        """
        path = Path(folder, INFO)
        if not path.is_file():
            begun = " (unfinished: do again what began to write them)" if plan_of(folder) else ""
            raise FileNotFoundError(
                f"{folder} holds no shards{begun}; visattn data shards --out {folder} writes them"
            )
        try:
            return cls._parsed(read_json(path))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged, or not in the format {FORMAT} ({named(str(error))}); "
                "write the shards anew"
            ) from error

    @classmethod
    def _parsed(cls, fields: dict[str, Any]) -> "ShardInfo":
        if fields.pop("format") != FORMAT or fields["kind"] not in ("captions", "classes"):
            raise ValueError("another format")
        if not set(fields["splits"]) <= set(SPLITS):
            raise ValueError(f"splits must be of {', '.join(SPLITS)}")
        size = fields.pop("size")
        found = {
            **fields,
            "splits": {name: _split_facts(facts) for name, facts in fields["splits"].items()},
            "classes": tuple(map(str, fields["classes"])),
            "size": size and (int(size[0]), int(size[1])),
        }
        return cls(**found)

    def split(self, folder: PathLike, name: str) -> SplitFacts:
        """Return what is known of a split.

        Raises:
            ValueError: If there is no such split.
        """
        if name not in self.splits:
            raise ValueError(f"{folder} has no split {name}; it has {', '.join(self.splits)}")
        return self.splits[name]


def _split_facts(fields: dict[str, Any]) -> SplitFacts:
    shards = tuple(
        ShardFacts(int(one["samples"]), int(one["bytes"]), str(one["sha256"]))
        for one in fields["shards"]
    )
    samples = int(fields["samples"])
    if samples != sum(shard.samples for shard in shards) or samples < 1:
        raise ValueError(f"{samples} samples in shards of {sum(s.samples for s in shards)}")
    return SplitFacts(samples, str(fields["index"]), shards)


def shard_name(split: str, number: int) -> str:
    """Return the name of a tar.

    Example:
        >>> shard_name("train", 3)
        'train-000003.tar'
    """
    return f"{split}-{number:06d}.tar"


def index_name(split: str) -> str:
    """Return the name of the index of a split."""
    return f"{split}.index.npy"


def key_of(number: int) -> str:
    """Return what the members of a sample are called, but for their endings.

    Example:
        >>> key_of(17)
        '000000017'
    """
    return f"{number:09d}"


def padded(size: int) -> int:
    """Return how many bytes a member of this size fills in a tar, its header left out."""
    return -(-size // BLOCK) * BLOCK


def open_index(folder: PathLike, split: str, facts: SplitFacts) -> Shaped[np.ndarray, " n"]:
    """Return the rows of a split, which stay on disk until they are asked for.

    Raises:
        ValueError: If the file is missing or not what a writer left.
    """
    path = Path(folder, index_name(split))
    try:
        with open_regular(path):  # NumPy itself would wait for what a pipe says
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise ValueError(f"{path} is missing or damaged: {error}; write the shards anew") from error
    if not isinstance(rows, np.memmap) or rows.dtype != ROW or rows.shape != (facts.samples,):
        raise ValueError(
            f"{path} must hold {facts.samples:,} rows of {ROW.itemsize} bytes, got "
            f"{rows.dtype} {rows.shape}; write the shards anew"
        )
    return rows


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file, of which a piece at a time is in memory.

    Example:
        >>> path = getfixture("tmp_path") / "empty"
        >>> path.touch()
        >>> hash_of(path)[:8]
        'e3b0c442'
    """
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plan_of(folder: PathLike) -> str | None:
    """Return the hash of what unfinished shards are to become; None where nothing was begun."""
    path = Path(folder, PLAN)
    return str(read_json(path).get("plan")) if path.is_file() else None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file of some size at most.

    Raises:
        ValueError: If it holds none, or is too long.
    """
    content = bounded_bytes(path, _MOST_INFO)
    try:
        found = parsed_json(plain_text(content))
    except ValueError as error:
        raise ValueError(f"{path} holds no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object")  # noqa: TRY004 (a file's fault)
    return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file at once."""
    write_whole(path, json.dumps(content, ensure_ascii=False, separators=(",", ":")))
