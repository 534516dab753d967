"""`visattn glimpse`: classify images with a glimpse model, and draw its scan paths."""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options.arguments import (
    CommandParser,
    add_images,
    add_resize_mode,
    whole_number,
)
from visattn.commands.options.dry_run import (
    add_dry_run,
    describe_images,
    describe_model,
    print_dry_run,
)
from visattn.commands.options.folders import (
    check_no_overwrite,
    create_folder,
    encode_png,
    file_digest,
    unique_names,
)
from visattn.commands.options.image_index import INDEX, ImageIndex, read_index_entries
from visattn.commands.options.images import (
    count_on_interrupt,
    find_input_images,
    read_images,
    report_failures,
)
from visattn.commands.options.models import add_weights, check_weights, load_trained_model
from visattn.commands.options.output_streams import print_row, progress_bar
from visattn.commands.options.videos import (
    VIDEO_SUFFIXES,
    VideoJob,
    add_video,
    has_videos,
    run_videos,
    video_record,
    video_sources,
)
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from visattn.data.images.reader import LoadedImage
    from visattn.models.ram.glimpse_model import GlimpseModel
    from visattn.pipelines.draw_scanpaths import Coverage
    from visattn.pipelines.scanpath import ScanPath

_NO_WEIGHTS = """\
--weights is missing: glimpses need a trained model. Train one:
  in a few minutes    visattn fit --config configs/ram_scenes.yaml
  then pass           --run FOLDER with its run directory, or visattn export --run FOLDER"""

_EPILOG = """\
Prints a line per image: its name, a tab, its class, a tab, the probability; of a model that reads
several objects all classes in order, and the probability of the sequence. With --out it also writes
  DIR/NAME.png    the scan path on the image, the glimpses, and the class probabilities
  DIR/NAME.gif    the same as an animation
  DIR/NAME.json   locations, boxes in pixels of the image, and probabilities after each glimpse
and for several images DIR/coverage.png, the fixation density over all of them, and DIR/index.html,
an index of all files. Boxes show what the network received, the first glimpse included.
Unreadable images are skipped and reported at the end; the exit code is then 1.
A video or camera needs --out and gives a row per frame: its name, the second, the class. Each frame
is a new image to the model."""

_SUFFIXES = (".png", ".gif", ".json")
_COVERAGE = "coverage"
_LARGEST_SEED = 2**31 - 1


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        prog="visattn glimpse",
        description="Classify images with a glimpse model, and show where it looked.",
        epilog=_EPILOG,
    )
    add_images(parser, videos=True)
    add_weights(parser)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="output folder for images, animations and JSON"
    )
    parser.add_argument(
        "--policy",
        choices=("greedy", "sampled", "random", "raster", "saliency"),
        default="greedy",
        help="glimpse locations: mean of the learned policy or samples of it; as baselines random "
        "locations, a grid, or the peaks of an Itti-Koch saliency map (default: greedy)",
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, _LARGEST_SEED),
        default=0,
        help="seed of random locations and samples (default: 0)",
    )
    add_resize_mode(parser)
    add_video(parser, "NAME.glimpses", maps=False)
    add_dry_run(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Classify images; return 0, or 1 if some could not be read or some files not be written.

    Raises:
        FileNotFoundError: If an image, a folder, the weights or the run do not exist.
        ValueError: If the weights are not a visattn glimpse model, the device is not available, an
            output file would overwrite an image, or an image cannot be read with `--strict`.
        OSError: If the output folder cannot be written.
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.weights is None and args.run is None:
        parser.error(_NO_WEIGHTS)
    if not args.images and args.camera is None:
        parser.error("name the photos or videos: files, folders, or --camera 0")
    check_weights(args)  # reports a missing run before torch is imported
    if has_videos(args):
        if args.out is None:
            parser.error("a video needs an output folder, --out DIR")
        return _draw_videos(args)
    skipped: list[str] = []
    names = unique_names(find_input_images(args.images, args.out, skipped), reserved=_COVERAGE)
    files = [f"{name}{suffix}" for name in names.values() for suffix in _SUFFIXES]
    files += [f"{_COVERAGE}.png", INDEX] if len(names) > 1 else []
    if args.out is not None:
        check_no_overwrite(args.out, files, names)
        if len(names) > 1:
            read_index_entries(args.out / INDEX)
    if args.dry_run:
        model, source = _load_glimpse_model(args)
        reads = [describe_images([*names]), describe_model(model, source)]
        return print_dry_run(reads, args.out, files)
    if args.out is not None:
        create_folder(args.out)
    return _classify_images(_load_glimpse_model(args)[0], args, names, skipped)


def _draw_videos(args: argparse.Namespace) -> int:
    """Draw the scan paths of the frames of videos; return the exit code."""
    from visattn.pipelines.video_frames import FrameGlimpses

    sources = video_sources(args, (), "")
    files = [f"{name}.glimpses{end}" for name in sources.values() for end in VIDEO_SUFFIXES]
    check_no_overwrite(args.out, files, [path for path in sources if isinstance(path, Path)])
    model, weights = _load_glimpse_model(args)
    if args.dry_run:
        reads = [f"{len(sources)} videos", describe_model(model, weights)]
        return print_dry_run(reads, args.out, files)
    frames = FrameGlimpses(model, policy=args.policy, seed=args.seed, resize_mode=args.resize_mode)
    options = ("policy", "seed", "resize_mode")
    file = file_digest(Path(weights))
    jobs = [
        VideoJob(
            source, f"{name}.glimpses", "", video_record(args, source, options, weights=file),
            {"explainer": frames, "method": "glimpses"},
        )
        for source, name in sources.items()
    ]  # fmt: skip
    return run_videos(args, jobs, overwrite=False)


def _classify_images(
    model: "GlimpseModel",
    args: argparse.Namespace,
    names: Mapping[Path, str],
    skipped: list[str],
) -> int:
    """Classify one image after the other; return the exit code."""
    from visattn.pipelines.draw_scanpaths import Coverage

    coverage = Coverage(f"{args.policy} policy")
    index = None
    if args.out is not None and len(names) > 1:
        index = ImageIndex(args.out, "Glimpses")
    not_written: list[str] = []
    done: list[Path] = []
    with (
        count_on_interrupt(done, len(names)),
        index or nullcontext(),
        progress_bar(len(names)) as progress,
    ):
        paths = progress.track(names) if progress else names
        for path, image in read_images(paths, skipped, strict=args.strict):
            not_written += _classify_image(model, names[path], image, args, coverage, index)
            done.append(path)
    if args.out is not None and coverage.count > 1:
        atomic_write(args.out / f"{_COVERAGE}.png", encode_png(coverage.panel()))
    return report_failures(skipped, not_written, len(names))


def _load_glimpse_model(args: argparse.Namespace) -> "tuple[GlimpseModel, str]":
    """Return the selected model on its device, and its file."""
    from visattn.models.ram.glimpse_model import GlimpseModel

    loaded = load_trained_model(args)
    if not isinstance(loaded.model, GlimpseModel):
        kind = type(loaded.model).__name__
        raise ValueError(f"{loaded.weights} holds a {kind}, which is not a glimpse model")  # noqa: TRY004 (the file is wrong)
    return loaded.model, loaded.weights


def _classify_image(
    model: "GlimpseModel",
    name: str,
    image: "LoadedImage",
    args: argparse.Namespace,
    coverage: "Coverage",
    index: ImageIndex | None,
) -> list[str]:
    """Classify an image, print its row and write its files; return reasons for missing files."""
    from visattn.pipelines.draw_scanpaths import glimpse_animation, glimpse_overlay, glimpse_panel
    from visattn.pipelines.scanpath import glimpses

    [scan] = glimpses(
        model, image, policy=args.policy, seed=args.seed, resize_mode=args.resize_mode
    )
    print_row(name, scan.prediction, f"{scan.probability:.3f}")
    if args.out is None:
        return []
    coverage.add(scan)
    panel = encode_png(glimpse_panel(image, scan, name=Path(image.name).name))
    try:
        atomic_write(args.out / f"{name}.png", panel)
        atomic_write(args.out / f"{name}.gif", glimpse_animation(image, scan))
        atomic_write(args.out / f"{name}.json", _json_record(image, scan))
        if index is not None:
            text = f"{scan.prediction}, {100 * scan.probability:.0f} %"
            index.add(name, f"{name}.png", text, [glimpse_overlay(image, scan)])
    except OSError as error:
        return [f"{image.name}: {error}"]
    return []


def _json_record(image: "LoadedImage", scan: "ScanPath") -> bytes:
    """Return a scan path as JSON, complete enough to draw it again."""
    geometry = scan.maps.geometry
    record = {
        "image": image.name,
        "class": scan.prediction,
        "probability": scan.probability,
        "class_names": list(scan.class_names),
        "labels": [label._asdict() for label in scan.labels],
        "glimpses_per_label": scan.glimpses_per_label,
        "end_class": scan.end_class,
        **scan.maps.metadata,
        "glimpse_size": scan.patches.shape[-1],
        "num_scales": scan.patches.shape[1],
        "locations": scan.locations.tolist(),
        "boxes": scan.boxes.tolist(),
        "probabilities": scan.probabilities.tolist(),
        "geometry": None if geometry is None else geometry.to_dict(),
    }
    return json.dumps(record, allow_nan=False).encode() + b"\n"
