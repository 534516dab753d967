"""`visattn data shards`: images in tars that training reads by number, or that others stream."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.dry_run import add_dry_run, foresee
from visattn.commands.options.output_streams import print_row
from visattn.commands.options.progress import progress_bar
from visattn.commands.options.values import count, seed, whole_number

if TYPE_CHECKING:  # loaded when the command runs, not for its help
    from collections.abc import Callable

    from visattn.data.shards.sources import ShardPlan

_DESCRIPTION = """\
Write images with what is told of them as tars in the layout of WebDataset. ShardCaptionDataModule
and ShardClassificationDataModule train on them as CaptionDataModule and FolderDataModule do on the
loose files: by number, in any order, each once. The folder holds
  SPLIT-000000.tar ...  KEY.jpg, KEY.json (and KEY.cls); training samples in a mixed order
  SPLIT.index.npy       where each sample lies
  words.json            how often each word stands in the captions of each split
  info.json             counts, classes, a SHA-256 of each tar and index

The source is one of
  --captions FILE --photos DIR     captions in any form that CaptionDataModule reads
  --folders ROOT                   photos as ROOT/SPLIT/CLASS/PHOTO
  --source MNIST --root DIR        what TorchvisionDataModule reads, with its own validation split

However a run ends, the same command again goes on after the last whole tar. Each image is looked
at before it is written, and each tar read once more at the end; --check alone does that for shards
that are there, images included."""
_SOURCES = ("MNIST", "FashionMNIST", "CIFAR10", "CIFAR100")


def add_shards(sets: Any) -> None:
    """Add the options of the command to those of `visattn data`."""
    own: argparse.ArgumentParser = sets.add_parser(
        "shards",
        help="captioned or labeled images as tars for training",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = own.add_argument
    add("--out", type=Path, metavar="DIR", required=True, help="folder of the shards")
    add_dry_run(own)
    add("--check", action="store_true", help="write nothing; read all that is there, and judge")
    add("--per-shard", type=count, default=1000, metavar="N", help="samples in a tar (1000)")
    add("--captions", metavar="FILE", help="tokens, CSV, Karpathy, COCO or JSON lines")
    add("--photos", metavar="DIR", help="folder of the photos that FILE names")
    add("--format", choices=("flickr", "csv", "karpathy", "coco", "jsonl"),
        help="of FILE (what it looks like)")  # fmt: skip
    add("--folders", metavar="ROOT", help="folder that holds a folder for each split")
    add("--source", choices=_SOURCES, help="small images as torchvision keeps them")
    add("--root", metavar="DIR", help="folder in which torchvision looks for them")
    add("--train", default="train", metavar="NAME",
        help="of FILE: a split, or a list of photos; of ROOT: a folder (train)")  # fmt: skip
    add("--validation", default="val", metavar="NAME", help="the same for validation (val)")
    add("--test", metavar="NAME", help="the same for the test (none: validation is scored)")
    add("--held-out", type=whole_number(0, 10**9), default=5000, metavar="N",
        help="of --source, training images for validation (5000)")  # fmt: skip
    add("--split-seed", type=seed, default=0, metavar="N",
        help="of --source, decides which these are (0)")  # fmt: skip


def shards_asked(asked: argparse.Namespace) -> int:
    """Write shards, or only check them, and print what there is; return 0.

    Raises:
        ValueError: If the options do not fit together, an image cannot be read, or a check fails.
        OSError: If a file is missing, or the folder cannot be written.
    """
    from visattn.data.shards.format import ShardInfo
    from visattn.data.shards.verify import check_shards
    from visattn.data.shards.writer import shard_files, write_shards

    if not asked.check:
        plan = _plan(asked)
        if asked.dry_run:
            reads = [f"{len(source):,} {split} images" for split, source in plan.sources.items()]
            return foresee(reads, asked.out, shard_files(plan, asked.per_shard))
        _with_bar(
            "writing",
            len(plan),
            lambda advanced: write_shards(
                asked.out, plan, per_shard=asked.per_shard, advanced=advanced
            ),
        )
    splits = ShardInfo.read(asked.out).splits
    _with_bar(
        "checking",
        sum(facts.samples for facts in splits.values()),
        lambda advanced: check_shards(asked.out, decode=asked.check, advanced=advanced),
    )
    counts = (f"{facts.samples:,} {split}" for split, facts in splits.items())
    shards = sum(len(facts.shards) for facts in splits.values())
    size = sum(shard.bytes for facts in splits.values() for shard in facts.shards) / 1e6
    what = f"{', '.join(counts)} samples in {shards:,} tars of {size:,.1f} MB"
    print_row(asked.out, f"{what}, all as written")
    return 0


def _plan(asked: argparse.Namespace) -> "ShardPlan":
    """Return what is to be written."""
    given = [name for name in ("captions", "folders", "source") if getattr(asked, name)]
    partner = {"captions": "photos", "source": "root"}.get(given[0] if given else "")
    if len(given) != 1 or (partner and not getattr(asked, partner)):
        raise ValueError(
            "give one source: --captions FILE --photos DIR, --folders ROOT, or --source NAME "
            f"--root DIR; got {', '.join(f'--{name}' for name in given) or 'none'}"
        )
    named = {"train": asked.train, "validation": asked.validation, "test": asked.test}
    splits = {split: name for split, name in named.items() if name}
    if asked.captions:
        from visattn.data.captions.files import read_captions, split_entries
        from visattn.data.shards.sources import caption_plan

        entries = read_captions(asked.captions, format=asked.format)
        chosen = {split: split_entries(entries, name) for split, name in splits.items()}
        return caption_plan(chosen, asked.photos)
    if asked.folders:
        from visattn.data.shards.sources import folder_plan

        return folder_plan(asked.folders, splits)
    return _torchvision_plan(asked)


def _torchvision_plan(asked: argparse.Namespace) -> "ShardPlan":
    from visattn.data.classification.datasets import HeldImages
    from visattn.data.shards.sources import held_plan
    from visattn.training.data.classification import Split
    from visattn.training.data.torchvision import TorchvisionDataModule

    data = TorchvisionDataModule(
        asked.source, root=asked.root, validation=asked.held_out, split_seed=asked.split_seed
    )
    splits: tuple[Split, ...] = ("train", "validation", "test")
    held = {split: part for split in splits if isinstance(part := data.part(split), HeldImages)}
    parts = {split: (part.images, part.labels) for split, part in held.items()}
    return held_plan(parts, data.classes)


def _with_bar(what: str, count: int, work: "Callable[[Callable[[int], object]], object]") -> None:
    """Do something that says how far it is."""
    with progress_bar(count, alone=True) as bar:
        if bar is None:
            work(lambda _: None)
        else:
            task = bar.add_task(what, total=count)
            work(lambda more: bar.advance(task, more))
