"""`visattn overlay` on video files: an MP4 with maps, and a contact sheet."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.loop import Command, Made
from visattn.io.atomic import temporary_folder
from visattn.io.sources import Source

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from visattn.images.reader import LoadedImage
    from visattn.pipelines.explainer import Explainer

Movie = tuple[int, list[bytes]]
"""Number of frames, and the contents of the MP4 and the contact sheet."""


def video_command(
    explainer: "Explainer",
    maps: Sequence[Any],
    settings: Mapping[str, Any],
    out: Path,
    *,
    every: int,
    batch_size: int,
    **look: Any,
) -> Command:
    """Return the command that draws maps on videos.

    Args:
        explainer: The model.
        maps: Methods with their arguments and classes.
        settings: Model and options.
        out: Folder of the results.
        every: Explain every n-th frame.
        batch_size: Frames per batch.
        look: Style, colormap and opacity.
    """
    from visattn.images.reader import LoadedImage, read_image
    from visattn.images.video import read_frames
    from visattn.pipelines.video import overlay_video
    from visattn.viz.heatmap import DrawOptions
    from visattn.viz.html.index_page import thumbnail

    def read(path: Source) -> LoadedImage:
        """Return the first frame; the others are read when maps are computed."""
        return LoadedImage(next(read_frames(str(path))), str(path))

    def movie(path: str, spec: Any) -> Movie:
        with temporary_folder(out / "video") as part:
            count = overlay_video(
                explainer, path, part / "movie", spec.method, spec.target, every=every,
                batch_size=batch_size, drawing=DrawOptions(**look), **spec.args,
            )  # fmt: skip
            return count, [(part / f"movie{end}").read_bytes() for end in (".mp4", ".png")]

    def infer(videos: "Sequence[LoadedImage]") -> list[list[Movie]]:
        return [[movie(video.name, spec) for spec in maps] for video in videos]

    def draw(video: LoadedImage, movies: list[Movie], files: Sequence[str]) -> Made:
        counts = {spec.key: count for spec, (count, _) in zip(maps, movies, strict=True)}
        return Made(
            {"video": video.name},
            dict(zip(files, (each for _, own in movies for each in own), strict=True)),
            rows=[(key, f"{count} frames") for key, count in counts.items()],
            table=[{"method": key, "frames": count} for key, count in counts.items()],
            caption=", ".join(counts),
            thumbnail=thumbnail(read_image(movies[0][1][1]).pixels),
        )

    endings = [f"{{}}.{spec.key}{end}" for spec in maps for end in (".mp4", ".png")]
    return Command("overlay", "Overlays", settings, infer, draw, endings, read)
