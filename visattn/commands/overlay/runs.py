"""Runs of `visattn overlay` over many images: compute, save, draw, resume."""

import argparse
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from visattn.commands.options.boxes import BoxFile, box_settings, boxes_of, join_boxes
from visattn.commands.options.dry_run import describe_images, describe_model, print_dry_run
from visattn.commands.options.folders import check_no_overwrite, encode_png, unique_names
from visattn.commands.options.image_index import INDEX, read_index_entries
from visattn.commands.options.image_run import autocast
from visattn.commands.options.images import (
    batched,
    count_on_interrupt,
    find_input_images,
    map_in_threads,
    read_images,
    report_failures,
    select_shard,
)
from visattn.commands.options.output_streams import print_row, progress_bar
from visattn.commands.options.provenance import file_digest, user_code_digest, weights_origin
from visattn.commands.overlay.dense_target import check_one_photo, dense_record
from visattn.commands.overlay.map_records import IMAGES, MapFolder
from visattn.commands.overlay.map_specs import SIMILARITY_NOTE, MapRunner, MapSpec
from visattn.commands.overlay.pages import OverlayPages, has_index, page_files
from visattn.io.terminal import print_message

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np

    from visattn.images.reader import LoadedImage
    from visattn.results.attention_map import AttentionMap
    from visattn.results.map_boxes import MapBoxes
    from visattn.results.scale import MapScale
    from visattn.results.values import RecordedLayer


def overlay_images(args: argparse.Namespace) -> int:
    """Compute maps of a model on images and draw them; return the exit code.

    Args:
        args: Options of `visattn overlay`.

    Raises:
        FileNotFoundError: If an image or a file of the model does not exist.
        ValueError: If the model does not support the options, or a file would overwrite an image.
        OSError: If the folder cannot be written.
    """
    skipped: list[str] = []
    names = unique_names(find_input_images(args.images, args.out, skipped))
    count, names = len(names), select_shard(names, args.shard)
    _check_drawing(args)
    check_one_photo(args, len(names))
    box_file = BoxFile(args, names)
    if args.dry_run:
        return _dry_run(args, names)
    runner = MapRunner(args)
    if runner.loaded.weights == "random":
        print_message("the weights are random: the maps have no meaning")
    if runner.dense is not None:
        args.batch_size = 1  # photos keep their sizes
    if any(spec.method == "similarity" for spec in runner.specs):
        print_message(SIMILARITY_NOTE)
    folder = MapFolder(args.out, names, [spec.key for spec in runner.specs])
    with OverlayPages(args, runner, folder, count) as pages:
        run = _Run(args, runner, folder, pages, names)
        run.skipped += skipped
        with count_on_interrupt(run.done, len(names)), progress_bar(len(names)) as progress:
            run.process(progress.track(names) if progress else names)
    run.write_boxes(box_file)
    return report_failures(run.skipped, run.not_written, len(names))


def _dry_run(args: argparse.Namespace, names: dict[Path, str]) -> int:
    """Run all checks and print what would be read and written; return 0."""
    args.pretrained = False  # nothing is downloaded
    runner = MapRunner(args)
    keys = [spec.key for spec in runner.specs]
    suffixes = [*(IMAGES[kind] for kind in args.save), ".npy", ".json"]
    files = [f"{name}.{key}{end}" for name in names.values() for key in keys for end in suffixes]
    for name in names.values():
        files += page_files(args, name, several=len(keys) > 1)
    check_no_overwrite(args.out, files, names)
    if has_index(args, len(names)):
        read_index_entries(args.out)
        files.append(INDEX)
    if args.boxes is not None:
        files.append(str(args.boxes.absolute()))
    reads = [describe_images([*names]), describe_model(runner.loaded.model, args.model)]
    return print_dry_run([*reads, f"methods: {', '.join(keys)}"], args.out, files)


def _check_drawing(args: argparse.Namespace) -> None:
    """Refuse an unknown colormap before the maps are computed."""
    from visattn.viz.maps.colormap import colormap_lut

    colormap_lut(args.colormap)


class _MapJob(NamedTuple):
    """An image with its maps, to be drawn."""

    path: Path
    image: "LoadedImage"
    maps: "Sequence[AttentionMap]"
    scales: "list[MapScale]"
    layers: "Sequence[RecordedLayer] | None" = None


class _Run:
    """State of a run: images, output files, failures."""

    def __init__(
        self,
        args: argparse.Namespace,
        runner: MapRunner,
        folder: MapFolder,
        pages: OverlayPages,
        names: Mapping[Path, str],
    ) -> None:
        self.args, self.runner, self.folder, self.pages = args, runner, folder, pages
        self.names, self.digests = names, dict[Path, str]()
        self.skipped: list[str] = []
        self.not_written: list[str] = []
        self.done: list[str] = []
        self.model = {
            "model": args.model,
            **user_code_digest(args.model),
            "weights": weights_origin(runner.loaded.weights),
            "pretrained": args.pretrained,
            "model_args": dict(args.model_args),
            "target": args.target,
            **dense_record(args),
            "resize_mode": args.resize_mode,
            "align": args.align,
            "input_size": args.input_size,
            "classes": args.classes and file_digest(args.classes),
            "text": args.text,
            **({"autocast": args.autocast} if args.autocast else {}),
        }
        self.drawing = {
            "normalize": args.normalize,
            "style": args.style,
            "colormap": args.colormap,
            "opacity": args.opacity,
            "interpolation": args.interpolation,
            **box_settings(args),
        }

    def process(self, paths: Iterable[Path]) -> None:
        """Compute missing maps and draw them; with a global scale, draw after all are computed."""
        if self.args.normalize == "global":
            for job in self._compute(paths, global_scale=True):
                with self._collect_write_errors(job.image.name):
                    self._save_maps(job.path, job.maps)
            self._draw_all()
            return
        jobs = self._compute(paths, global_scale=False)
        for job, drawn in map_in_threads(self._draw, jobs, ahead=self.args.batch_size):
            with self._collect_write_errors(job.image.name):
                self._finish(job, drawn())

    def _compute(self, paths: Iterable[Path], *, global_scale: bool) -> "Iterator[_MapJob]":
        """Yield the maps of the images with missing files; the rows of others are printed again."""
        unfinished = self._read_unfinished(paths, global_scale=global_scale)
        for entries in batched(unfinished, self.args.batch_size):
            batch = self.runner.explainer.prepare([image for _, image in entries])
            with autocast(self.args):
                results = self.runner.maps(batch)
            for index, ((path, image), maps) in enumerate(zip(entries, results, strict=True)):
                layers = None
                if self.pages.need_layers:
                    layers = self.pages.record_layers(batch.select([index]))
                yield _MapJob(path, image, maps, self._scales(maps), layers)

    def _read_unfinished(
        self, paths: Iterable[Path], *, global_scale: bool
    ) -> "Iterator[tuple[Path, LoadedImage]]":
        """Read the images with missing files; print the rows of the finished images again."""
        unfinished = (
            path
            for path in paths
            if not (global_scale and self._reusable_records(path)) and not self._is_done(path)
        )
        return read_images(unfinished, self.skipped, strict=self.args.strict)

    def _expected_record(self, path: Path, spec: MapSpec) -> dict[str, Any]:
        """Return the entries that a record needs for its map to be reused."""
        return {
            **self.model,
            "method": spec.method,
            "method_args": dict(spec.method_args),
            "image_sha256": self._image_digest(path),
        }

    def _image_digest(self, path: Path) -> str:
        """Return the cached digest of an image; "" if the file cannot be read."""
        if path not in self.digests:
            try:
                self.digests[path] = file_digest(path)
            except (OSError, ValueError):  # reported when the image is decoded
                return ""
        return self.digests[path]

    def _reusable_records(self, path: Path) -> list[dict[str, Any]] | None:
        """Return the records of all maps of an image, if they exist and --overwrite is not set."""
        return None if self.args.overwrite else self._records(path)

    def _is_done(self, path: Path) -> bool:
        """Whether all files of an image exist; then its rows are printed again."""
        records = self._reusable_records(path) if path.is_file() else None
        if records is None or any(record.get("drawing") != self.drawing for record in records):
            return False
        name = self.names[path]
        drawn = [record["key"] for record in records if not record["metadata"].get("empty")]
        files = [f"{name}.{key}{IMAGES[kind]}" for key in drawn for kind in self.args.save]
        complete = self.folder.has([*files, *self.pages.files(name)])
        if not complete or not self.pages.in_index(name, drawn):
            return False
        if self.args.normalize != "global":
            for record in records:
                self._print_map(name, record["key"], record["metadata"], record["scale"])
        return True

    def _scales(self, maps: "Sequence[AttentionMap]") -> "list[MapScale]":
        """Return a scale for each map of an image; maps of several texts share one."""
        from visattn.results.scale import map_scale

        groups: dict[str, list[AttentionMap]] = {}
        for spec, attention_map in zip(self.runner.specs, maps, strict=True):
            groups.setdefault(spec.scale_key, []).append(attention_map)
        drawn = {
            key: [each for each in group if not each.metadata.get("empty")] or group
            for key, group in groups.items()
        }
        return [map_scale(drawn[spec.scale_key], self.args.normalize) for spec in self.runner.specs]

    def _save_maps(
        self,
        path: Path,
        maps: "Sequence[AttentionMap]",
        scales: "Sequence[MapScale] | None" = None,
    ) -> None:
        """Write arrays and records; the scales are missing until the maps are drawn."""
        name = self.names[path]
        for number, (spec, attention_map) in enumerate(zip(self.runner.specs, maps, strict=True)):
            entries = {
                **self._expected_record(path, spec),
                "key": spec.key,
                "image": str(path),
                "scale": scales[number].to_dict() if scales else None,
                "drawing": self.drawing if scales else None,
                **_versions(),
            }
            self.folder.save(name, spec.key, attention_map, entries)

    def _draw(self, job: _MapJob) -> str | None:
        """Write all files of an image, its records last, in a thread; return its card."""
        overlays = self._render(job)
        name = self.names[job.path]
        card = self.pages.write(name, job.image, job.maps, job.scales, overlays, job.layers)
        self._save_maps(job.path, job.maps, job.scales)
        return card

    def _render(self, job: _MapJob) -> "dict[str, np.ndarray]":
        """Write the images of the maps of a photo; return the overlays."""
        from visattn.viz.maps.placed import outline_boxes, render_map

        overlays: dict[str, np.ndarray] = {}
        for spec, attention_map, scale in zip(self.runner.specs, job.maps, job.scales, strict=True):
            if attention_map.metadata.get("empty"):
                continue
            drawn = render_map(
                job.image,
                attention_map,
                scale,
                style=self.args.style,
                colormap=self.args.colormap,
                opacity=self.args.opacity,
                smooth=self.args.interpolation == "bilinear",
            )
            outlined = outline_boxes(drawn.overlay, boxes_of(attention_map, self.args))
            overlays[spec.key] = outlined
            images = {"overlay": outlined, "rgba": drawn.rgba, "16bit": drawn.gray}
            for kind in self.args.save:
                name = f"{self.names[job.path]}.{spec.key}{IMAGES[kind]}"
                self.folder.write(name, encode_png(images[kind]))
        return overlays

    def _finish(self, job: _MapJob, card: str | None) -> None:
        """Add the card of an image to the index, and print the rows of its maps."""
        name = self.names[job.path]
        self.pages.add_card(name, job.maps, card)
        self.done.append(name)
        for spec, attention_map, scale in zip(self.runner.specs, job.maps, job.scales, strict=True):
            self._print_map(name, spec.key, attention_map.metadata, scale.to_dict())

    def _draw_all(self) -> None:
        """Draw all images, with one scale per method."""
        every = {
            path: records
            for path in self.names
            if path.is_file() and (records := self._records(path))
        }
        scales = self._global_scales(every)
        jobs = self._undrawn(every, scales)
        for job, drawn in map_in_threads(self._draw, jobs):
            with self._collect_write_errors(job.image.name):
                self._finish(job, drawn())

    def _undrawn(
        self, every: "Mapping[Path, Sequence[dict[str, Any]]]", scales: "list[MapScale]"
    ) -> "Iterator[_MapJob]":
        """Yield the images that are not drawn on these scales; print the rows of the others."""
        expected = [scale.to_dict() for scale in scales]
        for path, records in every.items():
            same = [record["scale"] for record in records] == expected
            if same and not self.args.overwrite and self._is_done(path):
                for record in records:
                    name = self.names[path]
                    self._print_map(name, record["key"], record["metadata"], record["scale"])
                continue
            for _, image in read_images([path], self.skipped, strict=self.args.strict):
                layers = None
                if self.pages.need_layers:
                    layers = self.pages.record_layers(self.runner.explainer.prepare([image]))
                yield _MapJob(path, image, self._load(path, records), scales, layers)

    def write_boxes(self, file: BoxFile) -> None:
        """Write the boxes of the maps of all images, also of those that earlier runs computed.

        Args:
            file: The file of `--boxes`.
        """
        if self.args.boxes is None:
            return
        for path in self.names:
            records = self._records(path) if path.is_file() else None
            maps = [] if records is None else self._load(path, records)
            boxes = [
                _labeled(boxes_of(each, self.args), each, spec)
                for each, spec in zip(maps, self.runner.specs, strict=bool(maps))
            ]
            file.add(path, join_boxes(boxes))
        file.write()

    def _load(self, path: Path, records: Sequence[dict[str, Any]]) -> "list[AttentionMap]":
        return [self.folder.load(self.names[path], each["key"], each) for each in records]

    def _global_scales(self, every: Mapping[Path, Sequence[dict[str, Any]]]) -> "list[MapScale]":
        """Return one scale per method over all images, of which one is in memory at a time."""
        from visattn.results.scale import ValueRange

        drawn: dict[str, ValueRange] = defaultdict(ValueRange)
        empty: dict[str, ValueRange] = defaultdict(ValueRange)
        for path, records in every.items():
            for spec, each in zip(self.runner.specs, self._load(path, records), strict=True):
                ranges = empty if each.metadata.get("empty") else drawn
                ranges[spec.scale_key].add(each)
        keys = [spec.scale_key for spec in self.runner.specs]
        return [(drawn if key in drawn else empty)[key].scale("global") for key in keys]

    def _records(self, path: Path) -> list[dict[str, Any]] | None:
        """Return the records of all maps of an image, if all exist and none has failed."""
        records = [
            self.folder.read_record(self.names[path], spec.key, self._expected_record(path, spec))
            for spec in self.runner.specs
        ]
        valid = [each for each in records if each and not each["metadata"].get("failed")]
        return valid if len(valid) == len(records) else None

    def _print_map(
        self, name: str, key: str, metadata: Mapping[str, Any], scale: Mapping[str, Any]
    ) -> None:
        """Print the row of a map, or note why it is empty."""
        if metadata.get("empty"):
            self.not_written.append(f"{name}.{key}: {metadata['empty']}")
            return
        lowest = -scale["vmax"] if scale["signed"] else scale["vmin"]
        target = metadata.get("class") or metadata.get("target")
        target = "-" if target is None else target
        value = metadata["probability"]
        value = metadata.get("cosine") if value is None else value
        probability = "-" if value is None else f"{value:.3f}"
        print_row(name, key, target, probability, f"{lowest:.3g} to {scale['vmax']:.3g}")

    @contextlib.contextmanager
    def _collect_write_errors(self, name: str) -> Iterator[None]:
        """Note that files of an image could not be written, and continue with the next image."""
        try:
            yield
        except BrokenPipeError:  # of stdout
            raise
        except OSError as error:
            self.not_written.append(f"{name}: {error}")


def _labeled(
    boxes: "MapBoxes | None", attention_map: "AttentionMap", spec: MapSpec
) -> "MapBoxes | None":
    """Return boxes whose label is the explained class or text, or the method if there is none."""
    from visattn.attribution.methods import METHODS

    metadata = attention_map.metadata
    target = metadata.get("class") or metadata.get("target")
    explained = target is not None and METHODS[spec.method].needs_target
    label = str(target) if explained else spec.key
    return boxes and replace(boxes, boxes=tuple(each._replace(label=label) for each in boxes))


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"visattn": version("visattn"), "torch": version("torch")}
