"""`visattn overlay` on video files: an MP4 with maps, and a contact sheet."""

import argparse
from pathlib import Path

from visattn.commands.files import check_no_overwrite, report_failures, result_names
from visattn.commands.model_option import file_digest, model_settings
from visattn.commands.options import describe_model, print_dry_run
from visattn.commands.overlay.methods import MapRunner, class_targets
from visattn.commands.records import Origin, Part, ResultFolder, plain_values, refuse_foreign
from visattn.commands.streams import activity, print_row
from visattn.io.atomic import temporary_folder
from visattn.io.safe_text import print_message

_RECORDED = ("every", "resize_mode", "input_size", "target", "style", "colormap", "opacity")


def overlay_videos(args: argparse.Namespace) -> int:
    """Draw maps on videos; return 0, or 1 if a video failed.

    Args:
        args: Options of `visattn overlay`.
    """
    from visattn.images.video import VideoError
    from visattn.pipelines.video import overlay_video
    from visattn.viz.heatmap import DrawOptions

    videos = list(dict.fromkeys(map(Path, args.images)))
    names = result_names(videos)
    args.pretrained = args.pretrained and not args.dry_run
    with activity("loading the model"):
        runner = MapRunner(args)
    jobs = [(f"{names[path]}.{spec.key}", path, spec) for path in videos for spec in runner.specs]
    files = [f"{stem}{end}" for stem, *_ in jobs for end in (".mp4", ".png")]
    check_no_overwrite(args.out, files, videos)
    if args.dry_run:
        reads = [f"{len(videos)} videos", describe_model(runner.explained.model, args.model)]
        return print_dry_run(reads, args.out, files)
    if runner.loaded.weights == "random":
        print_message("the weights are random: the maps have no meaning")
    settings = model_settings(args, runner.loaded.weights)
    settings |= {name: getattr(args, name) for name in _RECORDED}
    settings["classes"] = args.classes and file_digest(args.classes)
    target = next(iter(class_targets(args, ())), None)
    drawing = DrawOptions(args.colormap, args.opacity, args.style)
    failed: list[str] = []
    with ResultFolder(args.out) as folder:
        for stem, path, spec in jobs:
            digest = {"video_sha256": file_digest(path)}
            made = {**settings, "method": spec.method, "arguments": dict(spec.method_args)}
            files = [f"{stem}.mp4", f"{stem}.png"]
            origin = Origin("overlay", str(path), digest, plain_values(made), files)
            if not args.overwrite and folder.finished(stem, origin) is not None:
                print_row(path, spec.key, "exists already")
                continue
            if not args.overwrite:
                refuse_foreign(args.out, folder.foreign(stem, origin, lambda found=digest: found))
            try:
                with activity(stem), temporary_folder(args.out / "video") as part:
                    count = overlay_video(
                        runner.explainer, path, part / "movie", spec.method, target,
                        every=args.every, batch_size=args.batch_size or 16, drawing=drawing,
                        **spec.method_args,
                    )  # fmt: skip
                    parts = {file: part / f"movie{Path(file).suffix}" for file in files}
                    folder.write(Part(stem, {"frames": count}, parts), origin)
                print_row(path, spec.key, f"{count} frames")
            except VideoError as error:
                if args.strict:
                    raise
                failed.append(str(error))
    return report_failures(failed, {}, len(jobs))
