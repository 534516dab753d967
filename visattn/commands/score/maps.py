"""`visattn score maps`: localization, faithfulness and sanity checks of attribution maps."""

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from visattn.commands.model_option import (
    add_model,
    file_digest,
    input_settings,
    load_explained_model,
    model_settings,
    resolve_model,
)
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
from visattn.commands.records import Part, Record
from visattn.commands.run import Job, run_job
from visattn.commands.score.diagnostics import DIAGNOSTICS, diagnose
from visattn.commands.streams import print_lines, print_where
from visattn.io.safe_text import print_message
from visattn.io.sources import Source

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from torch import nn

    from visattn.commands.score.evaluate_maps import MapEvaluator, QueryObject
    from visattn.data.regions.annotations import AnnotatedImage
    from visattn.images.reader import LoadedImage

_DESCRIPTION = """\
Score maps of a model: do they lie on the objects of the explained class (localization), and does
the model depend on the pixels that they highlight (faithfulness)? Baselines that do not depend on
the model are always scored, too."""

_EPILOG = """\
DATA is a COCO file instances_NAME.json, a folder that holds it in annotations/ and the images in
NAME/, or a folder of images with a folder of masks (foreground bright) of the same names. Without
masks the box of an object is its region.

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
Baselines: random and center (a Gaussian).

The target of a category is its most probable class; the class names of models with 1000 classes are
those of ImageNet. Categories without a class of the model are excluded and counted.

With --out, DIR holds rows/ (the scores of each image; an interrupted run is resumed from them),
rows.jsonl (a line per image and method), scores.json, and with --diagnostics diagnostics.json and
diagnostics.png. Commands with --shard share the images; each reports those that are finished."""

_NO_MODEL = "--model is missing: name the model whose maps are scored, as in visattn overlay"
_PARTS = ("localization", "insertion_deletion", "road")
_OPTIONS_OF_PARTS = {"localization": ("tolerance", "threshold"), "insertion_deletion": ("steps",)}
_DENSE = ("region", "box")
ROWS, SCORES = "rows.jsonl", "scores.json"
Row = Mapping[str, Any]
"""Scores of one map, with what it shows."""


_EXAMPLES = (
    "visattn score maps --model timm:resnet50 --pretrained --data coco --methods gradcam rise",
    "visattn score maps --model vit.safetensors --data photos --masks masks --methods rollout",
)


def build_parser() -> CommandParser:
    """Return the argument parser of the subcommand."""
    parser = CommandParser(
        examples=_EXAMPLES,
        prog="visattn score maps",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        add_help=False,
    )
    parser.set_defaults(parser=parser)  # for messages
    add_model(parser, builds=True)
    data = parser.add_argument_group("data")
    scores = parser.add_argument_group("scores")
    data.add_argument(
        "--data", type=Path, required=True, metavar="DATA", help="images with objects, see below"
    )
    data.add_argument("--images", type=Path, metavar="DIR", help="folder of the images of DATA")
    data.add_argument(
        "--masks", type=Path, metavar="DIR", help="folder of the masks of the images in DATA"
    )
    add_options(parser, "limit")
    parser.group(TARGET).add_argument(
        "--methods",
        nargs="+",
        required=True,
        metavar="METHOD",
        help="attribution methods, such as gradcam, rollout",
    )
    scores.add_argument(
        "--scores",
        nargs="+",
        choices=_PARTS,
        help="scores (default: all; of regions and boxes localization, the only one)",
    )
    parser.group(TARGET).add_argument(
        "--target",
        choices=("category", "predicted", *_DENSE),
        help="explain each category of an image, or the predicted class, for which all objects "
        "count (default: category if DATA has categories); of a segmentation model the logits of "
        "each category on the region of its objects, of a detector the box of its largest object",
    )
    _add_score_options(parser, scores)
    add_options(parser, "out", out={"help": "output folder for rows and scores"})
    add_options(parser, "strict", "shard", "overwrite", "dry-run")
    return parser


def _add_score_options(parser: CommandParser, scores: "argparse._ArgumentGroup") -> None:
    """Add the options that change the scores."""
    steps = whole_number(1, 10_000)
    add_resize_mode(parser, None)
    scores.add_argument(
        "--tolerance",
        type=real_number(0, 1e6),
        default=15.0,
        metavar="PX",
        help="tolerance of the pointing game in pixels (default: 15)",
    )
    scores.add_argument(
        "--threshold",
        type=real_number(0, 1),
        metavar="FRACTION",
        help="threshold of the IoU, as a fraction of the map's range (default: the map's mean)",
    )
    scores.add_argument(
        "--steps", type=steps, default=16, help="steps of insertion and deletion (default: 16)"
    )
    scores.add_argument(
        "--sanity-checks",
        type=count,
        metavar="N",
        help="randomize weights and classes for the first N objects (default: none)",
    )
    scores.add_argument(
        "--diagnostics",
        type=count,
        metavar="N",
        help="statistics of the attention over N images (default: none)",
    )
    add_options(parser, "batch-size", "seed")


def score(args: argparse.Namespace) -> int:
    """Score maps and print a table; return 0, or 1 if some images could not be read."""
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
    return run_job(MapScoreJob, args)


class MapScoreJob(Job[list[Row]]):
    """Scores of attribution maps on images with objects: a record with the rows of each image.

    The record of an image, rows/NAME.json, is what a run is resumed from; rows.jsonl and
    scores.json are made from those of all images.

    Args:
        args: Options of `visattn score maps`.
    """

    command = "score maps"
    writes_shared = False
    work = "scoring"

    def __init__(self, args: argparse.Namespace) -> None:
        from visattn.attribution.saliency import BASELINES

        skipped: list[str] = []
        images = _read_annotations(args, skipped)[: args.limit]
        # the readers of folders give files, not photos in memory
        self.annotated = {cast("Source", image.path): image for image in images}
        has_categories = any(any(image.categories) for image in images)
        is_predicted = args.target == "predicted"
        self.predicted = is_predicted or (args.target is None and not has_categories)
        self.methods = list(dict.fromkeys([*args.methods, *BASELINES]))
        self._rows: dict[str, list[Row]] = {}
        super().__init__(args)
        self.skipped += skipped
        self._images = {self.all_names[path]: image for path, image in self.annotated.items()}

    def find(self) -> list[Source]:
        """Return the images of the data."""
        return [*self.annotated]

    @property
    def roots(self) -> tuple[()]:
        """No folder was searched: the data name their images."""
        return ()

    def stems(self, name: str) -> list[str]:
        """Return the stem of the record of an image."""
        return [f"rows/{name}"]

    def load(self) -> "tuple[nn.Module, str]":
        """Load the model, and list what is explained on each image."""
        from visattn.commands.score.evaluate_maps import build_queries, count_classes

        self.evaluator, self.weights = _build_evaluator(self.args)
        self.evaluator.check_methods(self.methods)
        explained = self.evaluator.explained
        names = explained.class_names
        num_classes = len(names) if self.args.target in _DENSE else count_classes(explained)
        images = list(self.annotated.values())
        queries, self.missing = build_queries(images, names, num_classes, predicted=self.predicted)
        if not queries:
            raise ValueError(
                f"the model has no class for {', '.join(self.missing)}; "
                "score its predictions with --target predicted"
            )
        self.checked = {
            (query.image.name, query.category) for query in queries[: self.args.sanity_checks or 0]
        }
        self.queries: dict[str, list[QueryObject]] = {}
        for query in queries:
            self.queries.setdefault(query.image.name, []).append(query)
        for path, image in self.annotated.items():  # those without anything to explain
            if image.name not in self.queries:
                self.names.pop(path, None)
        return explained.model, self.args.model

    def notes(self) -> list[str]:
        """Return the number of maps."""
        count = sum(len(self.queries[self.annotated[path].name]) for path in self.names)
        number = count * len(self.methods)
        return [f"{count:,} targets with {', '.join(self.methods)}: {number:,} maps"]

    def shared_files(self) -> list[str]:
        """Return the files of all images."""
        diagnostics = [*DIAGNOSTICS] if self.args.diagnostics else []
        return [ROWS, SCORES, *diagnostics]

    def settings(self) -> dict[str, Any]:
        """Return everything that changes the scores."""
        args = self.args
        named = "predicted" if self.predicted else "category"
        return {
            **model_settings(args, self.weights),
            "data": args.data.name,
            **input_settings(args),
            "target": args.target if args.target in _DENSE else named,
            "scores": list(args.scores),
            "tolerance": args.tolerance,
            "threshold": args.threshold,
            "steps": args.steps,
            "seed": args.seed,
            "visattn": version("visattn"),
        }

    def settings_of(self, name: str, stem: str) -> dict[str, Any]:
        """Return the methods, and the categories whose maps are checked on an image."""
        del stem
        checked = [query.category for query in self._checked_on(self._images[name].name)]
        return {"methods": self.methods, "checked": checked}

    def _checked_on(self, image: str) -> "list[QueryObject]":
        own = self.queries.get(image, [])
        return [query for query in own if (image, query.category) in self.checked]

    def digests(self, path: Source) -> dict[str, Any]:
        """Return digests of an image and its annotations."""
        return {**super().digests(path), "annotations": _annotation_digest(self.annotated[path])}

    def read(self, path: Source) -> "LoadedImage":
        """Read an image and its masks, in a thread."""
        from visattn.images.reader import ImageError, read_image

        annotated = self.annotated[path]
        image = read_image(path)
        try:
            for query in self.queries[annotated.name]:
                annotated.region_masks(query.category)
        except ValueError as error:
            raise ImageError(str(error)) from error
        if image.size != annotated.size:
            actual, expected = ("{1} x {0}".format(*each) for each in (image.size, annotated.size))
            raise ImageError(f"{path}: it has {actual} pixels, its annotations {expected}")
        return image

    def infer(self, images: "Sequence[LoadedImage]") -> list[list[Row]]:
        """Return the rows of each image, whatever others there are, so that resuming is exact."""
        names = {str(path): image.name for path, image in self.annotated.items()}
        return [self._score(image, names[image.name]) for image in images]

    def _score(self, image: "LoadedImage", name: str) -> list[Row]:
        """Return the scores and checks of all methods on an image."""
        rows: list[Row] = []
        size = self.args.batch_size
        for queries, compute in (
            (self.queries[name], self.evaluator.evaluate),
            (self._checked_on(name), self.evaluator.sanity_checks),
        ):
            for start in range(0, len(queries), size):
                batch = queries[start : start + size]
                rows += compute(batch, [image] * len(batch), self.methods)
        order = {method: number for number, method in enumerate(self.methods)}
        return sorted(rows, key=lambda row: (row["kind"] == "check", order[row["method"]]))

    def parts(self, name: str, image: "LoadedImage", result: list[Row]) -> list[Part]:
        """Return the record of an image."""
        del image
        return [Part(f"rows/{name}", {"image": self._images[name].name, "rows": result})]

    def rows(self, record: Record) -> tuple[()]:
        """Print nothing per image."""
        del record
        return ()

    def finish(self, result: list[Row] | None, records: Sequence[Record]) -> None:
        """Keep the rows of an image."""
        del result
        for record in records:
            self._rows[record["image"]] = record["rows"]

    def run(self, *, batch_size: int = 1) -> int:
        """Score all images; report all that are finished, those of other shards, too."""
        del batch_size
        code = super().run()
        rows: list[Row] = []
        skipped: list[str] = []
        for path, image in self.annotated.items():
            known = self._rows.get(image.name)
            if known is None and path not in self.names and (records := self.finished(path)):
                known = records[0]["rows"]
            if known is not None:
                rows += known
            elif path in self.names:
                skipped.append(image.name)
        numbers = self.report(rows, skipped)
        entries = [{"settings": self._settings}, *rows]
        lines = [json.dumps(each, allow_nan=False) for each in entries]
        self.write_shared(ROWS, "".join(f"{line}\n" for line in lines).encode())
        self.write_shared(SCORES, json.dumps(numbers, indent=1, allow_nan=False).encode() + b"\n")
        if self.out is not None:
            print_where(self.out / SCORES)
        return code

    def report(self, rows: Sequence[Row], skipped: Sequence[str]) -> dict[str, Any]:
        """Print the report, and write diagnostics; return the numbers.

        Args:
            rows: Rows of all images that are finished.
            skipped: Names of images without.
        """
        from visattn.commands.score.report import report_lines, report_numbers

        args = self.args
        settings = self.settings()
        print_lines(report_lines(rows, settings, self.missing))
        if args.diagnostics:
            paths = [path for path, each in self.annotated.items() if each.name not in skipped]
            files, lines = diagnose(self.evaluator, paths[: args.diagnostics], args.batch_size)
            for name, content in files.items():
                self.write_shared(name, content)
            print_lines(["", *lines])
        return {
            "settings": settings,
            **report_numbers(rows),
            "missing_categories": self.missing,
            "skipped": sorted(skipped),
        }


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


def _read_annotations(args: argparse.Namespace, skipped: list[str]) -> "list[AnnotatedImage]":
    """Return the images with their objects; unreadable folders are noted in `skipped`."""
    from visattn.data.regions.readers import read_annotated_images

    return read_annotated_images(
        args.data,
        images=args.images,
        masks=args.masks,
        omit=args.out,
        onerror=lambda error: skipped.append(str(error)),
    )


def _build_evaluator(args: argparse.Namespace) -> "tuple[MapEvaluator, str]":
    """Return the evaluator of the selected model, and the origin of its weights."""
    from visattn.commands.score.evaluate_maps import MapEvaluator
    from visattn.metrics.faithfulness import PerturbationSchedule
    from visattn.metrics.localization import LocalizationRule

    rule = LocalizationRule(args.tolerance, args.threshold)
    schedule = PerturbationSchedule(steps=args.steps)
    args.pretrained = args.pretrained and not args.dry_run  # a dry run downloads nothing
    dense = args.target in _DENSE
    loaded = load_explained_model(args, dense=dense)
    explainer = loaded.explainer
    if loaded.weights == "random" and not args.dry_run:
        print_message("the weights are random: the scores have no meaning")
    if dense:
        from visattn.commands.score.evaluate_maps import DenseMapEvaluator

        if not explainer.analyze().class_names:
            raise ValueError("the names of the classes are unknown; give a file, --classes FILE")
        evaluator = DenseMapEvaluator(
            explainer, args.scores, rule, schedule, args.seed, kind=args.target
        )
        return evaluator, loaded.weights
    evaluator = MapEvaluator(explainer, args.scores, rule, schedule, args.seed)
    return evaluator, loaded.weights


def _annotation_digest(image: "AnnotatedImage") -> str:
    """Return a digest of the annotations of an image, and of its masks."""
    parts: list[object] = [image.size]
    for each in image.objects:
        mask = each.segmentation
        parts += [each.category, file_digest(mask) if isinstance(mask, Path) else mask]
        parts += [each.box, each.crowd]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
