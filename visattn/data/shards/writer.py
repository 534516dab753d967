"""Writing shards: whatever ends a run, whole tars stay, and the same call goes on after them."""

import fcntl
import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from visattn.data.loading.sample_seed import numbered_uniforms
from visattn.data.shards.format import (
    BLOCK,
    INFO,
    PLAN,
    ROW,
    WORDS,
    ShardFacts,
    ShardInfo,
    SplitFacts,
    hash_of,
    index_name,
    key_of,
    padded,
    plan_of,
    read_json,
    shard_name,
    write_json,
)
from visattn.data.shards.sources import ShardPlan, ShardSample, ShardSource, ending
from visattn.io.atomic import remove_parts, replacing

_PART = ".part"  # of a file that was not finished
_END = b"\0" * 2 * BLOCK


def write_shards(
    folder: Path,
    plan: ShardPlan,
    *,
    per_shard: int = 1000,
    advanced: Callable[[int], object] = lambda _: None,
) -> ShardInfo:
    """Write shards, or those that are missing after a run that ended early.

    The same plan gives the same bytes, however often it was stopped on the way. Training samples
    lie in a mixed order, for those who read shards from one end to the other.

    Args:
        folder: Where; made if it is not there.
        plan: What they are to hold.
        per_shard: Samples in a tar.
        advanced: Is told of how many samples it is done with, each time.

    Raises:
        ImageError: If an image cannot be read; the message names its file.
        ValueError: If the folder holds other shards, or a number makes no sense.
        FileExistsError: If the folder holds anything else.
        BlockingIOError: If another process is writing there.
        OSError: If the disk takes no more; whole shards stay, and are gone on from.

    Example:
        >>> from visattn.data.shards.sources import held_plan
        >>> import torch
        >>> part = torch.zeros(3, 1, 5, 7, dtype=torch.uint8), torch.tensor([1, 0, 1])
        >>> folder = getfixture("tmp_path") / "shards"
        >>> info = write_shards(folder, held_plan({"train": part}, ["no", "yes"]), per_shard=2)
        >>> sorted(path.name for path in folder.iterdir() if path.suffix != ".part")
        ['info.json', 'train-000000.tar', 'train-000001.tar', 'train.index.npy']
    """
    _check_counts(plan, per_shard)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        wanted = plan.hash(per_shard)
        whole = _begun(folder, wanted)
        remove_parts(folder)  # of a run that was killed
        if whole:
            advanced(len(plan))
            return ShardInfo.read(folder)
        splits = {
            split: _written_split(folder, split, source, per_shard, advanced)
            for split, source in plan.sources.items()
        }
        if plan.kind == "captions":
            write_json(folder / WORDS, plan.words)
        info = ShardInfo(plan.kind, wanted, splits, plan.classes, plan.channels, plan.size)
        info.write(folder)
        _tidy(folder, info)
    return info


def shard_files(plan: ShardPlan, per_shard: int) -> list[str]:
    """Return the names of the files that shards of a plan consist of.

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
    return [*files, *([WORDS] if plan.kind == "captions" else []), INFO]


def _check_counts(plan: ShardPlan, per_shard: int) -> None:
    if per_shard < 1 or not all(map(len, plan.sources.values())):
        counts = {split: len(source) for split, source in plan.sources.items()}
        raise ValueError(f"per_shard and each split must be at least 1, got {per_shard}, {counts}")


def mixed_order(count: int, seed: int = 0) -> list[int]:
    """Return numbers in a mixed order, the same for ever.

    Example:
        >>> sorted(mixed_order(5))
        [0, 1, 2, 3, 4]
    """
    drawn = numbered_uniforms(seed, range(count), 1)[:, 0]
    return drawn.argsort(stable=True).tolist()


def _begun(folder: Path, wanted: str) -> bool:
    """Return whether the shards that are wanted are all there; note what is to come if not.

    Raises:
        ValueError: If the folder holds other shards.
        FileExistsError: If it holds something else.
    """
    whole = (folder / INFO).is_file()
    there = ShardInfo.read(folder).plan if whole else plan_of(folder)
    if there is None:
        if strangers := sorted(path.name for path in folder.iterdir() if path.suffix != _PART):
            raise FileExistsError(
                f"{folder} holds {', '.join(strangers[:3])}; shards need a folder of their own"
            )
        write_json(folder / PLAN, {"plan": wanted})
    elif there != wanted:
        raise ValueError(
            f"{folder} holds {'' if whole else 'unfinished '}shards of other images, captions or "
            "classes, or with another number a tar; remove it, or choose another folder"
        )
    if whole:
        _tidy(folder, ShardInfo.read(folder))
    return whole


def _tidy(folder: Path, info: ShardInfo) -> None:
    """Remove what only a run that goes on needs."""
    for split, facts in info.splits.items():
        for number in range(len(facts.shards)):
            _note(folder, split, number).unlink(missing_ok=True)
    (folder / PLAN).unlink(missing_ok=True)


def _written_split(
    folder: Path,
    split: str,
    source: ShardSource,
    per_shard: int,
    advanced: Callable[[int], object],
) -> SplitFacts:
    """Write the shards of a split that are missing, then its index."""
    order = mixed_order(len(source)) if split == "train" else list(range(len(source)))
    rows, shards = np.zeros(len(source), ROW), []
    for number in range(-(-len(source) // per_shard)):
        chosen = order[number * per_shard : (number + 1) * per_shard]
        path, note = folder / shard_name(split, number), _note(folder, split, number)
        if not (path.is_file() and note.is_file()):
            # First what is known of the tar, then its name: a tar that is there is known.
            with replacing(path) as part, part.open("wb") as file:
                write_json(note, _written(file, source, chosen, advanced))
        else:
            advanced(len(chosen))
        known = read_json(note)
        shards.append(ShardFacts(len(chosen), known["bytes"], known["sha256"]))
        for sample, row in zip(chosen, known["rows"], strict=True):
            rows[sample] = (number, *row)
    with replacing(folder / index_name(split)) as part, part.open("wb") as file:
        np.save(file, rows, allow_pickle=False)
    return SplitFacts(len(source), hash_of(folder / index_name(split)), tuple(shards))


def _written(
    file: BinaryIO,
    source: ShardSource,
    chosen: Sequence[int],
    advanced: Callable[[int], object],
) -> dict[str, Any]:
    """Write a tar of some samples, and return what is known of it."""
    digest, length = hashlib.sha256(), 0
    rows: list[tuple[int, ...]] = []

    def put(content: bytes) -> None:
        nonlocal length
        file.write(content)
        digest.update(content)
        length += len(content)

    for number in chosen:
        sample = source[number]
        row: list[int] = []
        for name, content in _members(number, sample):
            row = [*row, length + BLOCK, len(content)]
            put(_header(name, len(content)) + content + bytes(padded(len(content)) - len(content)))
        rows.append((*row[:2], *row[-2:], sample.label))
        advanced(1)
    put(_END)
    return {"bytes": length, "sha256": digest.hexdigest(), "rows": rows}


def _members(number: int, sample: ShardSample) -> Iterator[tuple[str, bytes]]:
    """Yield the members of a sample: its image first, what is told of it last."""
    key = key_of(number)
    yield f"{key}.{ending(sample.image)}", sample.image
    if sample.label >= 0:
        yield f"{key}.cls", str(sample.label).encode()  # as those read who stream
    yield f"{key}.json", json.dumps(sample.record, ensure_ascii=False).encode()


def _header(name: str, size: int) -> bytes:
    """Return the header of a member; nothing in it depends on the machine or the hour."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.USTAR_FORMAT)


def _note(folder: Path, split: str, number: int) -> Path:
    return folder / f"{split}-{number:06d}.json"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep two processes from writing in one folder; however one ends, it lets go."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise BlockingIOError(
            error.errno, "another process is writing shards there; let it end", str(folder)
        ) from None
    finally:
        os.close(held)
