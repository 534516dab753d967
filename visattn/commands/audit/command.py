"""`visattn audit`: where a model looks over a whole data set, and whether it matters."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from visattn.commands.audit.job import AuditJob
from visattn.commands.image_options import add_images, resolve_images
from visattn.commands.model_option import add_model, resolve_model
from visattn.commands.options import (
    TARGET,
    CommandParser,
    add_options,
    add_resize_mode,
    count,
    real_number,
    refuse_without,
    whole_number,
)
from visattn.commands.run import run_job

_DESCRIPTION = """\
Look for what a classifier uses over many photos: patches that hold its evidence, artefacts, the
background; and measure for each what changes without it and with it."""

_EPILOG = """\
In one pass over the photos each gets its prediction, a map, and the features of the cells with the
most evidence; an interrupted run is resumed. Then
  candidates  patches that look alike to the model are pasted into photos of other classes, and
              removed from their own, beside controls; searched in one half of the photos, tested
              on the other
  stamps      artefacts (frames, texts, tags, rulers, tints, blur, ...) are put on photos; any
              model reacts to some, which is confirmed beyond the models of --reference alone
  regions     shares of the evidence on objects, border, corners and center, with four baselines
  groups      right and wrong predictions, columns of --groups, brightness and the like
Effects are changes of the log-odds of a class, in nats, with a 95 % interval.

The true class of a photo is the folder that it lies in, if the model has a class of that name, or
the column label of --groups, a CSV file whose column image names photos by path or file name.
DIR holds report.html, findings.json, rows.csv, maps.npy, patches.npz, and photos/, from which a run
is resumed. Commands with --shard share the photos; each reports those that are finished."""

_NO_MODEL = "--model is missing: name the classifier to audit, as in visattn overlay"
_EXAMPLES = (
    "visattn audit photos/val --model timm:resnet50 --weights my.safetensors --out audit",
    "visattn audit photos/val --model runs/flowers/1 --stamp logo.png --fail-on 1 --out audit",
)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=_EXAMPLES, prog="visattn audit", description=_DESCRIPTION, epilog=_EPILOG
    )
    add_images(parser)
    add_model(parser, builds=True)
    group = parser.group(TARGET)
    group.add_argument(
        "--method",
        default="hirescam",
        metavar="METHOD",
        help="attribution method of the maps (default: hirescam, of the layer of the features)",
    )
    group.add_argument(
        "--layer",
        metavar="NAME",
        help="layer whose features are compared (default: the last with 8 rows and columns)",
    )
    _add_data(parser)
    _add_tests(parser)
    add_options(parser, "out", out={"required": True, "help": "output folder of the report"})
    add_resize_mode(parser, None)
    add_options(parser, "align", "batch-size", "seed", "shard", "overwrite", "parquet", "dry-run")
    return parser


def _add_data(parser: CommandParser) -> None:
    data = parser.add_argument_group("data")
    data.add_argument(
        "--boxes", type=Path, metavar="DATA",
        help="objects of the photos: a COCO file, or boxes as visattn score maps reads them",
    )  # fmt: skip
    data.add_argument(
        "--masks", type=Path, metavar="DIR", help="folder of masks, each with the name of its photo"
    )
    data.add_argument(
        "--groups", type=Path, metavar="CSV",
        help="columns of the photos: image, label, and others whose values are compared",
    )  # fmt: skip
    data.add_argument(
        "--unit", metavar="COLUMN", help="column of --groups whose photos of one value belong "
        "together, such as those of a patient"
    )  # fmt: skip
    data.add_argument(
        "--limit-per-class", type=count, default=500, metavar="N",
        help="most photos of a true class (default: 500)",
    )  # fmt: skip


def _add_tests(parser: CommandParser) -> None:
    tests = parser.add_argument_group("tests")
    tests.add_argument(
        "--stamp", nargs="+", type=Path, default=[], metavar="FILE",
        help="images of artefacts to put on photos, besides those of the bank",
    )  # fmt: skip
    tests.add_argument(
        "--min-effect", type=real_number(0, 30), default=0.5, metavar="NATS",
        help="effect that the interval of a finding must exceed (default: 0.5)",
    )  # fmt: skip
    tests.add_argument(
        "--budget", type=whole_number(0, 10**8), default=20_000, metavar="IMAGES",
        help="most edited images that the model is run on (default: 20000)",
    )  # fmt: skip
    tests.add_argument(
        "--reference", nargs="+", type=Path, default=[], metavar="DIR",
        help="audits of models that did not learn from the photos in question, on the same photos: "
        "stamps are confirmed beyond them alone",
    )  # fmt: skip
    tests.add_argument(
        "--against", type=Path, metavar="DIR",
        help="audit of another checkpoint on the same photos, which is compared",
    )  # fmt: skip
    tests.add_argument(
        "--seeds", nargs="+", type=Path, default=[], metavar="DIR",
        help="audits of checkpoints of the recipe of this one with other seeds, which say how far "
        "shares differ by chance",
    )  # fmt: skip
    tests.add_argument(
        "--fail-on", type=real_number(0, 30), metavar="EFFECT",
        help="exit with code 1 if an effect is confirmed whose interval lies above this, in nats",
    )  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Audit a model; return 0, or 1 if photos could not be read or --fail-on applies."""
    parser = build_parser()
    args = parser.parse_args(argv)
    resolve_images(parser, args)
    resolve_model(parser, args, _NO_MODEL)
    if args.masks is not None and args.boxes is not None:
        parser.error("--masks and --boxes both name the objects of the photos: pass one of them")
    if len(args.reference) == 1:
        parser.error(
            "--reference needs two audits at least: their spread is what differs by chance"
        )
    if args.groups is None:
        refuse_without(parser, args, ["unit"], "columns, --groups CSV")
    if args.against is None:
        refuse_without(parser, args, ["seeds"], "another checkpoint, --against DIR")
    if args.fail_on is not None and args.fail_on < args.min_effect:
        parser.error(
            f"--fail-on {args.fail_on:g} is below --min-effect {args.min_effect:g}, above which "
            "effects are confirmed: pass a smaller --min-effect, too"
        )
    return run_job(AuditJob, args, batch_size=args.batch_size)
