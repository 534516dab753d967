"""Writing of shards, and their verification: hashes, tar members and images."""

import fcntl
import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from visattn.data.loading.samplers import per_sample_uniforms
from visattn.data.shards.format import (
    BLOCK,
    INFO,
    MAX_INFO_BYTES,
    PLAN,
    ROW,
    WORD_COUNTS,
    ShardInfo,
    ShardMetadata,
    SplitMetadata,
    file_sha256,
    index_name,
    padded_size,
    read_plan_hash,
    sample_key,
    shard_name,
    write_json,
)
from visattn.data.shards.reader import ShardSamples
from visattn.data.shards.sources import ShardPlan, ShardSample, ShardSource, image_extension
from visattn.images.reader import ImageError, PathLike
from visattn.io.atomic import atomic_replace, remove_partial_files
from visattn.io.messages import format_names
from visattn.io.safe_text import read_json_object

_MAX_REPORTED = 20


class ShardFault(NamedTuple):
    """A detected fault.

    Args:
        location: File and, for a fault of one sample, key.
    """

    location: str
    reason: str

    def __str__(self) -> str:
        return f"{self.location}: {self.reason}"


def find_shard_faults(
    folder: PathLike, *, decode: bool = True, progress: Callable[[int], object] = lambda _: None
) -> Iterator[ShardFault]:
    """Yield the faults of shards; nothing if they are intact.

    Each tar is read as a standard tar file: its hash must match the recorded one, its members must
    match the index in offset and size, and each image must be readable (`decode`). `progress` gets
    the number of samples done since its last call.

    Raises:
        FileNotFoundError: If there are no shards, or one is missing.
        ValueError: If the index, or the length of a tar, is wrong.

    Example:
        >>> from visattn.data.shards.sources import in_memory_plan
        >>> from visattn.data.shards.writer import write_shards
        >>> part = torch.zeros(3, 1, 5, 7, dtype=torch.uint8), torch.tensor([1, 0, 1])
        >>> folder = getfixture("tmp_path") / "shards"
        >>> info = write_shards(folder, in_memory_plan({"train": part}, ["no", "yes"]))
        >>> list(find_shard_faults(folder))
        []
    """
    info = ShardInfo.read(folder)
    for split in info.splits:
        samples = ShardSamples(folder, split)
        numbers: dict[int, list[int]] = {}
        for number in range(len(samples)):
            numbers.setdefault(samples.shard(number), []).append(number)
        for shard, facts in enumerate(info.splits[split].shards):
            path = Path(folder, shard_name(split, shard))
            if file_sha256(path) != facts.sha256:
                yield ShardFault(str(path), "its SHA-256 differs from the recorded one")
            yield from _sample_faults(samples, path, numbers.get(shard, []), decode, progress)


def check_shards(
    folder: PathLike, *, decode: bool = True, progress: Callable[[int], object] = lambda _: None
) -> None:
    """Raise if shards are damaged; arguments as for `find_shard_faults`.

    Raises:
        FileNotFoundError: If there are no shards, or one is missing.
        ValueError: If something is damaged; the message names tars and keys.
    """
    faults = list(find_shard_faults(folder, decode=decode, progress=progress))
    if faults:
        more = f"\nand {len(faults) - _MAX_REPORTED:,} more" if len(faults) > _MAX_REPORTED else ""
        reported = "\n".join(map(str, faults[:_MAX_REPORTED]))
        raise ValueError(
            f"{folder}: {len(faults):,} faults; copy these tars again, or remove the folder and "
            f"write it again\n{reported}{more}"
        )


def compare_with_sources(folder: PathLike, plan: ShardPlan) -> None:
    """Check that shards hold what their sources hold now: images byte by byte, and annotations.

    Raises:
        FileNotFoundError: If there are no shards, or a file is missing.
        ValueError: If something was replaced since.

    Example:
        >>> from visattn.data.shards.sources import in_memory_plan
        >>> from visattn.data.shards.writer import write_shards
        >>> part = torch.zeros(3, 1, 5, 7, dtype=torch.uint8), torch.tensor([1, 0, 1])
        >>> other = torch.zeros(3, 1, 5, 7, dtype=torch.uint8), torch.tensor([1, 1, 1])
        >>> folder = getfixture("tmp_path") / "shards"
        >>> info = write_shards(folder, in_memory_plan({"train": part}, ["no", "yes"]))
        >>> compare_with_sources(folder, in_memory_plan({"train": other}, ["no", "yes"]))
        Traceback (most recent call last):
        ValueError: ... holds earlier versions of train sample 1: remove it and write it again, ...
    """
    splits = ShardInfo.read(folder).splits
    counts = {split: metadata.samples for split, metadata in splits.items()}
    current = {split: len(source) for split, source in plan.sources.items()}
    if counts != current:
        raise ValueError(f"{folder} has other samples than its source: {counts} and {current}")
    changed: list[str] = []
    for split, source in plan.sources.items():
        samples = ShardSamples(folder, split)
        for number, record in enumerate(source.records):
            same = samples.record(number) == json.loads(json.dumps(record))
            if not (same and source.has_image(number, samples.image_bytes(number))):
                changed.append(str(record.get("file", f"{split} sample {number}")))
    if changed:
        raise ValueError(
            f"{folder} holds earlier versions of {format_names(changed)}: remove it and write it "
            "again, or choose another folder"
        )


def _sample_faults(
    samples: ShardSamples,
    path: Path,
    numbers: list[int],
    decode: bool,
    progress: Callable[[int], object],
) -> Iterator[ShardFault]:
    """Yield the faults of the samples of one tar."""
    try:
        with tarfile.open(path, "r:") as tar:
            members = {member.name: (member.offset_data, member.size) for member in tar}
    except (tarfile.TarError, OSError, OverflowError, ValueError) as error:
        # OverflowError: a member declares an impossible size.
        yield ShardFault(str(path), f"not a tar file: {error}")
        members = {}
    if members and len({name.partition(".")[0] for name in members}) != len(numbers):
        yield ShardFault(str(path), f"must hold {len(numbers):,} samples")
    for number in numbers:
        if reason := _find_sample_fault(samples, number, members, decode):
            yield ShardFault(f"{path}, key {sample_key(number)}", reason)
        progress(1)


def _find_sample_fault(
    samples: ShardSamples, number: int, members: dict[str, tuple[int, int]], decode: bool
) -> str | None:
    """Return the fault of a sample, or None."""
    try:
        samples.record(number)
        if decode:
            samples.image(number)
        else:
            samples.image_bytes(number)
    except (ImageError, ValueError) as error:
        return str(error).removeprefix(f"{samples.location(number)}: ")
    spans = {span for name, span in members.items() if name.startswith(f"{sample_key(number)}.")}
    intact = samples.spans(number) <= spans or not members
    return None if intact else "its members have other offsets in the tar"


_PARTIAL_SUFFIX = ".part"
_END = b"\0" * 2 * BLOCK


def write_shards(
    folder: Path,
    plan: ShardPlan,
    *,
    per_shard: int = 1000,
    progress: Callable[[int], object] = lambda _: None,
) -> ShardInfo:
    """Write shards, or those that are missing after an interrupted run.

    The same plan gives the same bytes, however often it was interrupted. A tar of an image that was
    replaced since is written again; complete shards of such images are refused. Training samples
    are shuffled, for sequential readers.

    Args:
        folder: Output folder; created if missing.
        plan: Contents of the shards.
        per_shard: Samples per tar.
        progress: Called with the number of samples done since the last call.

    Raises:
        ImageError: If an image cannot be read; the message names its file.
        ValueError: If the folder holds other shards, or a number is out of range.
        FileExistsError: If the folder holds anything else.
        BlockingIOError: If another process is writing there.
        OSError: If the disk is full; complete shards are kept.

    Example:
        >>> from visattn.data.shards.sources import in_memory_plan
        >>> import torch
        >>> part = torch.zeros(3, 1, 5, 7, dtype=torch.uint8), torch.tensor([1, 0, 1])
        >>> folder = getfixture("tmp_path") / "shards"
        >>> info = write_shards(folder, in_memory_plan({"train": part}, ["no", "yes"]), per_shard=2)
        >>> sorted(path.name for path in folder.iterdir() if path.suffix != ".part")
        ['info.json', 'train-000000.tar', 'train-000001.tar', 'train.index.npy']
    """
    _check_counts(plan, per_shard)
    folder.mkdir(parents=True, exist_ok=True)
    with _lock_folder(folder):
        plan_hash = plan.hash(per_shard)
        complete = _check_existing(folder, plan_hash)
        remove_partial_files(folder)  # of a killed run
        if complete:
            info = ShardInfo.read(folder)
            compare_with_sources(folder, plan)
            progress(len(plan))
            return info
        splits = {
            split: _write_split(folder, split, source, per_shard, progress)
            for split, source in plan.sources.items()
        }
        if plan.kind == "captions":
            write_json(folder / WORD_COUNTS, plan.word_counts)
        info = ShardInfo(plan.kind, plan_hash, splits, plan.classes, plan.channels, plan.size)
        info.write(folder)
        _remove_resume_files(folder, info)
    return info


def shard_files(plan: ShardPlan, per_shard: int) -> list[str]:
    """Return the file names of the shards of a plan.

    Example:
        >>> from visattn.data.shards.sources import ShardSource
        >>> plan = ShardPlan("classes", {"train": ShardSource([], [{}] * 5)})
        >>> shard_files(plan, 3)
        ['train-000000.tar', 'train-000001.tar', 'train.index.npy', 'info.json']
    """
    _check_counts(plan, per_shard)
    files: list[str] = []
    for split, source in plan.sources.items():
        files += [shard_name(split, number) for number in range(-(-len(source) // per_shard))]
        files.append(index_name(split))
    return [*files, *([WORD_COUNTS] if plan.kind == "captions" else []), INFO]


def _check_counts(plan: ShardPlan, per_shard: int) -> None:
    if per_shard < 1 or not all(map(len, plan.sources.values())):
        counts = {split: len(source) for split, source in plan.sources.items()}
        raise ValueError(f"per_shard and each split must be at least 1, got {per_shard}, {counts}")


def shuffled_order(count: int, seed: int = 0) -> list[int]:
    """Return a reproducible permutation.

    Example:
        >>> sorted(shuffled_order(5))
        [0, 1, 2, 3, 4]
    """
    uniforms = per_sample_uniforms(seed, range(count), 1)[:, 0]
    return uniforms.argsort(stable=True).tolist()


def _check_existing(folder: Path, plan_hash: str) -> bool:
    """Return whether all shards of a plan exist; record the plan if not.

    Raises:
        ValueError: If the folder holds other shards.
        FileExistsError: If it holds something else.
    """
    complete = (folder / INFO).is_file()
    existing = ShardInfo.read(folder).plan if complete else read_plan_hash(folder)
    if existing is None:
        if other_files := sorted(
            path.name for path in folder.iterdir() if path.suffix != _PARTIAL_SUFFIX
        ):
            raise FileExistsError(
                f"{folder} holds {', '.join(other_files[:3])}; shards need an empty folder"
            )
        write_json(folder / PLAN, {"plan": plan_hash})
    elif existing != plan_hash:
        raise ValueError(
            f"{folder} holds {'' if complete else 'incomplete '}shards of other images, captions "
            "or classes, or with another number per tar; remove it, or choose another folder"
        )
    if complete:
        _remove_resume_files(folder, ShardInfo.read(folder))
    return complete


def _remove_resume_files(folder: Path, info: ShardInfo) -> None:
    """Remove the files that are only needed to resume."""
    for split, metadata in info.splits.items():
        for number in range(len(metadata.shards)):
            _resume_path(folder, split, number).unlink(missing_ok=True)
    (folder / PLAN).unlink(missing_ok=True)


def _write_split(
    folder: Path,
    split: str,
    source: ShardSource,
    per_shard: int,
    progress: Callable[[int], object],
) -> SplitMetadata:
    """Write the missing shards of a split, then its index."""
    order = shuffled_order(len(source)) if split == "train" else list(range(len(source)))
    rows = np.zeros(len(source), ROW)
    shards = []
    for number in range(-(-len(source) // per_shard)):
        indices = order[number * per_shard : (number + 1) * per_shard]
        path = folder / shard_name(split, number)
        resume_path = _resume_path(folder, split, number)
        if not _is_complete(path, resume_path, source, indices):
            # The tar gets its name after its metadata is written, so that a named tar is complete.
            with atomic_replace(path) as part, part.open("wb") as file:
                write_json(resume_path, _write_tar(file, source, indices, progress))
        else:
            progress(len(indices))
        metadata = read_json_object(resume_path, MAX_INFO_BYTES)
        shards.append(ShardMetadata(len(indices), metadata["bytes"], metadata["sha256"]))
        for sample, row in zip(indices, metadata["rows"], strict=True):
            rows[sample] = (number, *row)
    with atomic_replace(folder / index_name(split)) as part, part.open("wb") as file:
        np.save(file, rows, allow_pickle=False)
    return SplitMetadata(len(source), file_sha256(folder / index_name(split)), tuple(shards))


def _is_complete(
    path: Path, resume_path: Path, source: ShardSource, indices: Sequence[int]
) -> bool:
    """Return whether a tar of an interrupted run exists, and holds what its sources hold now."""
    if not (path.is_file() and resume_path.is_file()):
        return False
    rows = read_json_object(resume_path, MAX_INFO_BYTES)["rows"]
    with path.open("rb") as file:
        return len(rows) == len(indices) and all(
            source.has_image(number, _read(file, row))
            for number, row in zip(indices, rows, strict=True)
        )


def _read(file: BinaryIO, row: Sequence[int]) -> bytes:
    """Return the image of a row of a tar."""
    file.seek(row[0])
    return file.read(row[1])


def _write_tar(
    file: BinaryIO,
    source: ShardSource,
    indices: Sequence[int],
    progress: Callable[[int], object],
) -> dict[str, Any]:
    """Write a tar of samples, and return its metadata."""
    digest = hashlib.sha256()
    length = 0
    rows: list[tuple[int, ...]] = []

    def put(content: bytes) -> None:
        nonlocal length
        file.write(content)
        digest.update(content)
        length += len(content)

    for number in indices:
        sample = source[number]
        row: list[int] = []
        for name, content in _iterate_members(number, sample):
            row = [*row, length + BLOCK, len(content)]
            put(
                _header(name, len(content))
                + content
                + bytes(padded_size(len(content)) - len(content))
            )
        # The first member is the image, the last the record; a class between them is the label.
        rows.append((*row[:2], *row[-2:], sample.label))
        progress(1)
    put(_END)
    return {"bytes": length, "sha256": digest.hexdigest(), "rows": rows}


def _iterate_members(number: int, sample: ShardSample) -> Iterator[tuple[str, bytes]]:
    """Yield the members of a sample: its image first, its record last."""
    key = sample_key(number)
    yield f"{key}.{image_extension(sample.image)}", sample.image
    if sample.label >= 0:
        yield f"{key}.cls", str(sample.label).encode()  # as WebDataset readers expect
    yield f"{key}.json", json.dumps(sample.record, ensure_ascii=False).encode()


def _header(name: str, size: int) -> bytes:
    """Return a reproducible tar header of a member."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.USTAR_FORMAT)


def _resume_path(folder: Path, split: str, number: int) -> Path:
    return folder / f"{split}-{number:06d}.json"


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other writers; the lock ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise BlockingIOError(
            error.errno, "another process is writing shards there; wait for it to end", str(folder)
        ) from None
    finally:
        os.close(descriptor)
