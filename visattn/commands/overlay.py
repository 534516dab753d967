"""`visattn overlay`: attention and attribution maps of any model, drawn on photos."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from visattn.commands.arguments import (
    FiguresOrNone,
    Flag,
    Integers,
    Photos,
    ResizeModeOrNone,
    Values,
    Word,
    Words,
)
from visattn.commands.files import file_digest
from visattn.commands.loop import (
    Command,
    LoopOptions,
    Made,
    encode_figure,
    index_link,
    run,
)
from visattn.commands.model import BuildOptions, parse_value
from visattn.images.formats import MAX_PIXELS

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from torch import Tensor

    from visattn.geometry.affine import Box, Geometry
    from visattn.images.reader import LoadedImage
    from visattn.io.sources import Source
    from visattn.pipelines.explainer import Explainer
    from visattn.pipelines.inputs import PreparedImages
    from visattn.results.attention_map import AttentionMap
    from visattn.results.scale import MapScale
    from visattn.results.values import RecordedLayer


def overlay(
    photos: Photos,
    *,
    model: BuildOptions = BuildOptions(),  # noqa: B008 (frozen)
    method: tuple[str, ...] = ("auto",),
    target: Words = (),
    text: Words = (),
    at: Word = "",
    layers: Words = (),
    heads: Integers = (),
    method_args: Values = (),
    resize_mode: ResizeModeOrNone = None,
    style: Literal["heat", "quantitative", "light", "contour"] = "heat",
    colormap: str = "inferno",
    opacity: float = 0.8,
    normalize: str = "image",
    boxes: Flag = False,
    figures: FiguresOrNone = None,
    max_pixels: int = MAX_PIXELS,
    every: int = 1,
    batch_size: int = 16,
    loop: LoopOptions = LoopOptions(Path("visattn-out/overlay")),  # noqa: B008 (frozen)
) -> int:
    """Draw attention maps and attribution maps of a model on photos and videos.

    Prints method, explained class and its probability for each map. Writes NAME.html, a page with
    all maps of the photo and the attention of every head; NAME.METHOD.png, each map on the photo;
    NAME.npz, the maps at their own resolution; and NAME.json with classes, scores and positions.
    overlay.csv has a row per map: class, probability, runner-up, position of the peak, share of the
    photo that the model saw, and the share of the map in the box of --at. A video becomes
    NAME.METHOD.mp4.

    Args:
        photos: files, folders, quoted patterns, zip and tar archives, URLs; or video files
        method: attention, rollout, relevance, gradcam, layercam, rise, ...; or all that the model
            supports; auto is rollout where attention can be rolled out, else gradcam
        target: classes to explain, by name or index (default: the predicted class)
        text: texts to compare the photos with, for image-text models such as CLIP
        at: what to explain, for segmentation models and detectors: pixel:X,Y, box:L,T,R,B or
            box:best, query:N, region:predicted or region:MASK.png, in pixels of the photo
        layers: index from 0 (-1 is the last), or name of a module, such as layer4.2; attention is
            averaged over several
        heads: average over these attention heads, counted from 0 (default: all)
        method_args: arguments of the methods, such as num_masks=4000
        resize_mode: fit a photo to the input size: center crop, change of aspect ratio, or padding
            (default: preprocessing of the model)
        style: values as colors on the photo (heat), as colors with exact lightness on a gray photo
            (quantitative), as brightness (light), or as contour lines
        colormap: a matplotlib colormap
        opacity: opacity of the highest value, from 0 to 1
        normalize: upper end of the color scale: the maximum of each map (image), its 99th
            percentile (percentile), or one value for all photos, such as 0.2
        boxes: also write boxes around the peaks of the maps, in NAME.json
        figures: also write a figure of all maps of a photo with their color bars
        max_pixels: largest photo to read; 200 million pixels need about 4 GB of memory
        every: explain every n-th frame of a video
        batch_size: photos per batch; always 1 for methods that run the model many times
    """
    from visattn.images.formats import is_video
    from visattn.viz.heatmap import colormap_lut

    colormap_lut(colormap)  # fail on an unknown name before maps are computed
    model = model.named("overlay")
    dense = _dense_target(at, target)
    explainer, made = model.explainer(text=text, resize_mode=resize_mode, dense=dense is not None)
    chosen = _maps(explainer, method, target, text, dense, layers, heads, method_args)
    look = {"style": style, "colormap": colormap, "opacity": opacity}
    drawing = _Drawing(look, normalize, boxes=boxes, figures=figures)
    runner = _Runner(explainer, chosen, dense, heads, drawing)
    channels = len(runner.subject.info.mean) or 3

    def read(path: "Source") -> "LoadedImage":
        from visattn.images.reader import read_image

        return read_image(path, channels=channels, max_pixels=max_pixels)

    settings = {
        **made,
        "maps": [each._asdict() for each in chosen],
        "text": text,
        "at": at,
        "mask": file_digest(mask) if (mask := Path(at.partition(":")[2])).is_file() else "",
        "target": target,
        "heads": heads,
        "resize_mode": resize_mode,
        "drawing": vars(drawing),
    }
    if videos := [photo for photo in photos if is_video(Path(photo))]:
        from visattn.commands.videos import video_command

        if len(videos) < len(photos):
            raise ValueError(
                f"photos and videos take separate commands, got {videos[0]} and photos"
            )
        frames = {"every": every, "batch_size": batch_size}
        command = video_command(explainer, chosen, settings | frames, loop.out, **frames, **look)
        return run(command, videos, loop, batch_size=1)
    endings = ["{}.html", *(f"{{}}.{each.key}.png" for each in chosen), "{}.npz"]
    endings += [f"{{}}.methods.{figures}"] if figures else []
    command = Command(
        "overlay", "Overlays", settings, runner.infer, runner.draw, endings, read,
        classes=runner.subject.class_names or (),
    )  # fmt: skip
    slow = dense is not None or any(map(_is_slow, chosen))  # one photo fills the device
    return run(command, photos, loop, batch_size=1 if slow else batch_size)


class _Map(NamedTuple):
    """A kind of map: a method with its arguments, and the class or text it explains."""

    key: str
    method: str
    args: Mapping[str, Any] = {}
    target: int | None = None


def _maps(
    explainer: "Explainer",
    names: Sequence[str],
    target: Sequence[str],
    text: Sequence[str],
    dense: Any,
    layers: Sequence[str],
    heads: Sequence[int],
    method_args: Sequence[str],
) -> list[_Map]:
    """Return the maps to compute, after checking that the methods fit the model."""
    from visattn.attribution.methods import default_method, get_method
    from visattn.attribution.targets import resolve_class_index
    from visattn.recording.model_info import TextScorer

    if not {*names} - {"all", "auto"}:
        supported = explainer.methods(dense)
        of_texts = isinstance(explainer.model, TextScorer)
        auto = default_method(supported, of_texts=of_texts, num_layers=len(layers))
        names = supported if "all" in names else [auto]
    methods = [get_method(name) for name in dict.fromkeys(names)]
    given = dict(parse_value(each) for each in method_args)
    given |= {"heads": list(heads)} if heads else {}
    places = [int(each) if each.lstrip("-").isdecimal() else each for each in layers]
    given |= {"layers": places} if places else {}
    known = {name for method in methods for name in method.default_kwargs}
    if unknown := {*given} - known:
        raise ValueError(
            f"{', '.join(each.name for each in methods)} has no {min(unknown)}; arguments: "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    subject = explainer.analyze()
    known_names = subject.class_names or ()
    chosen = [] if dense or text else [x if x in known_names else _class(x) for x in target]
    several = [*range(len(text))] or [resolve_class_index(each, subject) for each in chosen]
    made: list[_Map] = []
    for method in methods:
        own = {name: value for name, value in given.items() if name in method.default_kwargs}
        explainer.check(method.name, dense, **own)
        if not method.explains(None) or not several:
            made.append(_Map(method.name, method.name, own))
            continue
        for index in several:
            suffix = f".text{index + 1}" if text else f".class{index}"
            key = f"{method.name}{suffix}" if len(several) > 1 else method.name
            made.append(_Map(key, method.name, own, index))
    return made


def _is_slow(spec: _Map) -> bool:
    """Whether a method runs the model many times on a photo."""
    from visattn.attribution.methods import METHODS

    return bool({"internal_batch_size", "num_samples"} & {*METHODS[spec.method].default_kwargs})


def _dense_target(at: str, target: Sequence[str]) -> Any:
    """Parse `--at`; None for a class of the whole photo.

    Raises:
        ValueError: If it is malformed, or is a region without a class.
    """
    if not at:
        return None
    from visattn.attribution import dense_targets as targets
    from visattn.images.reader import read_image

    kind, _, value = at.partition(":")
    label = _class(target[0]) if target else None
    try:
        if kind == "pixel":
            x, y = map(float, value.split(","))
            return targets.PixelTarget(label, x, y)
        if kind == "box":
            if value == "best":
                return targets.BoxTarget(None, label)
            left, top, right, bottom = map(float, value.split(","))
            return targets.BoxTarget((left, top, right, bottom), label)
        if kind == "query":
            return targets.QueryTarget(int(value), label)
        if kind == "region" and label is not None:
            mask = None if value == "predicted" else read_image(value).pixels.any(-1)
            return targets.RegionTarget(label, mask)
    except ValueError as error:
        raise ValueError(f"--at {at}: {error}") from error
    raise ValueError(
        "--at must be pixel:X,Y, box:L,T,R,B, box:best or query:N; or, with the class in --target, "
        f"region:predicted or region:MASK.png; got {at!r}"
    )


def _class(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


class _Explained(NamedTuple):
    """What the model computed for a photo."""

    maps: "Sequence[AttentionMap]"
    best: Sequence[tuple[str | int, float]]
    """The two most probable classes."""
    layers: "Sequence[RecordedLayer]" = ()


@dataclass(frozen=True)
class _Drawing:
    look: Mapping[str, Any]
    normalize: str
    boxes: bool
    figures: str | None

    def scale(self, maps: "Sequence[AttentionMap]") -> "MapScale":
        """Return the color scale of maps that are compared."""
        from visattn.results.scale import map_scale

        shown = [each for each in maps if not each.info.empty] or maps
        if self.normalize in ("image", "percentile"):
            return map_scale(shown, self.normalize)
        try:
            return replace(map_scale(shown), vmin=0.0, vmax=float(self.normalize), percentile=None)
        except ValueError:
            raise ValueError(
                f"--normalize must be image, percentile or a value, got {self.normalize!r}"
            ) from None


@dataclass
class _Runner:
    """Computes and draws the maps of photos."""

    explainer: "Explainer"
    maps: Sequence[_Map]
    dense: Any
    heads: Sequence[int]
    drawing: _Drawing

    def __post_init__(self) -> None:
        self.subject = self.explainer.analyze()

    def infer(self, images: "Sequence[LoadedImage]") -> list[_Explained]:
        """Return the maps of photos, the attention of every head, and the best classes."""
        from visattn.attribution.targets import class_name
        from visattn.pipelines.layer_attention import record_layers

        batch = self.explainer.prepare(images)
        best = self._best(batch)
        # All maps of a photo explain the same class: that of --target, or the predicted one.
        rows = [list(each) for each in zip(*self._rows(batch, best), strict=True)]
        info = self.subject.info
        has_heads = bool(info.attention_layers) and not info.attention_error
        explained: list[_Explained] = []
        for index, maps in enumerate(rows):
            layers = []
            if has_heads:
                one = batch.select([index]).inputs
                layers = record_layers(self.subject, one, heads=self.heads or None)
            named = [
                (class_name(k, self.subject.class_names) or k, share) for k, share in best[index]
            ]
            explained.append(_Explained(maps, named, layers))
        return explained

    def _best(self, batch: "PreparedImages") -> list[list[tuple[int, float]]]:
        """Return the two most probable classes of each photo, with their probabilities."""
        import torch

        from visattn.attribution.targets import probabilities

        if self.dense is not None or self.subject.info.output.error:
            return [[] for _ in batch.originals]
        with torch.no_grad():
            scores = self.subject.scores(batch.inputs).float().cpu()
        shares = probabilities(scores, self.subject.info.output)
        values, classes = shares.topk(min(2, shares.shape[1]))
        pairs = zip(classes.tolist(), values.tolist(), strict=True)
        return [list(zip(*pair, strict=True)) for pair in pairs]

    def _rows(
        self, batch: "PreparedImages", best: Sequence[Sequence[tuple[int, float]]]
    ) -> Iterator[list["AttentionMap"]]:
        """For each of `maps`, yield the map of each photo; it is empty where the method fails."""
        failures: list[Exception] = []
        for spec in self.maps:
            target: Any = self.dense
            if target is None and spec.target is not None:
                target = spec.target
            elif target is None and all(best):
                target = [each[0][0] for each in best]
            try:
                made = self.explainer.map(batch, spec.method, target, **spec.args)
            except Exception as error:
                failures.append(error)
                if len(failures) == len(self.maps):
                    raise
                made = [_failed(place, spec, error) for place in batch.geometries]
            yield made

    def draw(self, image: "LoadedImage", result: _Explained, files: Sequence[str]) -> Made:
        """Return overlays, arrays, record and page of a photo."""
        import numpy as np

        from visattn.images.formats import encode_overlay
        from visattn.viz.figures import figure
        from visattn.viz.html.explorer_page import explorer_html
        from visattn.viz.html.index_page import thumbnail
        from visattn.viz.maps import method_title, overlay as draw, target_line
        from visattn.viz.marks import draw_frame
        from visattn.viz.text import join_notes

        page, arrays = files[0], files[1 + len(self.maps)]
        maps, drawing = result.maps, self.drawing
        scales = [drawing.scale(self._compared(spec, maps)) for spec in self.maps]
        contents: dict[str, bytes] = {}
        pictures: list[np.ndarray] = []
        records: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        values: dict[str, Any] = {}
        empty: list[str] = []
        for spec, file, made, scale in zip(self.maps, files[1:], maps, scales, strict=False):
            rows.append(_row(spec, made, scale, result.best))
            values[spec.key] = made.values.numpy()
            boxes = made.boxes() if drawing.boxes and not made.info.empty else None
            described = made.to_dict()
            del described["values"]  # stored in the .npz file
            records.append({"key": spec.key, **described, "scale": scale.to_dict()})
            if boxes is not None:
                records[-1]["boxes"] = boxes.to_dict()
            if made.info.empty:
                empty.append(f"{spec.key}: {made.info.empty}")
            else:
                limits = {"vmin": scale.vmin, "vmax": scale.vmax}
                drawn = np.array(draw(image, made, **limits, **drawing.look))
                for each in boxes or ():
                    drawn = draw_frame(drawn, each.box)
                pictures.append(drawn)
                contents[file] = encode_overlay(drawn)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **values)
        contents[arrays] = buffer.getvalue()
        shown = [pair for pair in zip(maps, scales, strict=True) if not pair[0].info.empty]
        if shown or result.layers:
            html = explorer_html(
                image,
                cast("Geometry", maps[0].input_geometry),
                subject=self.subject,
                layers=result.layers,
                maps=[made for made, _ in shown],
                scales=[scale for _, scale in shown],
                index=index_link(page),
                **drawing.look,
            )
            contents = {page: html.encode(), **contents}
        if drawing.figures and shown:
            drawn = figure([made for made, _ in shown], image, **drawing.look)
            contents[files[-1]] = encode_figure(drawn, files[-1])
        said = dict.fromkeys(target_line(made) for made, _ in shown)
        titles = ", ".join(dict.fromkeys(method_title(made) for made, _ in shown))
        return Made(
            {"image": image.name, "maps": records},
            contents,
            rows=[_printed(row) for row in rows if not row["reason"]],
            table=rows,
            caption=join_notes(*said, titles, *empty),
            thumbnail=thumbnail(pictures[0] if pictures else image.pixels),
            problem="; ".join(empty),
        )

    def _compared(self, spec: _Map, maps: "Sequence[AttentionMap]") -> "list[AttentionMap]":
        """Return the maps that share a color scale: those of all texts of a method."""
        several = self.explainer.text is not None
        return [
            made
            for each, made in zip(self.maps, maps, strict=True)
            if each is spec or (several and each.method == spec.method)
        ]


def _failed(place: "Geometry", spec: _Map, error: Exception) -> "AttentionMap":
    """Return an empty map whose info has the reason for the failure."""
    import torch

    from visattn.attribution.methods import METHODS
    from visattn.results.attention_map import AttentionMap
    from visattn.results.info import MapInfo

    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    info = MapInfo(spec.method, dict(spec.args), empty=text)
    return AttentionMap(torch.zeros(1, 1), spec.method, METHODS[spec.method].kind, place, info)


def _row(
    spec: _Map,
    made: "AttentionMap",
    scale: "MapScale",
    best: Sequence[tuple[str | int, float]],
) -> dict[str, Any]:
    """Return a row of the table: the explained class, the position of the peak, the color range."""
    info, place = made.info, cast("Geometry", made.input_geometry)
    (left, top, right, bottom), (height, width) = place.region, place.image_size
    x, y = (None, None) if info.empty else _peak(made.values, cast("Geometry", made.geometry))
    name = info.class_name or info.target
    others = [each for each in best if each[0] != name]
    runner_up, share = others[0] if others else (None, None)
    box = info.thing and info.thing.box
    return {
        "method": spec.key,
        "class": name,
        "score": info.score,
        "probability": info.probability,
        "runner_up": runner_up,
        "runner_up_probability": share,
        **({} if info.cosine is None else {"cosine": info.cosine}),
        "peak_x": x,
        "peak_y": y,
        "lowest": None if info.empty else scale.lowest,
        "highest": None if info.empty else scale.vmax,
        "seen_share": round((right - left) * (bottom - top) / (height * width), 4),
        **({} if box is None else {"share_in_box": None if info.empty else _share(made, box)}),
        "reason": info.empty,
    }


def _share(made: "AttentionMap", box: "Box") -> float:
    """Return the share of the positive values of a map that is in a box of the photo."""
    import torch

    from visattn.metrics.localization import energy_pointing_game

    values = made.resize_to_image().float()[None]
    left, top, right, bottom = (round(side) for side in box)
    mask = torch.zeros_like(values, dtype=torch.bool)
    mask[:, max(top, 0) : bottom, max(left, 0) : right] = True
    return round(float(energy_pointing_game(values, mask)), 4)


def _peak(values: "Tensor", geometry: "Geometry") -> tuple[float, float]:
    """Return the center of the highest cell that is not in the padding, in pixels of the photo."""
    import torch

    values = values.flatten(0, -3).amax(0) if values.ndim > 2 else values
    rows, columns = values.shape
    height, width = geometry.input_size
    step = torch.tensor([width / columns, height / rows], dtype=torch.float64)
    grid = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).flip(1)
    corners = [geometry.to_image((grid + offset) * step) for offset in (0.0, 1.0)]
    low, high = torch.minimum(*corners), torch.maximum(*corners)
    start, end = torch.tensor(geometry.region, dtype=torch.float64).view(2, 2)
    outside = ((high <= start) | (low >= end)).any(1)
    best = int(values.flatten().masked_fill(outside & ~outside.all(), -torch.inf).argmax())
    x, y = ((low + high) / 2)[best].clamp(start, end).tolist()
    return round(x, 2), round(y, 2)


def _printed(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return method, class, probability and displayed range."""
    share = row.get("cosine", row["probability"])
    shown = "-" if share is None else f"{share:.3f}"
    name = "-" if row["class"] is None else str(row["class"])
    return row["method"], name, shown, f"{row['lowest']:.3g} to {row['highest']:.3g}"
