"""Verification of shards: hashes, tar members and images."""

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from visattn.data.shards.format import ShardInfo, file_sha256, sample_key, shard_name
from visattn.data.shards.reader import ShardSamples
from visattn.data.shards.sources import ShardPlan
from visattn.images.reader import ImageError, PathLike
from visattn.io.messages import format_names

_MAX_REPORTED = 20


class ShardFault(NamedTuple):
    """A detected fault.

    Args:
        location: File and, for a fault of one sample, key.
        reason: Description of the fault.
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
    match the index in offset and size, and each image must be readable.

    Args:
        folder: Folder of the shards.
        decode: Decode each image too.
        progress: Called with the number of samples done since the last call.

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
    """Raise if shards are damaged.

    Args:
        folder: Folder of the shards.
        decode: Decode each image too.
        progress: Called with the number of samples done since the last call.

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

    Args:
        folder: Folder of the shards.
        plan: The plan that they were written from.

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
