"""Job of `visattn overlay`: maps of a model on images, drawn, with pages beside them."""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from visattn.commands.boxes import box_settings, boxes_of
from visattn.commands.index import card_image
from visattn.commands.model_option import file_digest, model_settings
from visattn.commands.options import figure_settings
from visattn.commands.overlay.map_files import (
    encode_npy,
    index_text,
    map_record,
    read_info,
    read_map,
)
from visattn.commands.overlay.methods import (
    MapRunner,
    MapSpec,
    check_one_photo,
    dense_record,
)
from visattn.commands.records import Part, Record
from visattn.commands.run import Job
from visattn.commands.streams import activity
from visattn.images.encoding import encode_overlay, encode_png
from visattn.io.safe_text import print_message
from visattn.io.sources import Source
from visattn.results.cards import Card

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np
    from torch import nn

    from visattn.geometry.affine import Box
    from visattn.images.reader import LoadedImage
    from visattn.pipelines.inputs import PreparedImages
    from visattn.results.attention_map import AttentionMap
    from visattn.results.map_boxes import MapBoxes
    from visattn.results.scale import MapScale
    from visattn.results.values import RecordedLayer

IMAGES = {"overlay": ".png", "rgba": ".rgba.png", "16bit": ".16bit.png"}
_ALONE = {"rgba": "rgba", "16bit": "gray"}  # images of a map without the photo
_BATCH_SIZE = 16
_DRAWING = ("normalize", "style", "colormap", "opacity", "interpolation")
_PREPROCESSING = ("resize_mode", "input_size", "text", "autocast")


class ImageMaps(NamedTuple):
    """What the model gives for an image: a map per method; for pages also heads and class maps."""

    maps: "Sequence[AttentionMap]"
    layers: "Sequence[RecordedLayer] | None" = None
    classes: "Sequence[Sequence[AttentionMap]]" = ()


def overlay_images(args: argparse.Namespace) -> int:
    """Compute maps of a model on images and draw them; return the exit code.

    Args:
        args: Options of `visattn overlay`.
    """
    from visattn.viz.heatmap import colormap_lut

    colormap_lut(args.colormap)  # refuses an unknown name before maps are computed
    if args.dry_run:
        args.pretrained = False  # nothing is downloaded
    with activity("loading the model"):
        job = OverlayJob(args)
        check_one_photo(args, len(job.names))
        model, source = job.load()
    if args.dry_run:
        return job.dry_run(model, source)
    runner = job.runner
    if runner.loaded.weights == "random":
        print_message("the weights are random: the maps have no meaning")
    batch_size = args.batch_size or _batch_size(runner)
    if args.normalize != "global":
        return job.run(batch_size=batch_size)
    # The scale of all images is known after the last of them: a first run saves the maps, a second
    # one draws them. Both resume.
    job.check_files()
    maps = MapsJob(args, job)
    maps.skipped += job.skipped
    code = maps.run(batch_size=batch_size)
    drawings = DrawJob(args, maps)
    return max(code, drawings.run(batch_size=1))


def _batch_size(runner: MapRunner) -> int:
    """Return images per batch: one if a map takes long, so that its row appears when it is there.

    Methods that run the model many times on an image fill the device with one image.
    """
    if runner.dense is not None:  # photos keep their sizes
        return 1
    from visattn.attribution.methods import METHODS

    many = any(
        {"internal_batch_size", "num_samples"} & {*METHODS[spec.method].default_kwargs}
        for spec in runner.specs
    )
    return 1 if many else _BATCH_SIZE


class OverlayJob(Job[ImageMaps]):
    """Maps of a model on images; each has a record, and the pages belong to that of the first.

    Args:
        args: Options of `visattn overlay`.
        before: A job on the same images, whose model is used.
    """

    command = "overlay"
    title = "Attention"
    work = "explaining"

    def __init__(self, args: argparse.Namespace, before: "OverlayJob | None" = None) -> None:
        self.index_of_one = args.explorer
        self._before = before
        super().__init__(args)
        self._runner = None if before is None else before.runner

    def find(self) -> Sequence[Source]:
        """Return the images of the command line, searched once."""
        return super().find() if self._before is None else [*self._before.all_names]

    @property
    def runner(self) -> MapRunner:
        """Model and methods."""
        if self._runner is None:
            raise ValueError("the model is not loaded")
        return self._runner

    def load(self) -> "tuple[nn.Module, str]":
        """Load the model, for the methods of the command line."""
        self._runner = MapRunner(self.args)
        return self._runner.explained.model, self.args.model

    def read(self, path: Source) -> Any:
        """Read an image with the channels that the model takes, in a thread."""
        from visattn.images.reader import read_image

        channels = len(self.runner.explained.info.mean) or 3
        return read_image(path, channels=channels, max_pixels=self.args.max_pixels)

    def notes(self) -> list[str]:
        """Return the methods."""
        return [f"methods: {', '.join(spec.key for spec in self.runner.specs)}"]

    def stems(self, name: str) -> list[str]:
        """Return the stem of each map."""
        return [f"{name}.{spec.key}" for spec in self.runner.specs]

    def files(self, name: str, stem: str) -> list[str]:
        """Return the files of a map; those of the first map are the pages of the image, too."""
        files = [f"{stem}{end}" for end in (*(IMAGES[kind] for kind in self._kinds), ".npy")]
        return [*files, *self._pages(name)] if stem == self.stems(name)[0] else files

    @property
    def _kinds(self) -> list[str]:
        """Kinds of images of each map that are saved."""
        return [kind for kind in self.args.save if kind in IMAGES]

    def _pages(self, name: str) -> list[str]:
        """Return the files of an image that show several maps."""
        pages = {
            ".methods.png": "sheet" in self.args.save,
            ".html": self.args.explorer,
        }
        return [f"{name}{end}" for end, written in pages.items() if written]

    def settings(self) -> dict[str, Any]:
        """Return model, preprocessing and drawing."""
        args = self.args
        return {**self.map_settings(), "drawing": {
            **{name: getattr(args, name) for name in _DRAWING}, **box_settings(args),
        }}  # fmt: skip

    def map_settings(self) -> dict[str, Any]:
        """Return what the values of maps depend on."""
        args = self.args
        return {
            **model_settings(args, self.runner.loaded.weights),
            **{name: getattr(args, name) for name in _PREPROCESSING},
            "target": args.target[0] if len(args.target or ()) == 1 else None,
            "dense": dense_record(args),
            "classes": args.classes and file_digest(args.classes),
        }

    def settings_of(self, name: str, stem: str) -> dict[str, Any]:
        """Return the method of a map; for the first one also what the pages depend on."""
        spec = self._spec(name, stem)
        settings = _method_settings(spec)
        if stem == self.stems(name)[0] and self._pages(name):
            heads = {"layers": self.args.layers, "heads": self.args.heads}
            keys = [spec.key for spec in self.runner.specs]
            classes = {"top_classes": self.args.top_classes} if self.args.explorer else {}
            settings["pages"] = {
                "methods": keys, **(heads if self.args.explorer else {}), **classes,
                **figure_settings(self.args),
            }  # fmt: skip
        return settings

    def is_same(self, saved: Any, settings: Mapping[str, Any]) -> bool:
        """Whether a map was made in the same way; an image may have more pages than requested."""
        if not isinstance(saved, dict):
            return False
        pages = saved.get("pages", {})
        kept = {key: pages[key] for key in settings.get("pages", {}) if key in pages}
        saved = {key: value for key, value in saved.items() if key != "pages"}
        return {**saved, **({"pages": kept} if "pages" in settings else {})} == settings

    def _spec(self, name: str, stem: str) -> MapSpec:
        return self.runner.specs[self.stems(name).index(stem)]

    def finished(self, path: Source) -> tuple[Record, ...] | None:
        """Return the records of an image that is finished and of which no method has failed."""
        records = super().finished(path)
        try:
            failed = any(read_info(record).failed for record in records or ())
        except (ValueError, LookupError, TypeError):
            return None  # the record is of another version
        return None if failed else records

    def saved_maps(self, path: Source) -> "list[tuple[AttentionMap, Record]]":
        """Return the maps of an image from their files, with their records.

        Args:
            path: The image; of one that is incomplete there are none.
        """
        # Maps of failed methods count here, which `finished` of this class would leave out.
        if self.folder is None or (records := Job.finished(self, path)) is None:
            return []
        pairs = zip(self.stems(self.names[path]), records, strict=True)
        return [
            (read_map(self.folder.path / f"{stem}.npy", record), record) for stem, record in pairs
        ]

    def infer(self, images: "Sequence[LoadedImage]") -> list[ImageMaps]:
        """Return the maps of images, and every head if there is an explorer."""
        batch = self.runner.explainer.prepare(images)
        results = self.runner.maps(batch)
        return [
            self.with_details(maps, batch.select([index])) for index, maps in enumerate(results)
        ]

    def with_details(self, maps: "Sequence[AttentionMap]", prepared: "PreparedImages") -> ImageMaps:
        """Return maps of an image with what its pages show besides.

        Args:
            maps: A map per method.
            prepared: The image as the model takes it.
        """
        if not self.args.explorer:
            return ImageMaps(maps)
        return ImageMaps(maps, self.layers(prepared), self.class_maps(prepared))

    def class_maps(self, prepared: "PreparedImages") -> "list[list[AttentionMap]]":
        """Return the maps of the most probable classes in each layer, if the page has them.

        Args:
            prepared: One image as the model takes it.
        """
        runner, count = self.runner, self.args.top_classes
        if not count or runner.dense is not None:
            return []
        from visattn.pipelines.class_maps import class_layer_maps

        return class_layer_maps(runner.explainer, prepared, num_classes=count)

    def layers(self, prepared: "PreparedImages") -> "list[RecordedLayer]":
        """Return the attention of every head of an image.

        Args:
            prepared: One image as the model takes it.
        """
        runner = self.runner
        if not runner.has_heads:
            return []
        import torch

        from visattn.pipelines.layer_attention import record_layers

        with torch.autocast(torch.device(self.args.device).type, enabled=False):
            return record_layers(
                runner.explained, prepared.inputs, layers=runner.layers, heads=runner.heads
            )

    def scales(self, maps: "Sequence[AttentionMap]") -> "list[MapScale]":
        """Return a scale for each map of an image; maps of several texts share one."""
        from visattn.results.scale import map_scale

        specs = self.runner.specs
        groups: dict[str, list[AttentionMap]] = {}
        for spec, attention_map in zip(specs, maps, strict=True):
            groups.setdefault(spec.scale_key, []).append(attention_map)
        # Empty maps say nothing of a scale, unless there are no others.
        drawn = {
            key: [shown for shown in group if not shown.info.empty] or group
            for key, group in groups.items()
        }
        return [map_scale(drawn[spec.scale_key], self.args.normalize) for spec in specs]

    def parts(self, name: str, image: "LoadedImage", result: ImageMaps) -> Iterable[Part]:
        """Return record, array and images of each map, and the pages of the image."""
        maps = result.maps
        scales = self.scales(result.maps)
        parts: list[Part] = []
        tiles: dict[str, np.ndarray] = {}
        outlined: list[Sequence[Box]] = []
        for stem, spec, attention_map, scale in zip(
            self.stems(name), self.runner.specs, maps, scales, strict=True
        ):
            boxes = _labeled(boxes_of(attention_map, self.args), attention_map, spec)
            record = map_record(spec.key, image, attention_map, scale)
            if boxes is not None:
                record["boxes"] = boxes.to_dict()
            outlined.append([] if boxes is None else boxes.per_map()[0])
            files = {f"{stem}.npy": encode_npy(attention_map)}
            if not attention_map.info.empty:
                drawn = self._draw(image, attention_map, scale, boxes)
                tiles[stem] = drawn["overlay"]
                for kind in self._kinds:
                    encode = encode_overlay if kind == "overlay" else encode_png
                    files[f"{stem}{IMAGES[kind]}"] = encode(drawn[kind])
            parts.append(Part(stem, record, files))
        pages = self._draw_pages(name, image, result, scales, outlined)
        card = None
        if self.has_index:
            geometry = maps[0].geometry
            shown = next(iter(tiles.values()), image.pixels)
            thumbnail = card_image(shown, None if geometry is None else geometry.region)
            page = self.main_file(name)
            if page not in {**parts[0].files, **pages}:  # the map is empty
                page = f"{parts[0].stem}.json"
            card = Card(name, page, index_text(maps), thumbnail)
        first = replace(parts[0], files={**parts[0].files, **pages}, card=card)
        return [first, *parts[1:]]

    def _draw(
        self,
        image: "LoadedImage",
        attention_map: "AttentionMap",
        scale: "MapScale",
        boxes: "MapBoxes | None",
    ) -> "dict[str, np.ndarray]":
        """Return the overlay of a map, and its other images of `--save`, by their names there."""
        from visattn.viz.maps import outline_boxes, render_map

        drawn = render_map(
            image,
            attention_map,
            scale,
            style=self.args.style,
            colormap=self.args.colormap,
            opacity=self.args.opacity,
            smooth=self.args.interpolation == "bilinear",
        )
        outlined = outline_boxes(drawn.overlay, boxes)
        alone = {kind: getattr(drawn, _ALONE[kind]) for kind in self._kinds if kind in _ALONE}
        return {"overlay": outlined, **alone}

    def _draw_pages(
        self,
        name: str,
        image: "LoadedImage",
        result: ImageMaps,
        scales: "Sequence[MapScale]",
        boxes: "Sequence[Sequence[Box]]",
    ) -> dict[str, bytes]:
        """Return the files of an image that show several maps."""
        from visattn.viz.figures import figure as draw_figure, png
        from visattn.viz.html.explorer_page import explorer_html

        args = self.args
        explained = self.runner.explained
        maps = result.maps
        drawing = {"colormap": args.colormap, "opacity": args.opacity}
        pages: dict[str, bytes] = {}
        if "sheet" in args.save:
            figure = draw_figure(
                maps,
                image,
                scales=scales,
                boxes=boxes,
                style=args.style,
                crop=args.cropped,
                width=args.width,
                **drawing,
            )
            pages[f"{name}.methods.png"] = png(figure)
        geometry = maps[0].input_geometry
        layers = result.layers
        if layers is None:
            return pages
        if geometry is None:
            raise ValueError(f"the maps of {image.name} have no geometry")
        pairs = zip(maps, scales, strict=True)
        drawn = [pair for pair in pairs if not pair[0].info.empty]
        page = explorer_html(
            image,
            geometry,
            explained=explained,
            layers=layers,
            maps=[attention_map for attention_map, _ in drawn],
            scales=[scale for _, scale in drawn],
            class_maps=result.classes,
            panel=self._figure(name) if drawn else None,
            index=self.index_link(name),
            style="light" if args.style == "light" else "heat",
            **drawing,
        )
        pages[f"{name}.html"] = page.encode()
        return pages

    def main_file(self, name: str) -> str:
        """Return the page of an image that shows most, or its first map."""
        page = f"{name}.html"
        return page if page in self._pages(name) else self._figure(name)

    def _figure(self, name: str) -> str:
        """Return the figure of an image: the sheet of all methods, or its first map."""
        if (sheet := f"{name}.methods.png") in self._pages(name):
            return sheet
        kind = "overlay" if "overlay" in self._kinds else self._kinds[0]
        return f"{self.stems(name)[0]}{IMAGES[kind]}"

    def rows(self, record: Record) -> Iterable[Sequence[object]]:
        """Yield method, target, probability and displayed range of a map that is not empty."""
        if read_info(record).empty:
            return
        row = dict(*self.table(record))
        target = "-" if row["class"] is None else row["class"]
        share = row.get("cosine", row["probability"])
        shown = "-" if share is None else f"{share:.3f}"
        yield row["method"], target, shown, f"{row['lowest']:.3g} to {row['highest']:.3g}"

    @staticmethod
    def table(record: Record) -> Iterable[dict[str, Any]]:
        """Yield method, class or text, its score, displayed range and peak of a map."""
        info = read_info(record)
        scale = record["scale"]
        left, top = record["values"].get("argmax", (None, None))
        lowest, highest = -scale["vmax"] if scale["signed"] else scale["vmin"], scale["vmax"]
        if info.empty:  # the maximum of zeros lies anywhere
            left = top = lowest = highest = None
        yield {
            "method": record["key"],
            "class": info.class_name or info.target,
            "score": info.score,
            "probability": info.probability,
            **({} if info.cosine is None else {"cosine": info.cosine}),
            "peak_x": left,
            "peak_y": top,
            "lowest": lowest,
            "highest": highest,
            "reason": info.empty,
        }

    def problems(self, record: Record) -> Iterable[str]:
        """Yield why a map is empty."""
        if reason := read_info(record).empty:
            yield f".{record['key']}: {reason}"


def _method_settings(spec: MapSpec) -> dict[str, Any]:
    """Return what a map depends on besides the settings of all: its method, and its class."""
    settings: dict[str, Any] = {"method": spec.method, "method_args": dict(spec.method_args)}
    return settings if spec.target is None else {**settings, "class": spec.target}


class MapsJob(OverlayJob):
    """Maps of images without drawings, which need the scale of all images."""

    writes_shared = False

    def files(self, name: str, stem: str) -> list[str]:
        """Return the array of a map."""
        del name
        return [f"{stem}.npy"]

    def settings(self) -> dict[str, Any]:
        """Return what the values of maps depend on."""
        return self.map_settings()

    def settings_of(self, name: str, stem: str) -> dict[str, Any]:
        """Return the method of a map."""
        return _method_settings(self._spec(name, stem))

    def is_same(self, saved: Any, settings: Mapping[str, Any]) -> bool:
        """Whether the values of a map are the same, however it was drawn."""
        return all(key in saved and saved[key] == value for key, value in settings.items())

    def parts(self, name: str, image: "LoadedImage", result: ImageMaps) -> Iterable[Part]:
        """Return record and array of each map."""
        specs = self.runner.specs
        for stem, spec, made in zip(self.stems(name), specs, result.maps, strict=True):
            record = map_record(spec.key, image, made, None)
            yield Part(stem, record, {f"{stem}.npy": encode_npy(made)})

    def rows(self, record: Record) -> Iterable[Sequence[object]]:
        """Yield nothing: the scale is not known yet."""
        del record
        return ()

    def problems(self, record: Record) -> Iterable[str]:
        """Yield nothing: drawing reports it."""
        del record
        return ()


class DrawJob(OverlayJob):
    """Drawings of saved maps on one scale per method over all images.

    Args:
        args: Options of `visattn overlay`.
        maps: The job that has saved the maps.
    """

    def __init__(self, args: argparse.Namespace, maps: MapsJob) -> None:
        super().__init__(args, maps)
        self.maps = maps
        self.global_scales, self.names = self._all_scales()

    def _all_scales(self) -> "tuple[list[MapScale], dict[Source, str]]":
        """Return one scale per method, and the images that have maps, one of them in memory."""
        from visattn.results.scale import ValueRange

        drawn: dict[str, ValueRange] = defaultdict(ValueRange)
        empty: dict[str, ValueRange] = defaultdict(ValueRange)
        names: dict[Source, str] = {}
        for path, name in self.names.items():
            for spec, (each, _) in zip(self.runner.specs, self.maps.saved_maps(path), strict=False):
                ranges = empty if each.info.empty else drawn
                ranges[spec.scale_key].add(each)
                names[path] = name
        keys = [spec.scale_key for spec in self.runner.specs] if names else []
        return [(drawn if key in drawn else empty)[key].scale("global") for key in keys], names

    def scales(self, maps: "Sequence[AttentionMap]") -> "list[MapScale]":
        """Return the scales of all images."""
        del maps
        return self.global_scales

    def settings_of(self, name: str, stem: str) -> dict[str, Any]:
        """Return method and scale of a map."""
        scale = self.global_scales[self.stems(name).index(stem)]
        return {**super().settings_of(name, stem), "scale": scale.to_dict()}

    def read(self, path: Source) -> "_Saved":
        """Read an image and its maps, in a thread."""
        return _Saved(super().read(path), [each for each, _ in self.maps.saved_maps(path)])

    def infer(self, images: "Sequence[Any]") -> list[ImageMaps]:
        """Return the saved maps of images, and every head if a page shows it."""
        prepare = self.runner.explainer.prepare
        return [
            self.with_details(saved.maps, prepare([saved.image]))
            if self.args.explorer
            else ImageMaps(saved.maps)
            for saved in images
        ]

    def parts(self, name: str, image: Any, result: ImageMaps) -> Iterable[Part]:
        """Return record, array and images of each map, and the pages of the image."""
        return super().parts(name, image.image, result)


class _Saved(NamedTuple):
    """An image with its saved maps."""

    image: "LoadedImage"
    maps: "list[AttentionMap]"

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def num_pixels(self) -> int:
        return self.image.num_pixels


def _labeled(
    boxes: "MapBoxes | None", attention_map: "AttentionMap", spec: MapSpec
) -> "MapBoxes | None":
    """Return boxes whose label is the explained class or text, or the method if there is none."""
    from visattn.attribution.methods import METHODS

    info = attention_map.info
    target = info.class_name or info.target
    explained = target is not None and METHODS[spec.method].needs_target
    label = str(target) if explained else spec.key
    return boxes and replace(boxes, boxes=tuple(replace(each, label=label) for each in boxes))
