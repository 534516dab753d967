"""Pages beside the maps of `visattn overlay`: method comparison, heads, explorer, index."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options.folders import encode_png
from visattn.commands.options.image_index import INDEX, ImageIndex, card_image
from visattn.commands.overlay.map_records import IMAGES, MapFolder
from visattn.commands.overlay.map_specs import MapRunner

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np

    from visattn.images.reader import LoadedImage
    from visattn.pipelines.inputs import PreparedImages
    from visattn.results.attention_map import AttentionMap
    from visattn.results.scale import MapScale
    from visattn.results.values import RecordedLayer


def page_files(args: argparse.Namespace, name: str, *, several: bool) -> list[str]:
    """Return the names of the pages of an image.

    Args:
        args: Options of `visattn overlay`.
        name: File name of the image without suffix.
        several: Whether the image has several maps.
    """
    suffixes = (
        (several, "methods.png"),
        (args.all_heads, "heads.png"),
        (args.explorer, "html"),
    )
    return [f"{name}.{suffix}" for written, suffix in suffixes if written]


def index_text(maps: "Sequence[AttentionMap]") -> str:
    """Return the text of an index card: explained class, methods, failures.

    Args:
        maps: One map per method.
    """
    from visattn.viz.maps.comparison import method_title, target_line

    titles = [method_title(each) for each in maps if not each.metadata.get("empty")]
    failures = [
        f"{method_title(each)} not drawn: {each.metadata['empty']}"
        for each in maps
        if each.metadata.get("empty")
    ]
    parts = [target_line(maps[0]), ", ".join(titles), *failures]
    return " \N{MIDDLE DOT} ".join(filter(None, parts))


def has_index(args: argparse.Namespace, count: int) -> bool:
    """Whether a run writes an index: for several images, for explorers, or to update one.

    Args:
        args: Options of `visattn overlay`.
        count: Number of images.
    """
    return count > 1 or args.explorer or (args.out / INDEX).exists()


class OverlayPages(AbstractContextManager["OverlayPages"]):
    """Writer for the pages of images and their index.

    Args:
        args: Options of `visattn overlay`.
        runner: Model and methods.
        folder: Output folder.
        count: Number of images.

    Raises:
        ValueError: If the folder has an index.html that visattn did not write.
    """

    def __init__(
        self, args: argparse.Namespace, runner: MapRunner, folder: MapFolder, count: int
    ) -> None:
        self.args, self.runner, self.folder = args, runner, folder
        self.index = ImageIndex(folder.folder, "Attention") if has_index(args, count) else None

    def __exit__(self, *_exception: object) -> None:
        """Write the index, if there is one."""
        if self.index is not None:
            self.index.write()

    def files(self, name: str) -> list[str]:
        """Return the names of the pages of an image."""
        return page_files(self.args, name, several=len(self.runner.specs) > 1)

    def in_index(self, name: str, keys: Sequence[str]) -> bool:
        """Whether the index has a card of an image, if there is an index.

        Args:
            name: File name of the image without suffix.
            keys: Keys of its maps that are not empty.
        """
        if self.index is None:
            return True
        # An image has one card; that of an earlier run may link to a page with more on it.
        richer = () if self.args.explorer else (f"{name}.html", f"{name}.methods.png")
        return any(page in self.index for page in (self._main_page(name, keys), *richer))

    def _main_page(self, name: str, keys: Sequence[str]) -> str:
        """Return the file to which the card of an image links."""
        if self.args.explorer:
            return f"{name}.html"
        if len(self.runner.specs) > 1:
            return f"{name}.methods.png"
        if not keys:
            return f"{name}.{self.runner.specs[0].key}.json"
        kind = "overlay" if "overlay" in self.args.save else self.args.save[0]
        return f"{name}.{keys[0]}{IMAGES[kind]}"

    @property
    def need_layers(self) -> bool:
        """Whether pages show the attention of every head, if the model has any."""
        return self.args.all_heads or self.args.explorer

    def record_layers(self, prepared: "PreparedImages") -> "list[RecordedLayer]":
        """Return the attention of every head; none if the model has no attention heads.

        Args:
            prepared: One image as the model takes it.
        """
        runner = self.runner
        if not runner.has_heads:
            return []
        from visattn.pipelines.layer_attention import record_layers

        return record_layers(
            runner.explained, prepared.inputs, layers=runner.layers, heads=runner.heads
        )

    def write(
        self,
        name: str,
        image: "LoadedImage",
        maps: "Sequence[AttentionMap]",
        scales: "Sequence[MapScale]",
        overlays: "Mapping[str, np.ndarray]",
        layers: "Sequence[RecordedLayer] | None",
    ) -> str | None:
        """Write the pages of an image; return its card, if there is an index.

        Args:
            name: File name of the image without suffix.
            image: The image.
            maps: One map per method.
            scales: One color scale per map.
            overlays: Overlays of the maps that are not empty, by key.
            layers: Attention of every head, if pages show it.

        Raises:
            OSError: If a file cannot be written.
        """
        from visattn.viz.maps.comparison import comparison_figure

        if len(maps) > 1:
            parts = [Path(image.name).name, self.runner.explained.info.name]
            parts += list(dict.fromkeys(str(each.metadata.get("note") or "") for each in maps))
            sheet = comparison_figure(
                image,
                maps,
                scales=scales,
                title=" / ".join(self.args.text) if self.args.text else None,
                subtitle=" \N{MIDDLE DOT} ".join(filter(None, parts)),
                style=self.args.style,
                colormap=self.args.colormap,
                opacity=self.args.opacity,
            )
            self.folder.write(f"{name}.methods.png", encode_png(sheet))
        if layers is not None:
            self._add_heads(name, image, maps, scales, layers)
        if self.index is None:
            return None
        tiles = [image.pixels] if len(maps) > 1 or not overlays else []
        return card_image([*tiles, *overlays.values()])

    def add_card(self, name: str, maps: "Sequence[AttentionMap]", card: str | None) -> None:
        """Add the card of an image to the index.

        Args:
            name: File name of the image without suffix.
            maps: One map per method.
            card: As `write` returned it.

        Raises:
            OSError: If the index cannot be written.
        """
        if self.index is not None and card is not None:
            pairs = zip(self.runner.specs, maps, strict=True)
            keys = [spec.key for spec, each in pairs if not each.metadata.get("empty")]
            self.index.add(name, self._main_page(name, keys), index_text(maps), card)

    def _add_heads(
        self,
        name: str,
        image: "LoadedImage",
        maps: "Sequence[AttentionMap]",
        scales: "Sequence[MapScale]",
        layers: "Sequence[RecordedLayer]",
    ) -> None:
        from visattn.viz.html.explorer_page import explorer_html
        from visattn.viz.maps.heads import all_heads_figure

        geometry, explained = maps[0].geometry, self.runner.explained
        if geometry is None:
            raise ValueError(f"the maps of {image.name} have no geometry")
        drawing = {"colormap": self.args.colormap, "opacity": self.args.opacity}
        if self.args.all_heads:
            sheet = all_heads_figure(image, geometry, explained=explained, layers=layers, **drawing)
            self.folder.write(f"{name}.heads.png", encode_png(sheet))
        if self.args.explorer:
            pairs = zip(maps, scales, strict=True)
            drawn = [(each, scale) for each, scale in pairs if not each.metadata.get("empty")]
            page = explorer_html(
                image,
                geometry,
                explained=explained,
                layers=layers,
                maps=[each for each, _ in drawn],
                scales=[scale for _, scale in drawn],
                index=INDEX,
                style="light" if self.args.style == "light" else "heat",
                **drawing,
            )
            self.folder.write(f"{name}.html", page.encode())
