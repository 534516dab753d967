"""Maps of videos: frames and shots, smoothed within them."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import nn

from visattn.images.reader import ImageLike
from visattn.images.resize import ResizeMode
from visattn.images.video import (
    FrameFolder,
    VideoError,
    VideoFrame,
    VideoReader,
    open_mp4,
    read_clip,
    video_length,
)
from visattn.io.argument_checks import checked_arguments
from visattn.io.atomic import atomic_replace
from visattn.pipelines.captioning import caption
from visattn.pipelines.scanpath import Policy, glimpses
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo
from visattn.results.scale import MapScale, map_scale
from visattn.results.values import ScanPath
from visattn.viz.clips import SheetTile, contact_sheet, labeled_tiles, legend_strip, with_footer
from visattn.viz.heatmap import DrawOptions
from visattn.viz.maps import map_legend, method_title, target_line
from visattn.viz.scanpaths.path import draw_scan_path
from visattn.viz.text import join_notes

_THUMBNAIL = 32  # pixels of the gray images that are compared
_MAX_SHIFT = 8  # a quarter of the frame


@dataclass(frozen=True, eq=False)
class ExplainedFrame:
    """A frame of a video with its map."""

    frame: VideoFrame
    map: AttentionMap
    starts_shot: bool
    """Whether the frame differs so much from the one before that a new shot begins."""


def find_shots(
    frames: Iterable[tuple[VideoFrame, AttentionMap]], threshold: float
) -> Iterator[ExplainedFrame]:
    """Yield frames with whether they begin a shot: their `frame_difference` is above a threshold.

    Example:
        >>> import torch
        >>> levels = [np.full((4, 4, 3), level, np.uint8) for level in (20, 25, 200)]
        >>> a_map = AttentionMap(torch.ones(1, 1), "layer", "gradient")
        >>> frames = [(VideoFrame(i, 0.0, pixels), a_map) for i, pixels in enumerate(levels)]
        >>> [frame.starts_shot for frame in find_shots(frames, 0.2)]
        [True, False, True]
    """
    before: Float[np.ndarray, "32 32"] | None = None
    for frame, attention_map in frames:
        gray = gray_thumbnail(frame.pixels)
        is_cut = before is None or frame_difference(before, gray) > threshold
        before = gray
        yield ExplainedFrame(frame, attention_map, is_cut)


def gray_thumbnail(pixels: UInt8[np.ndarray, "y x 3"]) -> Float[np.ndarray, "32 32"]:
    """Return a frame as 32 x 32 gray levels in [0, 1]."""
    gray = Image.fromarray(pixels).convert("L")
    small = gray.resize((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BOX)
    return np.asarray(small, np.float32) / 255


def frame_difference(
    before: Float[np.ndarray, "32 32"], after: Float[np.ndarray, "32 32"]
) -> float:
    """Return the mean absolute difference of two frames, aligned as a pan of the camera moves them.

    It is the lowest over all shifts by up to a quarter of the frame, of the part that both show.

    Example:
        >>> frame = np.linspace(0, 1, 32, dtype=np.float32) ** 2 * np.ones((32, 1), np.float32)
        >>> panned = np.roll(frame, 5, axis=1)
        >>> round(frame_difference(frame, panned), 3), round(frame_difference(frame, 1 - frame), 1)
        (0.0, 0.5)
    """
    shifts = range(-_MAX_SHIFT, _MAX_SHIFT + 1)
    return min(
        _shifted_difference(before, after, down, right) for down in shifts for right in shifts
    )


def _shifted_difference(
    before: Float[np.ndarray, "32 32"], after: Float[np.ndarray, "32 32"], down: int, right: int
) -> float:
    # If all moved right by 3, columns 3 to 31 show what columns 0 to 28 showed before.
    rows = _overlap(down)
    columns = _overlap(right)
    rows_before = _overlap(-down)
    columns_before = _overlap(-right)
    return float(np.abs(after[rows, columns] - before[rows_before, columns_before]).mean())


def _overlap(shift: int) -> slice:
    return slice(max(0, shift), _THUMBNAIL + min(0, shift))


def smooth_maps(frames: Iterable[ExplainedFrame], weight: float) -> Iterator[ExplainedFrame]:
    """Yield frames with exponential moving averages of their maps, which start with each shot.

    Example:
        >>> import torch
        >>> maps = [AttentionMap(torch.full((1, 1), v), "x", "gate") for v in (0.0, 1.0, 8.0)]
        >>> pixels = VideoFrame(0, 0.0, np.zeros((4, 4, 3), np.uint8))
        >>> frames = [ExplainedFrame(pixels, m, i != 1) for i, m in enumerate(maps)]
        >>> [float(frame.map.values) for frame in smooth_maps(frames, 0.5)]
        [0.0, 0.5, 8.0]
    """
    average = None
    for frame in frames:
        values = frame.map.values
        if weight and average is not None and not frame.starts_shot:
            values = weight * average + (1 - weight) * values
        average = values
        yield replace(frame, map=replace(frame.map, values=values)) if weight else frame


class FrameCaptions:
    """Captions frames; takes the place of an `Explainer` in `overlay_video`.

    The map of a frame is the mean of the maps of its words, weighted by their gates; the caption is
    written below the frame, and its words, gates and log-probabilities are in the details.

    Args:
        options: Options of `visattn.caption`, such as `beam_size`.

    Example:
        >>> import numpy as np
        >>> from visattn.models import SPECIAL_TOKENS, ShowAttendTell, SmallEncoder
        >>> model = ShowAttendTell((*SPECIAL_TOKENS, "red"), SmallEncoder((24, 40), channels=8))
        >>> frames = FrameCaptions(model, max_length=3)
        >>> [heatmap] = frames.map(frames.prepare([np.zeros((48, 64, 3), np.uint8)]))
        >>> heatmap.values.shape, sorted(heatmap.info.more["details"])
        (torch.Size([3, 5]), ['gates', 'log_probs', 'words'])
    """

    text_lines = 3  # below each frame

    def __init__(self, model: nn.Module, **options: Any) -> None:
        self.model = model
        self.options = options

    def prepare(self, frames: Sequence[ImageLike]) -> Sequence[ImageLike]:
        """Return the frames: the captioner prepares them itself."""
        return frames

    def map(self, frames: Sequence[ImageLike], *_: Any, **__: Any) -> list[AttentionMap]:
        """Return the mean map of the words of each frame; method and target are not used."""
        return [_mean_map(result) for result in caption(self.model, frames, **self.options)]


class FrameGlimpses:
    """Classifies frames with a glimpse model; takes the place of an `Explainer`.

    The map of a frame is the resolution at which its parts were seen; the scan path is drawn on the
    frame, and boxes, locations and probability are in the details. Each frame is a new image to the
    model: it does not remember the frames before.

    Example:
        >>> import numpy as np
        >>> from visattn.models import RecurrentAttentionModel
        >>> model = RecurrentAttentionModel(("cat", "dog"), (24, 40), [0.5] * 3, [0.2] * 3)
        >>> frames = FrameGlimpses(model)
        >>> [heatmap] = frames.map(frames.prepare([np.zeros((48, 64, 3), np.uint8)]))
        >>> heatmap.values.shape, len(heatmap.info.more["details"]["boxes"])
        (torch.Size([24, 40]), 6)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        policy: Policy = "greedy",
        seed: int = 0,
        resize_mode: ResizeMode = "crop",
    ) -> None:
        self.model = model
        self.options: dict[str, Any] = {
            "policy": policy, "seed": seed, "resize_mode": resize_mode,
        }  # fmt: skip

    def prepare(self, frames: Sequence[ImageLike]) -> Sequence[ImageLike]:
        """Return the frames: the model prepares them itself."""
        return frames

    def map(self, frames: Sequence[ImageLike], *_: Any, **__: Any) -> list[AttentionMap]:
        """Return the resolution map of each frame; method and target are not used."""
        return [_resolution_map(scan) for scan in glimpses(self.model, frames, **self.options)]


def _mean_map(result: Caption) -> AttentionMap:
    maps = result.maps.values
    gates = torch.tensor(result.gates)
    if len(result.words):
        values = (maps * gates.view(-1, 1, 1)).sum(0) / gates.sum().clamp_min(1e-6)
    else:
        values = maps.new_zeros(maps.shape[1:])
    details = {
        "words": list(result.words),
        "log_probs": list(result.log_probs),
        "gates": list(result.gates),
    }
    more = {"subtitle": result.text or "(no words)", "details": details}
    info = MapInfo(title="Attention of the words", class_name=result.text, more=more)
    return AttentionMap(values, result.maps.site, "words", result.maps.geometry, info)


def _resolution_map(scan: ScanPath) -> AttentionMap:
    details = {
        "probability": scan.probability,
        "locations": scan.locations.tolist(),
        "boxes": scan.boxes[: scan.labels[-1].glimpse + 1].tolist(),
    }
    text = f"{scan.prediction}   {scan.probability:.2f}"
    more = {"subtitle": text, "details": details}
    info = MapInfo(title="Resolution of the glimpses", class_name=scan.prediction, more=more)
    values = scan.maps.values.amax(0)
    return AttentionMap(values, "retina", "glimpse", scan.maps.geometry, info)


ClipScale = Literal["clip", "running"]
_MAX_BYTES = 2**29  # of the maps of a clip that wait for its scale
_SHEET_FRAMES = 24
_SLOWEST = 0.2  # frames per second, which players still show


class FrameExplainer(Protocol):
    """What computes a map for each frame: an `Explainer`, `VideoExplainer`, `FrameCaptions`, ..."""

    def prepare(self, frames: Any, /) -> Any:
        """Return frames as `map` takes them."""
        ...

    def map(self, prepared: Any, /, *arguments: Any, **method_args: Any) -> Any:
        """Return the map of each frame."""
        ...


@dataclass
class VideoOverlay:
    """What `overlay_video` wrote."""

    movie: Path
    sheet: Path
    fps: float
    """Frames per second of the movie."""
    indices: list[int] = field(default_factory=list)
    """Numbers of the explained frames in the video."""
    seconds: list[float] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    """Explained class or caption of each frame; "" for attention without a target."""
    details: list[dict[str, Any]] = field(default_factory=list)
    """What else is known of each frame, such as words or glimpses, as plain values."""
    shots: list[int] = field(default_factory=list)
    """Positions in `indices` of the frames that begin a shot; the first is 0."""
    vmax: float = 0.0
    """Value at the upper end of the color scale, of the last frame."""
    num_missing: int = 0
    """Frames that the header announces and the file does not have."""


@checked_arguments(
    every=(1, 1_000_000), max_frames=(1, 10**9), smoothing=(0, 1), batch_size=(1, 65_536)
)
def overlay_video(
    explainer: FrameExplainer,
    source: str | os.PathLike[str] | FrameFolder | int,
    out: str | os.PathLike[str],
    method: str = "gradcam",
    target: Any = None,
    *,
    every: int = 1,
    max_frames: int | None = None,
    scale: ClipScale = "clip",
    smoothing: float = 0.0,
    cut_threshold: float = 0.1,
    batch_size: int = 8,
    drawing: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **method_args: Any,
) -> VideoOverlay:
    """Write the overlays of every n-th frame of a video to `OUT.mp4`, a selection to `OUT.png`.

    Args:
        explainer: The model with its preprocessing: an `Explainer`; a `VideoExplainer`, which
            explains as many frames at once as a clip of its model has; `FrameCaptions` or
            `FrameGlimpses`.
        source: A video file, a `FrameFolder`, or the number of a camera.
        out: Files to write, without suffix.
        method: Name of a method, as for `visattn.explain`.
        target: Class to explain; None explains the predicted class of each frame.
        every: Explain every n-th frame; the movie has these frames, each at its time.
        max_frames: Number of frames at most; a camera needs it.
        scale: `clip`: one color scale for all frames, for which the file is read twice; `running`:
            up to the maximum of the frames so far, in one pass.
        smoothing: Weight of the earlier frames in an exponential moving average of the maps, in
            [0, 1). It starts anew with each shot, so that shots are never mixed.
        cut_threshold: A shot begins where `frame_difference` of two frames is above this.
        batch_size: Frames per batch; of a video model, its clip.
        drawing: Fields of `visattn.viz.DrawOptions`.
        progress: Called with the number of explained frames, and of all if it is known (else 0).
        method_args: Arguments of the method.

    Raises:
        FileNotFoundError: If the file does not exist.
        VideoError: If the video cannot be read or written, or maps for a scale of the whole clip
            need more than 512 MiB.
        ValueError: If a number is out of range, or the method does not fit the model.

    Example:
        >>> from video_data import block_frame, write_clip
        >>> from visattn.models import AttentionResNet
        >>> from visattn.pipelines import Explainer
        >>> clip = write_clip(getfixture("tmp_path") / "clip.avi", [block_frame(8, 8)] * 3)
        >>> explainer = Explainer(AttentionResNet(("cat", "dog"), depth=8, stem_width=4))
        >>> result = overlay_video(explainer, clip, clip.with_name("maps"), "input_gradient", "dog")
        >>> result.movie.name, result.indices, result.classes[0]
        ('maps.mp4', [0, 1, 2], 'dog')
    """
    _check_arguments(source, max_frames, scale, smoothing, cut_threshold)
    path = Path(out)
    with VideoReader(source, every=every, max_frames=max_frames) as video:
        total = -(-video.num_announced // every)
        total = min(total, max_frames or total)
        result = VideoOverlay(
            path.with_name(path.name + ".mp4"),
            path.with_name(path.name + ".png"),
            video.fps / every,
        )
        # Generators, pulled by `draw`: one batch of frames is in memory at a time.
        #
        #     read -> explain (batches) -> shots -> smooth -> report -> scale -> draw
        #
        # A scale of the whole clip needs all maps first; the frames are then read once more.
        frames = _explain(video, explainer, method, target, batch_size, method_args)
        frames = smooth_maps(find_shots(frames, cut_threshold), smoothing)
        frames = _report(frames, result, total, progress)
        draw = partial(
            _draw,
            result=result,
            drawing=drawing or {},
            total=total,
            name=video.name,
            lines=getattr(explainer, "text_lines", 1),
        )
        if scale == "running":
            draw(_running_scales(frames))
        else:
            # Closes the second reader, too, if drawing fails.
            with closing(_with_clip_scale(frames, source, every, total)) as scaled:
                draw(scaled)
        if max_frames is None or len(result.indices) < max_frames:
            result.num_missing = max(0, video.num_announced - video.num_read)
    return result


def caption_video(
    source: str | os.PathLike[str],
    caption: Caption,
    out: str | os.PathLike[str],
    *,
    word: int | None = None,
    drawing: dict[str, Any] | None = None,
) -> VideoOverlay:
    """Write the frames that a model saw of a video with the maps of its caption to `OUT.mp4`.

    `OUT.png` has the same frames on one page. Each frame is shown until the next one that the model
    saw; the others have no map.

    Args:
        source: The video file.
        caption: Its caption, as `visattn.caption` returns it for a video.
        out: Files to write, without suffix.
        word: Index of the word whose maps are drawn; None for the mean of all words.
        drawing: Fields of `visattn.viz.DrawOptions`.

    Raises:
        VideoError: If the video cannot be read or written.
        ValueError: If the caption is not one of a video, or has no such word.

    Example:
        >>> import torch
        >>> from video_data import block_frame, write_clip
        >>> from visattn.geometry import Geometry
        >>> clip = write_clip(getfixture("tmp_path") / "clip.avi", [block_frame(8, 8)] * 3)
        >>> frames = MapInfo(frames=[0, 2], seconds=[0.0, 0.2])
        >>> maps = AttentionMap(torch.full((1, 2, 3, 4), 0.04), "attend", "words", info=frames)
        >>> maps = maps.with_geometry(Geometry.identity((48, 64)))
        >>> caption = Caption(("dog",), (-0.1,), (1.0,), maps, -0.1, finished=True)
        >>> caption_video(clip, caption, clip.with_name("maps")).indices
        [0, 2]
    """
    count = len(caption.words)
    if not caption.is_video:
        raise ValueError(
            "the caption must be one of a video, with maps on its frames; draw one of photos with "
            "caption_figure"
        )
    if (word is not None and not -count <= word < count) or not count:
        raise ValueError(f"word must be below the number of words, {count}, got {word}")
    indices = caption.maps.info.frames
    total, fps, _ = video_length(source)
    clip = read_clip(source, indices, total)
    path = Path(out)
    result = VideoOverlay(
        path.with_name(path.name + ".mp4"), path.with_name(path.name + ".png"),
        max(len(clip.frames) * fps / total, _SLOWEST), clip.indices, clip.seconds, shots=[0],
    )  # fmt: skip
    text = (
        caption.text if word is None else f"{caption.words[word]} ({word % count + 1} of {count})"
    )
    finite = [each.values.nan_to_num(0.0) for each in caption.image_maps]
    extremes = min(float(each.min()) for each in finite), max(float(each.max()) for each in finite)
    scale = MapScale("global", *caption.display_range(), values=extremes)

    def placed() -> Iterator[tuple[VideoFrame, AttentionMap, MapScale]]:
        for frame, maps in zip(clip.frames, caption.image_maps, strict=True):
            values = maps.values.mean(0) if word is None else maps.values[word]
            info = maps.info | MapInfo(more={"subtitle": text})
            drawn = replace(maps, values=values, labels=(), info=info)
            result.classes.append(text)
            yield frame, drawn, scale

    _draw(placed(), result, drawing or {}, len(clip.frames), clip.name, lines=3)
    return result


def _check_arguments(
    source: str | os.PathLike[str] | FrameFolder | int,
    max_frames: int | None,
    scale: str,
    smoothing: float,
    cut_threshold: float,
) -> None:
    if not 0 <= smoothing < 1 or not 0 < cut_threshold <= 1:
        raise ValueError(
            "smoothing must be in [0, 1) and cut_threshold in (0, 1], got "
            f"{smoothing} and {cut_threshold}"
        )
    if isinstance(source, int) and (max_frames is None or scale == "clip"):
        raise ValueError(
            "a camera has no end and cannot be read twice: pass max_frames and scale='running'"
        )


def _explain(
    video: VideoReader,
    explainer: FrameExplainer,
    method: str,
    target: Any,
    batch_size: int,
    method_args: dict[str, Any],
) -> Iterator[tuple[VideoFrame, AttentionMap]]:
    frames = iter(video)
    batch_size = getattr(explainer, "clip_length", batch_size)
    while batch := list(islice(frames, batch_size)):
        prepared = explainer.prepare([frame.pixels for frame in batch])
        maps = explainer.map(prepared, method, target, **method_args)
        if target is None:
            maps = [_labeled(attention_map) for attention_map in maps]
        yield from zip(batch, maps, strict=True)


def _labeled(attention_map: AttentionMap) -> AttentionMap:
    """Return a map with its class below the frame: the predicted class may change."""
    info = attention_map.info
    name = info.class_name
    text = f"class {name}" if name.isdecimal() else name
    return replace(attention_map, info=MapInfo(more={"subtitle": text}) | info)


def _report(
    frames: Iterable[ExplainedFrame],
    result: VideoOverlay,
    total: int,
    progress: Callable[[int, int], None] | None,
) -> Iterator[ExplainedFrame]:
    """Yield the frames, and note them in the result."""
    for explained in frames:
        if explained.starts_shot:
            result.shots.append(len(result.indices))
        result.indices.append(explained.frame.index)
        result.seconds.append(explained.frame.seconds)
        result.classes.append(explained.map.info.class_name)
        result.details.append(dict(explained.map.info.more.get("details", {})))
        if progress:
            progress(len(result.indices), total)
        yield explained


def _running_scales(
    frames: Iterable[ExplainedFrame],
) -> Iterator[tuple[VideoFrame, AttentionMap, MapScale]]:
    before: MapScale | None = None
    for explained in frames:
        scale = map_scale([explained.map])
        if before is not None:
            lowest = min(before.vmin, scale.vmin)
            highest = max(before.vmax, scale.vmax)
            ends = [each.values or (lowest, highest) for each in (before, scale)]
            values = min(low for low, _ in ends), max(high for _, high in ends)
            scale = replace(scale, vmin=lowest, vmax=highest, values=values)
        before = scale
        yield explained.frame, explained.map, scale


def _with_clip_scale(
    frames: Iterable[ExplainedFrame],
    source: str | os.PathLike[str] | FrameFolder | int,
    every: int,
    total: int,
) -> Generator[tuple[VideoFrame, AttentionMap, MapScale], None, None]:
    """Explain all frames, then yield them with one scale, read from the file once more."""
    maps: list[AttentionMap] = []
    for explained in frames:
        maps.append(explained.map)
        values = explained.map.values
        needed = max(total, len(maps)) * values.numel() * values.element_size()
        if needed > _MAX_BYTES:
            raise VideoError(
                f"the maps of {source} need {needed / 2**20:.0f} MiB until their common scale is "
                f"known, more than {_MAX_BYTES // 2**20}: use the running scale, explain fewer "
                "frames, or choose a method with smaller maps, such as gradcam"
            )
    shown = [m for m in maps if not m.info.empty] or maps
    scale = map_scale(shown, "global")
    with VideoReader(source, every=every, max_frames=len(maps)) as video:
        for frame, attention_map in zip(video, maps, strict=False):
            yield frame, attention_map, scale


def _draw(
    frames: Iterable[tuple[VideoFrame, AttentionMap, MapScale]],
    result: VideoOverlay,
    drawing: dict[str, Any],
    total: int,
    name: str,
    lines: int,
) -> None:
    """Write the movie and the contact sheet."""
    step = max(1, -(-total // _SHEET_FRAMES))
    tiles: list[SheetTile] = []
    legend = None
    subtitle = ""
    with open_mp4(result.movie, result.fps) as writer:
        for position, (frame, attention_map, scale) in enumerate(frames):
            drawn = _draw_frame(frame.pixels, attention_map, scale, drawing)
            text = attention_map.info.more.get("subtitle") or ""
            options = DrawOptions(**drawing)
            if not _boxes(attention_map):
                geometry = attention_map.geometry
                hatched = geometry is not None and geometry.seen_share < 1
                legend = map_legend(attention_map, scale, options, has_nan=hatched)
            strip = legend and legend_strip(legend, method_title(attention_map), frame.pixels)
            writer.write(with_footer(drawn, text, strip, lines), frame.seconds)
            result.vmax = scale.vmax
            if position % step == 0:
                label = target_line(attention_map) or text
                tiles.append(SheetTile(position, frame.seconds, label, drawn))
            if len(tiles) == 2 * _SHEET_FRAMES:  # the number of frames was not known
                tiles = tiles[::2]
                step *= 2
            subtitle = join_notes(method_title(attention_map), attention_map.info.model)
        if not tiles:
            raise VideoError(f"{name} has no frame that can be read")
    shown = tiles[:: -(-len(tiles) // _SHEET_FRAMES)]
    sheet = contact_sheet(
        labeled_tiles(shown, result.shots), Path(name).name, lines=lines, legend=legend,
        subtitle="" if legend is None else subtitle,
    )  # fmt: skip
    with atomic_replace(result.sheet) as part:
        sheet.save(part, "png")


def _boxes(attention_map: AttentionMap) -> Any:
    """Return the boxes of glimpses, which are drawn in place of the map."""
    return attention_map.info.more.get("details", {}).get("boxes")


def _draw_frame(
    pixels: UInt8[np.ndarray, "y x 3"],
    attention_map: AttentionMap,
    scale: MapScale,
    drawing: dict[str, Any],
) -> UInt8[np.ndarray, "y x 3"]:
    geometry = attention_map.geometry
    if geometry is None or geometry.image_size != pixels.shape[:2]:
        raise VideoError(
            f"the map lies on a frame of {geometry and geometry.image_size}, got one of "
            f"{pixels.shape[:2]}: the frames of a video must have one size, and the file must not "
            "change meanwhile"
        )
    if boxes := _boxes(attention_map):
        return np.array(draw_scan_path(pixels, np.asarray(boxes)).paint())
    values: Float[np.ndarray, "y x"] = attention_map.resize_to_image().numpy()
    options = DrawOptions(**drawing, vmin=scale.vmin, vmax=scale.vmax)
    return options.draw(pixels, values, signed=scale.signed)
