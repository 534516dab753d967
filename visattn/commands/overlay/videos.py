"""`visattn overlay` on video files and cameras: an MP4 with maps, and a contact sheet."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.arguments import real_number, whole_number
from visattn.commands.options.dry_run import describe_model, print_dry_run
from visattn.commands.options.folders import check_no_overwrite, create_folder, unique_names
from visattn.commands.options.images import count_on_interrupt, report_failures
from visattn.commands.options.output_streams import print_message, print_row, progress_bar
from visattn.commands.options.provenance import file_digest, user_code_digest, weights_origin
from visattn.commands.overlay.map_specs import MapRunner, MapSpec
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:
    from visattn.pipelines.video import VideoOverlay

_SUFFIXES = (".mp4", ".png", ".json")
_STILL_ONLY = ("all_heads", "explorer", "text", "pixel", "box", "region", "query", "shard")


def add_video(parser: argparse.ArgumentParser) -> None:
    """Add `--camera`, `--every`, `--max-frames`, `--smoothing` and `--clip-scale`."""
    group = parser.add_argument_group(
        "video", "a video file gives NAME.METHOD.mp4, .png (a contact sheet) and .json"
    )
    group.add_argument(
        "--camera", type=whole_number(0, 99), metavar="N", help="use a camera; 0 is the first one"
    )
    group.add_argument(
        "--every",
        type=whole_number(1, 10**6),
        default=1,
        metavar="N",
        help="explain every n-th frame (default: 1)",
    )
    group.add_argument(
        "--max-frames",
        type=whole_number(1, 10**9),
        metavar="N",
        help="explain at most so many frames (default: all; with --camera: 300)",
    )
    group.add_argument(
        "--smoothing",
        type=real_number(0, 0.999),
        default=0.0,
        metavar="W",
        help="weight of the earlier frames in a moving average of the maps, which starts anew "
        "with each shot (default: 0)",
    )
    group.add_argument(
        "--clip-scale",
        choices=("clip", "running"),
        help="value at full color: the maximum of the clip, which is read twice, or of the frames "
        "so far (default: clip; with --camera: running)",
    )


def overlay_videos(args: argparse.Namespace) -> int:
    """Draw maps on videos; return 0, or 1 if a video or a map failed.

    Args:
        args: Options of `visattn overlay`.

    Raises:
        FileNotFoundError: If a video or a file of the model does not exist.
        ValueError: If an option does not fit a video, or a file would overwrite one.
        OSError: If the folder cannot be written.
    """
    from visattn.data.images.video import VideoError
    from visattn.viz.maps.colormap import colormap_lut

    sources = _sources(args)
    colormap_lut(args.colormap)
    if args.dry_run:
        args.pretrained = False
    runner = MapRunner(args)
    jobs = [(path, name, spec) for path, name in sources.items() for spec in runner.specs]
    files = [f"{name}.{spec.key}{end}" for _, name, spec in jobs for end in _SUFFIXES]
    videos = [path for path in sources if isinstance(path, Path)]
    check_no_overwrite(args.out, files, videos)
    if args.dry_run:
        reads = [f"{len(sources)} videos", describe_model(runner.loaded.model, args.model)]
        return print_dry_run(reads, args.out, files)
    if runner.loaded.weights == "random":
        print_message("the weights are random: the maps have no meaning")
    create_folder(args.out)
    failed: list[str] = []
    done: list[str] = []
    with count_on_interrupt(done, len(jobs)):
        for source, name, spec in jobs:
            try:
                _overlay_one(args, runner, source, name, spec)
            except VideoError as error:
                if args.strict:
                    raise
                failed.append(str(error))
            done.append(name)
    return report_failures(failed, [], len(jobs))


def _sources(args: argparse.Namespace) -> dict[Path | int, str]:
    """Return the videos with the names of their results."""
    if args.normalize or args.interpolation != "bilinear":
        raise ValueError(
            "--normalize and --interpolation are for photos; videos have --clip-scale, and are "
            "interpolated"
        )
    refused = [name for name in _STILL_ONLY if getattr(args, name, None)]
    if refused:
        option = "--" + refused[0].replace("_", "-")
        raise ValueError(f"{option} is for photos; a video takes methods that explain a class")
    if args.camera is not None:
        args.max_frames = args.max_frames or 300
        args.clip_scale = args.clip_scale or "running"
        return {args.camera: f"camera-{args.camera}"}
    return {path: name for path, name in unique_names(args.images).items()}  # noqa: C416 (types)


def _overlay_one(
    args: argparse.Namespace, runner: MapRunner, source: Path | int, name: str, spec: MapSpec
) -> None:
    from visattn.pipelines.video import overlay_video

    out = args.out / f"{name}.{spec.key}"
    record = _expected_record(args, runner, source, spec)
    if isinstance(source, Path) and not args.overwrite and _is_done(out, record):
        print_row(source, spec.key, "exists already")
        return
    drawing = {"style": args.style, "colormap": args.colormap, "opacity": args.opacity}
    target = int(args.target) if (args.target or "").isdecimal() else args.target
    with progress_bar(2) as bar:
        task = bar.add_task(name, total=None) if bar else None

        def report(done: int, total: int) -> None:
            if bar and task is not None:
                bar.update(task, completed=done, total=total or None)

        result = overlay_video(
            runner.explainer, source, out, spec.method, target,
            every=args.every, max_frames=args.max_frames, scale=args.clip_scale or "clip",
            smoothing=args.smoothing, batch_size=args.batch_size, drawing=drawing,
            progress=report, **spec.method_args,
        )  # fmt: skip
    if result.num_missing:
        print_message(f"{source} is truncated: {result.num_missing} frames are missing at its end")
    atomic_write(f"{out}.json", json.dumps({**record, **_described(result)}, indent=1))
    count = len(result.indices)
    print_row(source, spec.key, f"{count} frame{'s' * (count != 1)}", f"{len(result.shots)} shots")


def _described(result: "VideoOverlay") -> dict[str, Any]:
    """Return the frames of a clip as plain values."""
    return {
        "fps": result.fps,
        "frames": result.indices,
        "seconds": result.seconds,
        "classes": result.classes,
        "shots": result.shots,
        "vmax": result.vmax,
        "missing": result.num_missing,
    }


def _expected_record(
    args: argparse.Namespace, runner: MapRunner, source: Path | int, spec: MapSpec
) -> dict[str, Any]:
    """Return how the result is made, as it is written beside it."""
    options = (
        "model", "pretrained", "target", "resize_mode", "input_size", "every", "max_frames",
        "smoothing", "clip_scale", "style", "colormap", "opacity",
    )  # fmt: skip
    record = {
        **{name: getattr(args, name) for name in options},
        **user_code_digest(args.model),
        "source": file_digest(source) if isinstance(source, Path) else f"camera {source}",
        "weights": weights_origin(runner.loaded.weights),
        "model_args": dict(args.model_args),
        "classes_file": args.classes and file_digest(args.classes),
        "method": spec.method,
        "method_args": dict(spec.method_args),
    }
    return json.loads(json.dumps(record, default=str))


def _is_done(out: Path, record: dict[str, Any]) -> bool:
    """Return whether all files of a result exist and were made in the same way."""
    files = [Path(f"{out}{suffix}") for suffix in _SUFFIXES]
    if not all(file.is_file() for file in files):
        return False
    try:
        saved = json.loads(files[-1].read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(saved, dict) and all(
        name in saved and saved[name] == value for name, value in record.items()
    )
