"""Videos and cameras in the commands: options, sources, resume, progress bar and rows."""

import argparse
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.files import (
    check_no_overwrite,
    count_on_interrupt,
    report_failures,
    result_names,
)
from visattn.commands.image_options import resolve_images
from visattn.commands.model_option import file_digest, model_settings
from visattn.commands.options import describe_model, print_dry_run, real_number, whole_number
from visattn.commands.records import Origin, Part, ResultFolder, plain_values, refuse_foreign
from visattn.commands.streams import RowPrinter, activity, print_where
from visattn.io.atomic import temporary_folder
from visattn.io.safe_text import print_message

if TYPE_CHECKING:
    from visattn.images.video import FrameFolder
    from visattn.pipelines.video import VideoOverlay

    VideoSource = Path | FrameFolder | int

VIDEO_OPTIONS = (
    "camera", "frames_as_video", "fps", "every", "max_frames", "smoothing", "clip_scale",
)  # fmt: skip
"""Options that only videos use."""
VIDEO_SUFFIXES = (".mp4", ".png")
"""Files of a video: the movie and the contact sheet; its record is a JSON file."""
_DEFAULT_FPS = 25.0
_COMMANDS = {"caption": "caption", "glimpses": "glimpse"}
_COLUMNS = {
    "overlay": ("video", "method", "frames", "shots"),
    "caption": ("video", "second", "caption"),
    "glimpse": ("video", "second", "class"),
}


@dataclass(frozen=True)
class VideoJob:
    """A video to draw in one way.

    Args:
        source: File, folder of frames, or number of a camera.
        name: Output files without folder and suffix.
        label: What is drawn, in the row of the video; "" prints a row per frame instead.
        settings: How the result is made; a result with the same settings is not made again.
        arguments: Of `overlay_video`, after source and output.
    """

    source: "VideoSource"
    name: str
    label: str
    settings: Mapping[str, Any]
    arguments: Mapping[str, Any]


def add_video(parser: argparse.ArgumentParser, files: str, *, maps: bool = True) -> None:
    """Add the options of videos; for maps also `--smoothing` and `--clip-scale`.

    Args:
        parser: Parser of the command.
        files: Names of the files that a video gives, for the help.
        maps: Whether maps are drawn, which have a scale and can be smoothed.
    """
    group = parser.add_argument_group(
        "video", f"a video file gives {files}.mp4, .png (a contact sheet) and .json"
    )
    group.add_argument(
        "--camera", type=whole_number(0, 99), metavar="N", help="use a camera; 0 is the first one"
    )
    group.add_argument(
        "--frames-as-video",
        action="store_true",
        help="each folder holds the frames of a video, in the order of the numbers in their names",
    )
    group.add_argument(
        "--fps",
        type=real_number(0.01, 1000),
        metavar="F",
        help=f"with --frames-as-video: frames per second (default: {_DEFAULT_FPS:g})",
    )
    group.add_argument(
        "--every",
        type=whole_number(1, 10**6),
        default=1,
        metavar="N",
        help="process every n-th frame (default: 1)",
    )
    group.add_argument(
        "--max-frames",
        type=whole_number(1, 10**9),
        metavar="N",
        help="process at most so many frames (default: all; with --camera: 300)",
    )
    if not maps:
        parser.set_defaults(smoothing=0.0, clip_scale="running")
        return
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


def has_videos(args: argparse.Namespace) -> bool:
    """Return whether a camera or videos are given.

    Args:
        args: Options of a command with `add_video`.

    Raises:
        ValueError: If photos are given too, or a video is on the web.
    """
    from visattn.images.video import is_video

    if args.frames_as_video:
        return True
    videos = [path for path in args.images if is_video(path)]
    others = len(args.images) - len(videos)
    if sum((others > 0, len(videos) > 0, args.camera is not None)) > 1:
        raise ValueError(
            "photos, videos and a camera take separate commands, got "
            f"{others} photos or folders and {len(videos)} videos"
            + (" and a camera" if args.camera is not None else "")
        )
    if on_web := [video for video in videos if isinstance(video, str)]:
        raise ValueError(f"{on_web[0]} is a video: download it, and pass the file")
    return bool(videos) or args.camera is not None


def check_sources(parser: argparse.ArgumentParser, args: argparse.Namespace) -> bool:
    """Return whether videos are given; exit with a usage error if nothing is, or without `--out`.

    Args:
        parser: Parser of the command.
        args: Its options.

    Raises:
        FileNotFoundError: If a pattern of videos matches nothing.
    """
    resolve_images(parser, args, "name the photos or videos: files, folders, or --camera 0")
    if any("*" in str(path) for path in args.images):
        from visattn.images.sources import expand_patterns

        args.images = expand_patterns(args.images)  # they may be videos
    if args.fps is not None and not args.frames_as_video:
        parser.error("--fps needs --frames-as-video: a video file says it itself")
    videos = has_videos(args)
    if videos and args.out is None:
        parser.error("a video needs an output folder, --out DIR")
    return videos


def video_sources(args: argparse.Namespace) -> "dict[VideoSource, str]":
    """Return the videos with the names of their results.

    Args:
        args: Options of a command with `add_video`.

    Raises:
        ValueError: If a folder of frames is none.
    """
    if args.camera is not None:
        args.max_frames = args.max_frames or 300
        args.clip_scale = args.clip_scale or "running"
        return {args.camera: f"camera-{args.camera}"}
    paths = [Path(path) for path in args.images]
    names = result_names(paths)
    if not args.frames_as_video:
        return {path: names[path] for path in paths}
    from visattn.images.video import FrameFolder

    fps = args.fps or _DEFAULT_FPS
    return {FrameFolder(path, fps): names[path] for path in paths}


def video_settings(args: argparse.Namespace, options: Sequence[str]) -> dict[str, Any]:
    """Return the options that a result depends on.

    Args:
        args: Options of the command.
        options: Attributes of `args`, besides those of videos.
    """
    names = ("every", "max_frames", "smoothing", "clip_scale", *options)
    fps = {"fps": args.fps or _DEFAULT_FPS} if args.frames_as_video else {}
    return {**{name: getattr(args, name) for name in names}, **fps}


def run_model_videos(
    args: argparse.Namespace,
    sources: "Mapping[VideoSource, str]",
    kind: str,
    load: "Callable[[argparse.Namespace], tuple[Any, str]]",
    explain: Callable[..., Any],
    options: Sequence[str],
    model_options: Sequence[str] = (),
) -> int:
    """Draw what a model gives for each frame of videos; return the exit code.

    Args:
        args: Options of the command.
        sources: Videos with the names of their results.
        kind: What is drawn: the method of `overlay_video`, and part of the file names.
        load: Returns the model and its file.
        explain: Returns the explainer of frames, of the model and the options by name.
        options: Attributes of `args` that are options of the explainer.
        model_options: Attributes of `args` that `load` reads and the result depends on.
    """
    endings = (*VIDEO_SUFFIXES, ".json")
    files = [f"{name}.{kind}{end}" for name in sources.values() for end in endings]
    check_no_overwrite(args.out, files, [path for path in sources if isinstance(path, Path)])
    with activity("loading the model"):
        model, weights = load(args)
    if args.dry_run:
        reads = [f"{len(sources)} videos", describe_model(model, weights)]
        return print_dry_run(reads, args.out, files)
    explainer = explain(model, **{name: getattr(args, name) for name in options})
    arguments: dict[str, Any] = {"explainer": explainer, "method": kind}
    if args.batch_size:
        arguments["batch_size"] = args.batch_size
    settings = video_settings(args, [*options, *model_options])
    settings |= model_settings(args, weights)
    jobs = [
        VideoJob(source, f"{name}.{kind}", "", settings, arguments)
        for source, name in sources.items()
    ]
    return run_videos(args, jobs, _COMMANDS[kind])


def run_videos(args: argparse.Namespace, jobs: Sequence[VideoJob], command: str) -> int:
    """Draw videos; return 0, or 1 if one failed.

    Results have records like those of images: a finished one is not made again, and files that
    visattn did not write are not replaced without `--overwrite`.

    Args:
        args: Options of the command.
        jobs: The videos.
        command: The command.
    """
    from visattn.images.video import VideoError

    folder = ResultFolder(args.out)
    digests = {job.source: _digests(job.source) for job in jobs}  # a source once for all methods
    origins = {job.name: _origin(job, command, digests[job.source]) for job in jobs}
    if not args.overwrite:
        foreign: dict[str, str] = {}
        for job in jobs:
            origin = origins[job.name]
            foreign |= folder.foreign(job.name, origin, lambda origin=origin: origin.digests)
        refuse_foreign(args.out, foreign)
    failed: list[str] = []
    done: list[str] = []
    printer = RowPrinter(_COLUMNS[command], (str(job.source) for job in jobs))
    with count_on_interrupt(done, len(jobs)), folder:
        for job in jobs:
            try:
                _run_video(args, job, folder, origins[job.name], printer)
            except VideoError as error:
                if args.strict:
                    raise
                failed.append(str(error))
            done.append(job.name)
    code = report_failures(failed, {}, len(jobs))
    movies = (args.out / f"{job.name}{VIDEO_SUFFIXES[0]}" for job in jobs)
    if (movie := next((path for path in movies if path.is_file()), None)) is not None:
        print_where(movie)
    return code


def _digests(source: "VideoSource") -> dict[str, Any]:
    """Return what tells whether a video has changed; nothing of a camera."""
    if isinstance(source, int):
        return {}
    if not isinstance(source, Path):
        frames = [f"{file.name} {file_digest(file)}" for file in source.files()]
        return {"video_sha256": hashlib.sha256("\n".join(frames).encode()).hexdigest()[:16]}
    return {"video_sha256": file_digest(source) if source.is_file() else ""}


def _origin(job: VideoJob, command: str, digests: Mapping[str, Any]) -> Origin:
    source = f"camera {job.source}" if isinstance(job.source, int) else str(job.source)
    settings = plain_values(job.settings)
    return Origin(
        command, source, digests, settings, [f"{job.name}{end}" for end in VIDEO_SUFFIXES]
    )


def _run_video(
    args: argparse.Namespace,
    job: VideoJob,
    folder: ResultFolder,
    origin: Origin,
    printer: RowPrinter,
) -> None:
    from visattn.pipelines.video import overlay_video

    # A camera shows something else each time.
    finished = not isinstance(job.source, int) and not args.overwrite
    if finished and folder.finished(job.name, origin) is not None:
        printer.print([job.source, *filter(None, [job.label]), "exists already"])
        return
    (args.out / job.name).parent.mkdir(parents=True, exist_ok=True)
    with activity(job.name) as shown, temporary_folder(args.out / job.name) as temporary:

        def report(done: int, total: int) -> None:
            shown.show(f"{job.name}: frame {done}{f' of {total}' if total else ''}")

        result = overlay_video(
            source=job.source, out=temporary / "movie", every=args.every,
            max_frames=args.max_frames, scale=args.clip_scale or "clip",
            smoothing=args.smoothing, progress=report, **job.arguments,
        )  # fmt: skip
        files = {f"{job.name}{end}": temporary / f"movie{end}" for end in VIDEO_SUFFIXES}
        folder.write(Part(job.name, _described(result), files), origin)
    if result.num_missing:
        print_message(
            f"{job.source} is truncated: {result.num_missing} frames are missing at its end"
        )
    if job.label:
        counts = {"frame": len(result.indices), "shot": len(result.shots)}
        cells = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items()]
        printer.print([job.source, job.label, *cells])
        return
    pairs = zip(result.seconds, result.classes, strict=True)
    printer.print(*([job.source, f"{seconds:.2f}", text] for seconds, text in pairs))


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
        **({"details": result.details} if any(result.details) else {}),
    }
