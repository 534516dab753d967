"""Small shards for tests."""

from collections.abc import Sequence
from pathlib import Path

import torch
from caption_data import CaptionPaths

from visattn.data.captions.files import read_captions, read_split_file, select_listed
from visattn.data.shards.sources import ShardPlan, caption_plan, folder_plan, in_memory_plan
from visattn.data.shards.writer import write_shards


def caption_shard_plan(paths: CaptionPaths, *splits: str) -> ShardPlan:
    """Return the shard plan of a small captioned data set."""
    entries = read_captions(paths.captions)
    named = splits or ("train", "validation", "test")
    chosen = {name: select_listed(entries, read_split_file(getattr(paths, name))) for name in named}
    return caption_plan(chosen, paths.photos)


def write_caption_shards(folder: Path, paths: CaptionPaths, *splits: str, tar: int = 3) -> Path:
    """Write a small captioned data set as shards."""
    write_shards(folder, caption_shard_plan(paths, *splits), per_shard=tar)
    return folder


def write_class_shards(folder: Path, root: Path, tar: int = 4) -> Path:
    """Write class folders of photos as shards."""
    write_shards(folder, folder_plan(root, {"train": "train", "validation": "val"}), per_shard=tar)
    return folder


def noise_plan(counts: Sequence[int] = (11, 5), size: tuple[int, int] = (5, 7)) -> ShardPlan:
    """Return the shard plan of small gray noise images of three classes."""
    random = torch.Generator().manual_seed(3)
    parts = {
        split: (
            torch.randint(256, (count, 1, *size), generator=random, dtype=torch.uint8),
            torch.arange(count) % 3,
        )
        for split, count in zip(("train", "validation"), counts, strict=False)
    }
    return in_memory_plan(parts, ["a", "b", "c"])
