"""`visattn score maps`: localization, faithfulness and sanity checks of attribution maps."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from visattn.commands.arguments import EMPTY, File, ResizeModeOrNone
from visattn.commands.files import file_digest, report_failures
from visattn.commands.loop import (
    Command,
    LoopOptions,
    Made,
    finished_records,
    run,
)
from visattn.commands.model import BuildOptions
from visattn.commands.streams import print_lines, print_where
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from visattn.data.regions.annotations import AnnotatedImage
    from visattn.images.reader import LoadedImage
    from visattn.io.sources import Source
    from visattn.pipelines.evaluate_maps import MapEvaluator, QueryObject

_TOLERANCE = 15  # pixels around an object that count as hits in the pointing game, as in the paper
Row = Mapping[str, Any]
"""Scores of one map, with the method and object they belong to."""


def score_maps(
    *,
    data: Annotated[Path, arg(metavar="DATA")],
    methods: Annotated[tuple[str, ...], arg(metavar="METHOD ...")],
    model: BuildOptions = BuildOptions(),  # noqa: B008 (frozen)
    images: Annotated[File, arg(metavar="DIR")] = None,
    masks: Annotated[File, arg(metavar="DIR")] = None,
    target: Annotated[Literal["category", "predicted", "region", "box"] | None, EMPTY] = None,
    resize_mode: ResizeModeOrNone = None,
    sanity_checks: int = 0,
    loop: LoopOptions = LoopOptions(Path("visattn-scores")),  # noqa: B008
) -> int:
    """Score attribution maps: do they show the objects, and what the model uses?

    Localization: is the map on the objects of the explained class? Faithfulness: does the model
    depend on the pixels that the map highlights? Two baselines that ignore the model, random and
    center (a Gaussian), are always included.

    point: the pointing game, the maximum lies on the object, or within 15 pixels of it; in box: in
    its bounding box; hard: objects that cover less than a quarter of an image with other
    categories; other p, other e, of the targets region and box: the same on objects of other
    categories. energy: fraction of the map on the object; enrich: its ratio to the object's
    fraction of the area. IoU: of the object and the region where the map exceeds its mean. insert,
    delete: area under the probability curve while the highest pixels are inserted into a blurred
    image, or deleted. ROAD: probability without the lowest pixels minus that without the highest.

    Writes rows.jsonl, a line per map, scores.json, and rows/, from which an interrupted run
    resumes. Commands with --shard share the images; each reports those that are finished.

    Args:
        data: a COCO file instances_NAME.json, a folder that holds it in annotations/ and the images
            in NAME/, or a folder of images with a folder of --masks
        methods: attribution methods, such as gradcam rollout
        images: folder of the images of DATA
        masks: folder of masks with the names of the images (foreground bright)
        target: explain each annotated category, or the predicted class, compared with all objects
            (default: category if DATA has categories); region: for segmentation models, each
            category on its objects; box: for detectors, the largest object of each category
        resize_mode: fit a photo to the input size (default: preprocessing of the model)
        sanity_checks: randomize weights and classes for the first N objects
    """
    from visattn.attribution.saliency import BASELINES
    from visattn.commands.score.report import report_lines, report_numbers
    from visattn.data.regions.readers import read_annotated_images
    from visattn.pipelines.evaluate_maps import (
        MapEvaluator,
        build_queries,
        count_classes,
    )

    model = model.named("score maps")
    skipped: list[str] = []
    annotated = read_annotated_images(
        data, images=images, masks=masks, omit=loop.out,
        onerror=lambda error: skipped.append(str(error)),
    )  # fmt: skip
    names = list(dict.fromkeys([*methods, *BASELINES]))
    dense = target in ("region", "box")
    explainer, made = model.explainer(text=(), resize_mode=resize_mode, dense=dense)
    subject = explainer.analyze()
    if dense and not subject.class_names:
        raise ValueError("the names of the classes are unknown; give a file, --class-names FILE")
    target = target or ("category" if any(any(x.categories) for x in annotated) else "predicted")
    evaluator = MapEvaluator(
        explainer, "class" if target in ("category", "predicted") else target, _TOLERANCE
    )
    evaluator.check_methods(names)
    queries, missing = build_queries(
        annotated,
        subject.class_names,
        len(subject.class_names) if dense else count_classes(subject),
        predicted=target == "predicted",
    )
    if not queries:
        raise ValueError(
            f"the model has no class for {', '.join(missing)}; "
            "score its predictions with --target predicted"
        )
    scorer = _Scorer(evaluator, names)
    for query in queries:
        scorer.queries.setdefault(str(query.image.path), []).append(query)
    for query in islice(queries, sanity_checks):
        scorer.checked.setdefault(str(query.image.path), []).append(query)
    settings = {**made, "data": data.name, "resize_mode": resize_mode, "target": target}
    settings |= {"methods": names, "sanity_checks": sanity_checks, "visattn": version("visattn")}
    settings["annotations"] = _digest(annotated)
    shared = ["../rows.jsonl", "../scores.json"]
    command = Command("score maps", "", settings, scorer.infer, _draw, [], scorer.read, shared)
    photos = list(scorer.queries)
    rows_of = replace(loop, out=loop.out / "rows")
    code = run(command, photos, rows_of, batch_size=1)
    finished = {
        record["image"]: record["rows"] for record in finished_records(rows_of.out, command.name)
    }
    rows = [row for image in annotated for row in finished.get(image.name, ())]
    print_lines(report_lines(rows, settings, missing))
    entries = [json.dumps(each, allow_nan=False) for each in ({"settings": settings}, *rows)]
    atomic_write(loop.out / "rows.jsonl", "".join(f"{entry}\n" for entry in entries))
    numbers = {"settings": settings, **report_numbers(rows), "missing_categories": missing}
    numbers["skipped"] = sorted(x.name for x in annotated if x.name not in finished)
    atomic_write(loop.out / "scores.json", json.dumps(numbers, indent=1, allow_nan=False) + "\n")
    print_where(loop.out / "scores.json")
    return max(code, report_failures(skipped, [], len(annotated) + len(skipped)))


@dataclass
class _Scorer:
    """Scores the maps of photos, one photo at a time, so that a resumed run gives equal scores."""

    evaluator: "MapEvaluator"
    methods: Sequence[str]
    queries: "dict[str, list[QueryObject]]" = field(default_factory=dict)
    checked: "dict[str, list[QueryObject]]" = field(default_factory=dict)

    def read(self, path: "Source") -> "LoadedImage":
        """Read an image, and its masks."""
        from visattn.images.reader import ImageError, read_image

        image, queries = read_image(path), self.queries[str(path)]
        annotated = queries[0].image
        try:
            for query in queries:
                annotated.region_masks(query.category)
        except ValueError as error:
            raise ImageError(str(error)) from error
        if image.size != annotated.size:
            actual, expected = ("{1} x {0}".format(*each) for each in (image.size, annotated.size))
            raise ImageError(f"{path}: it has {actual} pixels, its annotations {expected}")
        return image

    def infer(self, images: "Sequence[LoadedImage]") -> list[list[Row]]:
        """Return the scores and checks of all methods on each image."""
        return [self._rows(image) for image in images]

    def _rows(self, image: "LoadedImage") -> list[Row]:
        rows: list[Row] = []
        for queries, compute in (
            (self.queries[image.name], self.evaluator.evaluate),
            (self.checked.get(image.name, []), self.evaluator.sanity_checks),
        ):
            rows += compute(queries, image, self.methods)
        order = {method: number for number, method in enumerate(self.methods)}
        named = self.queries[image.name][0].image.name
        return [
            {**row, "image": named}
            for row in sorted(rows, key=lambda row: (row["kind"] == "check", order[row["method"]]))
        ]


def _draw(image: "LoadedImage", rows: list[Row], files: Sequence[str]) -> Made:
    del image, files
    return Made({"image": rows[0]["image"], "rows": rows}, {})


def _digest(images: "Sequence[AnnotatedImage]") -> str:
    """Return a digest of annotations, and of masks."""
    parts: list[object] = []
    for each in (thing for image in images for thing in (image, *image.objects)):
        mask = getattr(each, "segmentation", None)
        parts.append(file_digest(mask) if isinstance(mask, Path) else repr(each))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
