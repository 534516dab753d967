"""`visattn data shards`: write images and annotations as tar shards for training."""

import argparse
from typing import TYPE_CHECKING, Any, get_args

from visattn.commands.options import (
    OUTPUT,
    CommandParser,
    Mode,
    add_options,
    count,
    print_dry_run,
    refuse_unused,
    seed,
    whole_number,
)
from visattn.commands.output_option import output_path
from visattn.commands.streams import activity, print_row
from visattn.results.kinds import CaptionFormat, Split

if TYPE_CHECKING:  # imported when the command runs, not for its help
    from visattn.data.shards.sources import ShardPlan

_DESCRIPTION = """\
Write images with their annotations as tar files in the WebDataset layout. ShardCaptionDataModule
and ShardClassificationDataModule train on them like CaptionDataModule and FolderDataModule on loose
files: with random access by index, each sample once per epoch. The folder holds
  SPLIT-000000.tar ...  KEY.jpg, KEY.json (and KEY.cls); training samples are shuffled
  SPLIT.index.npy       offset of each sample
  words.json            word counts of the captions of each split
  info.json             counts, class names, a SHA-256 of each tar and index

The source is one of
  --captions FILE --photos DIR      captions in any format that CaptionDataModule reads
  --folders ROOT                    photos as ROOT/SPLIT/CLASS/PHOTO
  --dataset MNIST --root DIR        a torchvision data set, as TorchvisionDataModule splits it

An interrupted run resumes after the last complete tar. Each image is decoded before it is written,
and each tar is verified at the end; --check verifies existing shards, images included, and with a
source that they hold what it holds now."""
_SOURCES = ("captions", "folders", "dataset")
_SPLITS = ("train", "val", "test")
_MODES = {
    "captions": Mode("captions (--captions)", ("captions", "photos", "format", *_SPLITS)),
    "folders": Mode("class folders (--folders)", ("folders", *_SPLITS)),
    "dataset": Mode(
        "torchvision data sets (--dataset)", ("dataset", "root", "num_val", "split_seed")
    ),
    "check": Mode("checks without a source (--check)", ()),
}
_EXAMPLES = (
    "visattn data shards --captions Flickr8k.token.txt --photos Images --train train.txt "
    "--val dev.txt --out shards",
    "visattn data shards --folders photos --per-shard 5000 --out shards",
    "visattn data shards --out shards --check",
)
_DATASETS = ("MNIST", "FashionMNIST", "CIFAR10", "CIFAR100")


def add_shards(subparsers: Any) -> None:
    """Add the subcommand to `visattn data`."""
    parser: CommandParser = subparsers.add_parser(
        "shards",
        help="captioned or labeled images as tar files",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.set_defaults(parser=parser)  # for messages
    output = parser.group(OUTPUT).add_argument
    output("--out", type=output_path, metavar="DIR", required=True, help="folder of the shards")
    add_options(parser, "dry-run")
    output("--check", action="store_true", help="verify existing shards, write nothing")
    output("--per-shard", type=count, default=1000, metavar="N",
        help="samples per tar (default: 1000)")  # fmt: skip
    add = parser.add_argument_group("source").add_argument
    add("--captions", metavar="FILE", help="token file, CSV, Karpathy JSON, COCO or JSON lines")
    add("--photos", metavar="DIR", help="folder of the photos named in --captions")
    add("--format", choices=get_args(CaptionFormat),
        help="format of --captions (default: detected)")  # fmt: skip
    add("--folders", metavar="ROOT", help="folder with a folder per split")
    add("--dataset", choices=_DATASETS, help="torchvision data set")
    add("--root", metavar="DIR", help="folder of the torchvision data set")
    add("--train", default="train", metavar="NAME",
        help="training split: a split of --captions, a list of photos, or a folder of --folders "
        "(default: train)")  # fmt: skip
    add("--val", default="val", metavar="NAME", help="the same for validation (default: val)")
    add("--test", metavar="NAME", help="the same for testing (default: none)")
    add("--num-val", type=whole_number(0, 10**9), default=5000, metavar="N",
        help="with --dataset: training images used for validation (default: 5000)")  # fmt: skip
    add("--split-seed", type=seed, default=0, metavar="N",
        help="with --dataset: seed of the choice of these images (default: 0)")  # fmt: skip


def run_shards(args: argparse.Namespace) -> int:
    """Write or verify shards, and print a summary; return 0."""
    from visattn.data.shards.format import ShardInfo
    from visattn.data.shards.writer import (
        check_shards,
        compare_with_sources,
        shard_files,
        write_shards,
    )

    source = next((name for name in _SOURCES if getattr(args, name)), None)
    # With neither, the plan below says what is missing.
    if args.check or source:
        refuse_unused(args.parser, args, source or "check", _MODES)
    if args.check and source:
        compare_with_sources(args.out, _shard_plan(args))
    if not args.check:
        plan = _shard_plan(args)
        if args.dry_run:
            reads = [f"{len(source):,} {split} images" for split, source in plan.sources.items()]
            return print_dry_run(reads, args.out, shard_files(plan, args.per_shard))
        with activity("writing", len(plan)) as shown:
            write_shards(args.out, plan, per_shard=args.per_shard, progress=shown.advance)
    splits = ShardInfo.read(args.out).splits
    with activity("checking", sum(split.samples for split in splits.values())) as shown:
        check_shards(args.out, decode=args.check, progress=shown.advance)
    counts = ", ".join(f"{split.samples:,} {name}" for name, split in splits.items())
    shards = [shard for split in splits.values() for shard in split.shards]
    size = sum(shard.bytes for shard in shards) / 1e6
    print_row(args.out, f"{counts} samples in {len(shards):,} tars of {size:,.1f} MB, verified")
    return 0


def _shard_plan(args: argparse.Namespace) -> "ShardPlan":
    """Return the samples to write, from the selected source."""
    sources = [name for name in _SOURCES if getattr(args, name)]
    partner = {"captions": "photos", "dataset": "root"}.get(sources[0] if sources else "")
    if len(sources) != 1 or (partner and not getattr(args, partner)):
        raise ValueError(
            "give one source: --captions FILE --photos DIR, --folders ROOT, or --dataset NAME "
            f"--root DIR; got {', '.join(f'--{name}' for name in sources) or 'none'}"
        )
    names = {"train": args.train, "validation": args.val, "test": args.test}
    splits = {split: name for split, name in names.items() if name}
    if args.captions:
        from visattn.data.captions.files import entries_of_split, read_captions
        from visattn.data.shards.sources import caption_plan

        entries = read_captions(args.captions, format=args.format)
        by_split = {split: entries_of_split(entries, name) for split, name in splits.items()}
        return caption_plan(by_split, args.photos)
    if args.folders:
        from visattn.data.shards.sources import folder_plan

        return folder_plan(args.folders, splits)
    return _torchvision_plan(args)


def _torchvision_plan(args: argparse.Namespace) -> "ShardPlan":
    from visattn.data.classification.torchvision_sets import TorchvisionSplits
    from visattn.data.shards.sources import in_memory_plan

    splits = TorchvisionSplits(
        args.dataset, args.root, val=args.num_val, split_seed=args.split_seed
    )
    names: tuple[Split, ...] = ("train", "validation", "test")
    return in_memory_plan({name: splits.images(name) for name in names}, splits.class_names)
