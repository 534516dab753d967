"""`visattn score maps`: how good maps are, on objects whose place is known."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.dry_run import add_dry_run, foresee, told_images, told_model
from visattn.commands.options.folders import prepare_folder, write_whole
from visattn.commands.options.models import add_model_options, chosen_model
from visattn.commands.options.output_streams import print_lines, print_remark
from visattn.commands.options.parser import CommandParser
from visattn.commands.options.progress import progress_bar
from visattn.commands.options.values import batch_size, count, real_number, seed, whole_number
from visattn.commands.overlay.map_records import code_of, digest, origin_of
from visattn.commands.score.diagnostics import write_diagnostics
from visattn.commands.score.rows import ScoreRows

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    from visattn.data.images.reader import LoadedImage
    from visattn.data.regions.dataset import LocatedImage
    from visattn.pipelines.evaluate_maps import MapEvaluator, QueryObject

_DESCRIPTION = """\
Score maps of a model: whether they lie on the objects they are about, and whether the model needs
the pixels that they point at. Maps that know nothing of the model are always scored beside them."""

_EPILOG = """\
DATA is a file instances_NAME.json as COCO writes them, a folder that holds it in annotations/ and
the images in NAME/, or a folder of images with a folder of masks (light inside) of their names.

  point    the peak lies on the object, or within 15 pixels (--tolerance); in box: in the box
           around it; hard: on objects below a quarter of an image that shows something else too
  energy   share of the map on the object; lift: over the object's share of what was seen
  IoU      of the object and where the map is above its mean (--threshold: above a share)
  insert   area under the probability while pixels come into a blur, the highest first: high is good
  delete   the same while they go: low is good
  ROAD     probability left without the lowest pixels, less that without the highest, which are
           made up from those around: high is good
random, center (a Gaussian) and edges are what knows nothing of the model.

A category is asked for by the class of it that the model finds likeliest; of a model with 1000
classes those of ImageNet. Categories that it has no class of are left out and counted.

With --out, DIR holds rows.jsonl (a line for each image and method; a run that was interrupted
goes on there), scores.json, and with --diagnostics diagnostics.json and diagnostics.png."""

_PARTS = ("location", "removal", "road")


def parser() -> argparse.ArgumentParser:
    """Return the options of the command, to be put below `visattn score`."""
    made = CommandParser(
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    add_model_options(made)
    made.add_argument("--data", type=Path, required=True, metavar="DATA", help="see below")
    made.add_argument("--images", type=Path, metavar="DIR", help="where DATA's images are")
    made.add_argument("--masks", type=Path, metavar="DIR", help="masks of the images in DATA")
    made.add_argument("--limit", type=count, metavar="N", help="only the first N images")
    made.add_argument(
        "--methods", nargs="+", required=True, metavar="METHOD", help="such as gradcam, rollout"
    )
    made.add_argument(
        "--scores",
        nargs="+",
        choices=_PARTS,
        default=list(_PARTS),
        help="which: on the objects, insertion and deletion, ROAD (all)",
    )
    made.add_argument(
        "--target",
        choices=("category", "predicted"),
        help="ask for each category on an image, or for the model's answer, for which all objects "
        "count (category, where there are some)",
    )
    _add_rules(made)
    made.add_argument("--out", type=Path, metavar="DIR", help="folder for rows and scores")
    made.add_argument("--again", action="store_true", help="begin anew instead of going on")
    add_dry_run(made)
    return made


def _add_rules(made: argparse.ArgumentParser) -> None:
    """Add what changes the numbers."""
    steps = whole_number(1, 10_000)
    made.add_argument(
        "--tolerance",
        type=real_number(0, 1e6),
        default=15.0,
        metavar="PX",
        help="a peak may miss by (15)",
    )
    made.add_argument(
        "--threshold",
        type=real_number(0, 1),
        metavar="SHARE",
        help="of the range, for IoU (the map's mean)",
    )
    made.add_argument("--steps", type=steps, default=16, help="of insertion and deletion (16)")
    made.add_argument(
        "--checks", type=count, metavar="N", help="shuffle the weights for the first N objects"
    )
    made.add_argument(
        "--diagnostics", type=count, metavar="N", help="attention itself, over N images"
    )
    made.add_argument("--batch", type=batch_size, default=16, help="images at a time (16)")
    made.add_argument("--seed", type=seed, default=0, help="of all that is drawn (0)")


def score(asked: argparse.Namespace) -> int:
    """Score maps and print a table; return 0, or 1 if some images could not be read.

    Raises:
        FileNotFoundError: If the data or the weights do not exist.
        ValueError: If a method or the data does not fit the model, or nothing is left to score.
        OSError: If `--out` cannot be written.
    """
    from visattn.attribution.baselines import BASELINES
    from visattn.pipelines.evaluate_maps import class_count, sought_things

    if asked.diagnostics and asked.out is None:
        raise ValueError("--diagnostics are files: say where to with --out DIR")
    bad: dict[str, str] = {}
    images = _located(asked, bad)[: asked.limit]
    predicted = asked.target == "predicted" or (
        asked.target is None and not any(any(one.categories) for one in images)
    )
    if asked.out is not None and not asked.dry_run:
        prepare_folder(asked.out)
    trials, weights = _trials(asked)
    methods = list(dict.fromkeys([*asked.methods, *BASELINES]))
    trials.check_methods(methods)
    count = class_count(trials.subject)
    sought, lacking = sought_things(images, trials.subject.classes, count, predicted=predicted)
    if not sought:
        raise ValueError(
            f"the model has no class of {', '.join(lacking)}; "
            "score its own answers with --target predicted"
        )
    if asked.dry_run:
        return _rehearse(asked, trials, sought, methods)
    settings = _settings(asked, predicted=predicted, weights=weights)
    path = None if asked.out is None else asked.out / "rows.jsonl"
    with ScoreRows(path, settings, again=asked.again) as rows:
        _run(trials, sought, methods, rows, bad, asked)
    _conclude(asked, settings, rows, lacking, bad)
    if asked.diagnostics and asked.out is not None:
        paths = [one.path for one in images if one.name not in bad]
        lines = write_diagnostics(trials, paths[: asked.diagnostics], asked.out, asked.batch)
        print_lines(["", *lines])
    for reason in bad.values():
        print_remark(f"skipped {reason}")
    return 1 if bad else 0


def _located(asked: argparse.Namespace, bad: dict[str, str]) -> "list[LocatedImage]":
    """Return the images and their objects; folders that cannot be listed are noted in `bad`."""
    from visattn.data.regions.dataset import read_located

    return read_located(
        asked.data,
        images=asked.images,
        masks=asked.masks,
        omit=asked.out,
        onerror=lambda error: bad.update({str(error): str(error)}),
    )


def _trials(asked: argparse.Namespace) -> "tuple[MapEvaluator, str]":
    """Return what scores maps of the model that was named, and whose weights it has."""
    from visattn.metrics.maps.faithfulness import PerturbationSchedule
    from visattn.metrics.maps.localization import LocationRule
    from visattn.pipelines.evaluate_maps import MapEvaluator

    rule = LocationRule(asked.tolerance, asked.threshold)
    plan = PerturbationSchedule(steps=asked.steps)
    asked.pretrained = asked.pretrained and not asked.dry_run  # to foresee, nothing is fetched
    named, subject = chosen_model(asked)
    if named.weights == "random" and not asked.dry_run:
        print_remark("the weights are random, so these scores say nothing")
    trials = MapEvaluator(subject, asked.scores, rule, plan, asked.seed, transform=named.transform)
    return trials, named.weights


def _rehearse(
    asked: argparse.Namespace,
    trials: "MapEvaluator",
    sought: "Sequence[QueryObject]",
    methods: Sequence[str],
) -> int:
    """Say what would be done, after all checks that precede it; return 0."""
    paths = list(dict.fromkeys(one.image.path for one in sought))
    maps = len(sought) * len(methods)
    reads = [
        told_images(paths),
        told_model(trials.subject.model, asked.model),
        f"{len(sought):,} objects or answers by {', '.join(methods)}: {maps:,} maps",
    ]
    drawn = ["diagnostics.json", "diagnostics.png"] if asked.diagnostics else []
    return foresee(reads, asked.out, ["rows.jsonl", "scores.json", *drawn])


def _settings(asked: argparse.Namespace, *, predicted: bool, weights: str) -> dict[str, Any]:
    """Return all that changes the numbers, in plain values."""
    from importlib.metadata import version

    return {
        "model": asked.model,
        **code_of(asked.model),
        "weights": origin_of(weights),
        "arguments": dict(asked.argument),
        "input_size": asked.input_size,
        "classes": asked.classes and digest(asked.classes),
        "data": asked.data.name,
        "target": "predicted" if predicted else "category",
        "scores": list(asked.scores),
        "tolerance": asked.tolerance,
        "threshold": asked.threshold,
        "steps": asked.steps,
        "seed": asked.seed,
        "visattn": version("visattn"),
    }


def _run(
    trials: "MapEvaluator",
    sought: "Sequence[QueryObject]",
    methods: Sequence[str],
    rows: ScoreRows,
    bad: dict[str, str],
    asked: argparse.Namespace,
) -> None:
    """Score what is not known yet, always in the same batches, so that a rerun is the same."""
    work = [("score", batch) for batch in _batches(sought, asked.batch)]
    work += [("check", batch) for batch in _batches(sought[: asked.checks or 0], asked.batch)]
    with progress_bar(len(work)) as progress:
        for kind, batch in progress.track(work) if progress else work:
            names = [(one.image.name, one.category) for one in batch]
            left = [
                method
                for method in methods
                if not all(rows.known(kind, *name, method) for name in names)
            ]
            if not left:
                continue
            pairs = list(_readable(batch, bad))
            if not pairs:
                continue
            readable, read = zip(*pairs, strict=True)
            make = trials.rows if kind == "score" else trials.checks
            for row in make(readable, read, left):
                rows.add(row)


def _batches(sought: "Sequence[QueryObject]", count: int) -> "Iterator[Sequence[QueryObject]]":
    return (sought[start : start + count] for start in range(0, len(sought), count))


def _readable(
    batch: "Sequence[QueryObject]", bad: dict[str, str]
) -> "Iterator[tuple[QueryObject, LoadedImage]]":
    """Yield what is sought with its image, noting in `bad` what cannot be used."""
    from visattn.data.images.reader import ImageError, read_image

    last: tuple[Path, LoadedImage] | None = None
    for one in batch:
        name, path, size = one.image.name, one.image.path, one.image.size
        try:
            image = last[1] if last and last[0] == path else read_image(path)
            one.image.regions(one.category)
        except (ImageError, ValueError) as error:
            bad[name] = str(error)
            continue
        last = path, image
        if image.size == size:
            yield one, image
        else:
            there, told = ("{1} x {0}".format(*both) for both in (image.size, size))
            bad[name] = f"{path}: it is {there} pixels, its annotations are of {told}"


def _conclude(
    asked: argparse.Namespace,
    settings: dict[str, Any],
    rows: ScoreRows,
    lacking: dict[str, int],
    bad: dict[str, str],
) -> None:
    """Print what was found, and write it."""
    from visattn.commands.score.report import report_lines, report_numbers

    print_lines(report_lines(rows.rows, settings, lacking))
    if asked.out is None:
        return
    told = report_numbers(rows.rows) | {"lacking": lacking, "skipped": sorted(bad)}
    content = json.dumps({"settings": settings, **told}, indent=1, allow_nan=False)
    write_whole(asked.out / "scores.json", content.encode() + b"\n")
