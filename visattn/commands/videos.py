"""`visattn overlay` on video files: an MP4 with maps, and a contact sheet."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.files import check_no_overwrite, report_failures, result_names
from visattn.commands.loop import LoopOptions
from visattn.commands.streams import activity, print_row
from visattn.io.atomic import temporary_folder

if TYPE_CHECKING:  # torch is imported when the command runs, not for its help
    from visattn.pipelines.explainer import Explainer


def overlay_videos(
    videos: Sequence[str],
    explainer: "Explainer",
    maps: Sequence[Any],
    loop: LoopOptions,
    *,
    every: int,
    batch_size: int,
    **drawing: Any,
) -> int:
    """Draw maps on videos; return 0, or 1 if a video failed.

    Videos that exist are kept, unless with `--overwrite`.

    Args:
        videos: The files.
        explainer: The model.
        maps: Methods with their arguments and classes.
        loop: Options of the command.
        every: Explain every n-th frame.
        batch_size: Frames per batch.
        drawing: Style, colormap and opacity.
    """
    from visattn.images.video import VideoError
    from visattn.pipelines.video import overlay_video
    from visattn.viz.heatmap import DrawOptions

    names = result_names([Path(video) for video in videos])
    jobs = [
        (str(path), spec, f"{name}.{spec.key}") for path, name in names.items() for spec in maps
    ]
    files = [f"{stem}{end}" for *_, stem in jobs for end in (".mp4", ".png")]
    check_no_overwrite(loop.out, files, names)
    loop.out.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for path, spec, stem in jobs:
        movie = loop.out / f"{stem}.mp4"
        if movie.exists() and not loop.overwrite:
            print_row(path, spec.key, "exists already: --overwrite computes it again")
            continue
        try:
            with activity(stem), temporary_folder(loop.out / "video") as part:
                count = overlay_video(
                    explainer, path, part / "movie", spec.method, spec.target, every=every,
                    batch_size=batch_size, drawing=DrawOptions(**drawing), **spec.args,
                )  # fmt: skip
                for end in (".png", ".mp4"):
                    (part / f"movie{end}").replace(movie.with_suffix(end))
            print_row(path, spec.key, f"{count} frames")
        except VideoError as error:
            if loop.strict:
                raise
            failed.append(str(error))
    return report_failures(failed, [], len(jobs))
