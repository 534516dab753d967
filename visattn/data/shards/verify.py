"""Is what lies in a folder of shards what was written? Every byte is read again."""

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from visattn.data.images.reader import ImageError, PathLike
from visattn.data.shards.format import ShardInfo, hash_of, key_of, shard_name
from visattn.data.shards.reader import ShardSamples

_MOST = 20  # faults are told


class ShardFault(NamedTuple):
    """Something that is not as it must be.

    Args:
        place: File and, where it is one sample's, key.
        reason: In words.
    """

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def shard_faults(
    folder: PathLike, *, decode: bool = True, advanced: Callable[[int], object] = lambda _: None
) -> Iterator[ShardFault]:
    """Yield what is wrong with shards; nothing if they are whole.

    Each tar is read as any program reads tars: its hash must be the one that was noted, its
    members those that the index knows, in place and length, and each image must be readable.

    Args:
        folder: That which holds them.
        decode: Look at each image too, not at its bytes alone.
        advanced: Is told of how many samples it is done with, each time.

    Raises:
        FileNotFoundError: If there are no shards, or one is missing.
        ValueError: If the index, or the length of a tar, shows at once that they are damaged.

    Example:
        >>> from visattn.data.shards.sources import held_plan
        >>> from visattn.data.shards.writer import write_shards
        >>> part = torch.zeros(3, 1, 5, 7, dtype=torch.uint8), torch.tensor([1, 0, 1])
        >>> folder = getfixture("tmp_path") / "shards"
        >>> info = write_shards(folder, held_plan({"train": part}, ["no", "yes"]))
        >>> list(shard_faults(folder))
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
            if hash_of(path) != facts.sha256:
                yield ShardFault(str(path), "its SHA-256 is not the one that was noted")
            yield from _sample_faults(samples, path, numbers.get(shard, []), decode, advanced)


def check_shards(
    folder: PathLike, *, decode: bool = True, advanced: Callable[[int], object] = lambda _: None
) -> None:
    """Refuse shards that are not what was written.

    Args:
        folder: That which holds them.
        decode: Look at each image too, not at its bytes alone.
        advanced: Is told of how many samples it is done with, each time.

    Raises:
        FileNotFoundError: If there are no shards, or one is missing.
        ValueError: If something is damaged; the message names tars and keys.
    """
    faults = list(shard_faults(folder, decode=decode, advanced=advanced))
    if faults:
        more = f"\nand {len(faults) - _MOST:,} more" if len(faults) > _MOST else ""
        told = "\n".join(map(str, faults[:_MOST]))
        raise ValueError(
            f"{folder}: {len(faults):,} faults; copy these tars again, or remove the folder and "
            f"write it anew\n{told}{more}"
        )


def _sample_faults(
    samples: ShardSamples,
    path: Path,
    numbers: list[int],
    decode: bool,
    advanced: Callable[[int], object],
) -> Iterator[ShardFault]:
    """Yield what is wrong with the samples of one tar."""
    try:
        with tarfile.open(path, "r:") as tar:
            members = {member.name: (member.offset_data, member.size) for member in tar}
    except (tarfile.TarError, OSError, OverflowError, ValueError) as error:
        # A member that declares more bytes than any file has leads to a place that none has.
        yield ShardFault(str(path), f"no tar: {error}")
        members = {}
    if members and len({name.partition(".")[0] for name in members}) != len(numbers):
        yield ShardFault(str(path), f"must hold {len(numbers):,} samples")
    for number in numbers:
        if reason := _fault(samples, number, members, decode):
            yield ShardFault(f"{path}, key {key_of(number)}", reason)
        advanced(1)


def _fault(
    samples: ShardSamples, number: int, members: dict[str, tuple[int, int]], decode: bool
) -> str | None:
    """Return what is wrong with a sample; None if nothing is."""
    try:
        samples.record(number)
        if decode:
            samples.image(number)
        else:
            samples.content(number)
    except (ImageError, ValueError) as error:
        return str(error).removeprefix(f"{samples.place(number)}: ")
    known = {span for name, span in members.items() if name.startswith(f"{key_of(number)}.")}
    return None if samples.spans(number) <= known or not members else "lies elsewhere in the tar"
