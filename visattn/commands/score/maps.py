"""`visattn score maps`: localization, faithfulness and sanity checks of attribution maps."""

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.arguments import (
    CommandParser,
    add_options,
    add_resize_mode,
    count,
    real_number,
    whole_number,
)
from visattn.commands.options.dry_run import (
    describe_images,
    describe_model,
    print_dry_run,
)
from visattn.commands.options.folders import create_folder
from visattn.commands.options.images import map_in_threads
from visattn.commands.options.models import (
    add_model,
    load_explained_model,
    model_settings,
    resolve_model,
)
from visattn.commands.options.modes import refuse_without
from visattn.commands.options.output_streams import print_lines, progress_bar
from visattn.commands.options.provenance import file_digest
from visattn.commands.score.diagnostics import write_diagnostics
from visattn.commands.score.rows import ScoreRows
from visattn.io.terminal import print_message
from visattn.io.written_files import replace_files

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from visattn.data.regions.annotations import AnnotatedImage
    from visattn.images.reader import LoadedImage
    from visattn.pipelines.evaluate_maps import MapEvaluator, QueryObject

_DESCRIPTION = """\
Score maps of a model: do they lie on the objects of the explained class (localization), and does
the model depend on the pixels that they highlight (faithfulness)? Baselines that do not depend on
the model are always scored, too."""

_EPILOG = """\
DATA is a COCO file instances_NAME.json, a folder that holds it in annotations/ and the images in
NAME/, a folder of images with a folder of masks (foreground bright) of the same names, or boxes of
ImageNet: a folder of XML files or LOC_val_solution.csv, with the images in --images. Without masks
the box of an object is its region.

  point    pointing game: the maximum lies on the object, or within --tolerance pixels of it;
           in box: in its bounding box; hard: objects that cover less than a quarter of an image
           with other categories
  other p, other e    of --target region and box, as a control: the same on objects of other
           categories; a map that shows all objects alike has the same scores there
  energy   fraction of the map on the object; enrich: its ratio to the object's fraction of the area
  IoU      of the object and the region where the map exceeds its mean (or --threshold)
  insert   area under the probability curve while the highest pixels are inserted into a blurred
           image; higher is better
  delete   the same while the highest pixels are deleted; lower is better
  ROAD     probability without the lowest pixels minus probability without the highest, imputed from
           their neighbors; higher is better
Baselines: random, center (a Gaussian) and edges.

The target of a category is its most probable class; the class names of models with 1000 classes are
those of ImageNet. Categories without a class of the model are excluded and counted.

With --out, DIR holds rows.jsonl (a line per image and method; an interrupted run is resumed from
it), scores.json, and with --diagnostics diagnostics.json and diagnostics.png."""

_NO_MODEL = "--model is missing: name the model whose maps are scored, as in visattn overlay"
_PARTS = ("localization", "insertion_deletion", "road")
_OPTIONS_OF_PARTS = {"localization": ("tolerance", "threshold"), "insertion_deletion": ("steps",)}
_DENSE = ("region", "box")


_EXAMPLES = (
    "visattn score maps --model timm:resnet50 --pretrained --data coco --methods gradcam rise",
)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the subcommand."""
    parser = CommandParser(
        examples=_EXAMPLES,
        prog="visattn score maps",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        add_help=False,
    )
    parser.set_defaults(parser=parser)  # for messages
    add_model(parser, builds=True, required=False)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DATA", help="images with objects, see below"
    )
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of the images of DATA")
    parser.add_argument(
        "--masks", type=Path, metavar="DIR", help="folder of the masks of the images in DATA"
    )
    add_options(parser, "limit")
    parser.add_argument(
        "--methods",
        nargs="+",
        required=True,
        metavar="METHOD",
        help="attribution methods, such as gradcam, rollout",
    )
    parser.add_argument(
        "--scores",
        nargs="+",
        choices=_PARTS,
        help="scores (default: all; of regions and boxes localization, the only one)",
    )
    parser.add_argument(
        "--target",
        choices=("category", "predicted", *_DENSE),
        help="explain each category of an image, or the predicted class, for which all objects "
        "count (default: category if DATA has categories); of a segmentation model the logits of "
        "each category on the region of its objects, of a detector the box of its largest object",
    )
    _add_score_options(parser)
    add_options(parser, "out", out={"help": "output folder for rows and scores"})
    overwrite = {"help": "discard existing rows (default: resume)"}
    add_options(parser, "overwrite", "dry-run", overwrite=overwrite)
    return parser


def _add_score_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that change the scores."""
    steps = whole_number(1, 10_000)
    add_options(parser, "align")
    add_resize_mode(parser, None)
    parser.add_argument(
        "--tolerance",
        type=real_number(0, 1e6),
        default=15.0,
        metavar="PX",
        help="tolerance of the pointing game in pixels (default: 15)",
    )
    parser.add_argument(
        "--threshold",
        type=real_number(0, 1),
        metavar="FRACTION",
        help="threshold of the IoU, as a fraction of the map's range (default: the map's mean)",
    )
    parser.add_argument(
        "--steps", type=steps, default=16, help="steps of insertion and deletion (default: 16)"
    )
    parser.add_argument(
        "--sanity-checks",
        type=count,
        metavar="N",
        help="randomize weights and classes for the first N objects (default: none)",
    )
    parser.add_argument(
        "--diagnostics",
        type=count,
        metavar="N",
        help="statistics of the attention over N images (default: none)",
    )
    add_options(parser, "batch-size", "seed")


def score(args: argparse.Namespace) -> int:
    """Score maps and print a table; return 0, or 1 if some images could not be read.

    Raises:
        FileNotFoundError: If the data or the weights do not exist.
        ValueError: If a method or the data does not fit the model, or nothing is left to score.
        OSError: If `--out` cannot be written.
    """
    from visattn.attribution.model_free import BASELINES
    from visattn.pipelines.evaluate_maps import build_queries, count_classes

    resolve_model(args.parser, args, _NO_MODEL)
    if args.diagnostics and args.out is None:
        raise ValueError("--diagnostics needs an output folder, --out DIR")
    _check_parts(args)
    if args.out is None:
        refuse_without(args.parser, args, ["overwrite"])
    if args.masks is not None:
        refuse_without(args.parser, args, ["images"], "a file of annotations, without --masks")
    for part, options in _OPTIONS_OF_PARTS.items():
        if part not in args.scores:
            refuse_without(args.parser, args, options, f"--scores {part}")
    skipped: dict[str, str] = {}
    images = _read_annotations(args, skipped)[: args.limit]
    has_categories = any(any(image.categories) for image in images)
    predicted = args.target == "predicted" or (args.target is None and not has_categories)
    if args.out is not None and not args.dry_run:
        create_folder(args.out)
    evaluator, weights = _build_evaluator(args)
    methods = list(dict.fromkeys([*args.methods, *BASELINES]))
    evaluator.check_methods(methods)
    explained = evaluator.explained
    names = explained.class_names
    num_classes = len(names) if args.target in _DENSE else count_classes(explained)
    queries, missing = build_queries(images, names, num_classes, predicted=predicted)
    if not queries:
        raise ValueError(
            f"the model has no class for {', '.join(missing)}; "
            "score its predictions with --target predicted"
        )
    if args.dry_run:
        return _dry_run(args, evaluator, queries, methods)
    settings = _settings(args, predicted=predicted, weights=weights)
    path = None if args.out is None else args.out / "rows.jsonl"
    contents = {} if path is None else _contents(images)
    with ScoreRows(path, settings, contents, overwrite=args.overwrite) as rows:
        _evaluate(evaluator, queries, methods, rows, skipped, args)
    _report(args, settings, rows, missing, skipped)
    if args.diagnostics and args.out is not None:
        paths = [image.path for image in images if image.name not in skipped]
        paths = paths[: args.diagnostics]
        print_lines(["", *write_diagnostics(evaluator, paths, args.out, args.batch_size)])
    for reason in skipped.values():
        print_message(f"skipped {reason}")
    return 1 if skipped else 0


def _check_parts(args: argparse.Namespace) -> None:
    """Set the default scores; refuse those that dense targets do not have."""
    if args.target not in _DENSE:
        args.scores = args.scores or list(_PARTS)
        return
    args.scores = args.scores or ["localization"]
    if args.scores != ["localization"] or args.sanity_checks or args.diagnostics:
        raise ValueError(
            f"--target {args.target} has localization scores only: leave out --scores, "
            "--sanity-checks and --diagnostics"
        )


def _read_annotations(args: argparse.Namespace, skipped: dict[str, str]) -> "list[AnnotatedImage]":
    """Return the images with their objects; unreadable folders are noted in `skipped`."""
    from visattn.data.regions.readers import read_annotated_images

    return read_annotated_images(
        args.data,
        images=args.images,
        masks=args.masks,
        omit=args.out,
        onerror=lambda error: skipped.update({str(error): str(error)}),
    )


def _build_evaluator(args: argparse.Namespace) -> "tuple[MapEvaluator, str]":
    """Return the evaluator of the selected model, and the origin of its weights."""
    from visattn.metrics.maps.faithfulness import PerturbationSchedule
    from visattn.metrics.maps.localization import LocalizationRule
    from visattn.pipelines.evaluate_maps import MapEvaluator
    from visattn.pipelines.explainer import Explainer

    rule = LocalizationRule(args.tolerance, args.threshold)
    schedule = PerturbationSchedule(steps=args.steps)
    args.pretrained = args.pretrained and not args.dry_run  # a dry run downloads nothing
    dense = args.target in _DENSE
    loaded, explained = load_explained_model(args, dense=dense)
    if loaded.weights == "random" and not args.dry_run:
        print_message("the weights are random: the scores have no meaning")
    options: dict[str, Any] = {"align": args.align, "resize_mode": args.resize_mode}
    if dense:
        from visattn.pipelines.evaluate_dense import DenseMapEvaluator

        if not explained.class_names:
            raise ValueError("the names of the classes are unknown; give a file, --classes FILE")
        explainer = Explainer(explained, img_size=args.input_size, dense=True, **options)
        evaluator = DenseMapEvaluator(
            explainer, args.scores, rule, schedule, args.seed, kind=args.target
        )
        return evaluator, loaded.weights
    own = None if args.resize_mode else loaded.transform
    explainer = Explainer(explained, transform=own, **options)
    evaluator = MapEvaluator(explainer, args.scores, rule, schedule, args.seed)
    return evaluator, loaded.weights


def _dry_run(
    args: argparse.Namespace,
    evaluator: "MapEvaluator",
    queries: "Sequence[QueryObject]",
    methods: Sequence[str],
) -> int:
    """Print what would be read and written, after all checks; return 0."""
    paths = list(dict.fromkeys(query.image.path for query in queries))
    number = len(queries) * len(methods)
    reads = [
        describe_images(paths),
        describe_model(evaluator.explained.model, args.model),
        f"{len(queries):,} targets with {', '.join(methods)}: {number:,} maps",
    ]
    diagnostics = ["diagnostics.json", "diagnostics.png"] if args.diagnostics else []
    return print_dry_run(reads, args.out, ["rows.jsonl", "scores.json", *diagnostics])


def _settings(args: argparse.Namespace, *, predicted: bool, weights: str) -> dict[str, Any]:
    """Return everything that changes the scores, as plain values."""
    from importlib.metadata import version

    return {
        **model_settings(args, weights),
        "data": args.data.name,
        "input_size": args.input_size,
        "classes": args.classes and file_digest(args.classes),
        "align": args.align,
        "resize_mode": args.resize_mode,
        "target": args.target if args.target in _DENSE else _target_name(predicted=predicted),
        "scores": list(args.scores),
        "tolerance": args.tolerance,
        "threshold": args.threshold,
        "steps": args.steps,
        "seed": args.seed,
        "visattn": version("visattn"),
    }


def _contents(images: "Sequence[AnnotatedImage]") -> dict[str, str]:
    """Return for each image a digest of it and of its annotations."""
    digests = map_in_threads(_content_digest, images)
    return {image.name: digest() for image, digest in digests}


def _content_digest(image: "AnnotatedImage") -> str:
    """Return a digest of an image and its annotations; "" if a file cannot be read."""
    try:
        parts: list[object] = [image.size, file_digest(image.path)]
        for each in image.objects:
            mask = each.segmentation
            parts += [each.category, file_digest(mask) if isinstance(mask, Path) else mask]
            parts += [each.box, each.crowd]
    except (OSError, ValueError):
        return ""  # reported when the image is read
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _target_name(*, predicted: bool) -> str:
    return "predicted" if predicted else "category"


def _evaluate(
    evaluator: "MapEvaluator",
    queries: "Sequence[QueryObject]",
    methods: Sequence[str],
    rows: ScoreRows,
    skipped: dict[str, str],
    args: argparse.Namespace,
) -> None:
    """Compute the missing rows, always in the same batches, so that a resumed run is exact."""
    checked = queries[: args.sanity_checks or 0]
    work = [("score", batch) for batch in _batches(queries, args.batch_size)]
    work += [("check", batch) for batch in _batches(checked, args.batch_size)]
    with progress_bar(len(work)) as progress:
        for kind, batch in progress.track(work) if progress else work:
            names = [(query.image.name, query.category) for query in batch]
            missing = [
                method
                for method in methods
                if not all(rows.has(kind, *name, method) for name in names)
            ]
            if not missing:
                continue
            pairs = list(_read_images(batch, skipped))
            if not pairs:
                continue
            readable, images = zip(*pairs, strict=True)
            compute = evaluator.evaluate if kind == "score" else evaluator.sanity_checks
            for row in compute(readable, images, missing):
                rows.add(row)


def _batches(queries: "Sequence[QueryObject]", size: int) -> "Iterator[Sequence[QueryObject]]":
    return (queries[start : start + size] for start in range(0, len(queries), size))


def _read_images(
    batch: "Sequence[QueryObject]", skipped: dict[str, str]
) -> "Iterator[tuple[QueryObject, LoadedImage]]":
    """Yield queries with their images; unusable images are noted in `skipped`."""
    from visattn.images.reader import ImageError, read_image

    last: tuple[Path, LoadedImage] | None = None
    for query in batch:
        name, path, size = query.image.name, query.image.path, query.image.size
        try:
            image = last[1] if last and last[0] == path else read_image(path)
            query.image.region_masks(query.category)
        except (ImageError, ValueError) as error:
            skipped[name] = str(error)
            continue
        last = path, image
        if image.size == size:
            yield query, image
        else:
            actual, expected = ("{1} x {0}".format(*each) for each in (image.size, size))
            skipped[name] = f"{path}: it has {actual} pixels, its annotations {expected}"


def _report(
    args: argparse.Namespace,
    settings: dict[str, Any],
    rows: ScoreRows,
    missing: dict[str, int],
    skipped: dict[str, str],
) -> None:
    """Print the report, and write scores.json."""
    from visattn.commands.score.report import report_lines, report_numbers

    print_lines(report_lines(rows.rows, settings, missing))
    if args.out is None:
        return
    record = {
        "settings": settings,
        **report_numbers(rows.rows),
        "missing_categories": missing,
        "skipped": sorted(skipped),
    }
    content = json.dumps(record, indent=1, allow_nan=False)
    with replace_files(args.out, "scores.json", overwrite=args.overwrite) as part:
        (part / "scores.json").write_text(content + "\n")
