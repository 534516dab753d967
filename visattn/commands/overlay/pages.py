"""What stands on pages beside the maps of `visattn overlay`: methods, heads, and the explorer."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.caption.gallery import INDEX, ImageIndex
from visattn.commands.options.folders import png
from visattn.commands.overlay.map_records import IMAGES, MapFolder
from visattn.commands.overlay.map_specs import MapRunner

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    from types import TracebackType

    import numpy as np

    from visattn.data.images.reader import LoadedImage
    from visattn.pipelines.layer_attention import SeenLayer
    from visattn.pipelines.scale import MapScale
    from visattn.recording.attention_map import AttentionMap


def page_files(asked: argparse.Namespace, name: str, *, several: bool) -> list[str]:
    """Return the names of the files that an image has besides its maps.

    Args:
        asked: What the command line says.
        name: Of the image's files.
        several: Whether there are several maps of it.
    """
    wanted = (
        (several, "methods.png"),
        (asked.grid, "heads.png"),
        (asked.explorer, "html"),
    )
    return [f"{name}.{ending}" for there, ending in wanted if there]


def index_text(maps: "Sequence[AttentionMap]") -> str:
    """Return what the card of an image says: what is explained, by which methods, what failed.

    Args:
        maps: One for each method.
    """
    from visattn.pipelines.draw_maps import method_title, subject_line

    titles = [method_title(one) for one in maps if not one.made.get("empty")]
    said = [subject_line(maps[0]), ", ".join(titles)]
    said += [
        f"{method_title(one)} not drawn: {one.made['empty']}"
        for one in maps
        if one.made.get("empty")
    ]
    return " \N{MIDDLE DOT} ".join(filter(None, said))


def has_index(asked: argparse.Namespace, count: int) -> bool:
    """Whether a run keeps an index: of several images, of explorers, and where there is one.

    Args:
        asked: What the command line says.
        count: Of the images.
    """
    return count > 1 or asked.explorer or (asked.out / INDEX).exists()


class OverlayPages:
    """Writes the pages of images into a folder, and keeps an index that shows the maps.

    Args:
        asked: What the command line says.
        looker: The model.
        folder: Where the pages go.
        count: Of the images.

    Raises:
        ValueError: If the folder holds an index that something else made.
    """

    def __init__(
        self, asked: argparse.Namespace, looker: MapRunner, folder: MapFolder, count: int
    ) -> None:
        self.asked, self.looker, self.folder = asked, looker, folder
        self.index = ImageIndex(folder.folder, "Attention") if has_index(asked, count) else None

    def __enter__(self) -> "OverlayPages":
        """Return itself."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: "TracebackType | None",
    ) -> None:
        """Write the index, if there is one."""
        if self.index is not None:
            self.index.write()

    def files(self, name: str) -> list[str]:
        """Return the names of the files that an image has besides its maps."""
        return page_files(self.asked, name, several=len(self.looker.looks) > 1)

    def shows(self, name: str, keys: Sequence[str]) -> bool:
        """Whether the index has a card of an image, if there is an index.

        Args:
            name: Of its files.
            keys: Of its maps that show something.
        """
        return self.index is None or self._page(name, keys) in self.index

    def _page(self, name: str, keys: Sequence[str]) -> str:
        """Return the file that the card of an image leads to."""
        if self.asked.explorer:
            return f"{name}.html"
        if len(self.looker.looks) > 1:
            return f"{name}.methods.png"
        if not keys:
            return f"{name}.{self.looker.looks[0].key}.json"
        kind = "overlay" if "overlay" in self.asked.kinds else self.asked.kinds[0]
        return f"{name}.{keys[0]}{IMAGES[kind]}"

    def add(
        self,
        name: str,
        image: "LoadedImage",
        maps: "Sequence[AttentionMap]",
        scales: "Sequence[MapScale]",
        shown: "Mapping[str, np.ndarray]",
    ) -> None:
        """Write the pages of an image.

        Args:
            name: Of its files.
            image: The original.
            maps: One for each method.
            scales: One for each map.
            shown: The maps that show something on the image, by their keys.

        Raises:
            OSError: If a file cannot be written.
        """
        from visattn.pipelines.draw_maps import comparison

        drawing = {"colors": self.asked.colors, "opacity": self.asked.opacity}
        if len(maps) > 1:
            file = Path(image.name).name
            sheet = comparison(
                image,
                maps,
                scales=scales,
                subtitle=f"{file} \N{MIDDLE DOT} {self.looker.subject.card.name}",
                style=self.asked.style,
                **drawing,
            )
            self.folder.write(f"{name}.methods.png", png(sheet))
        if self.asked.grid or self.asked.explorer:
            self._add_heads(name, image, maps, scales)
        if self.index is not None:
            page, several = self._page(name, [*shown]), len(maps) > 1
            tiles = [image.pixels] if several or not shown else []
            self.index.add(name, page, index_text(maps), [*tiles, *shown.values()])

    def _add_heads(
        self,
        name: str,
        image: "LoadedImage",
        maps: "Sequence[AttentionMap]",
        scales: "Sequence[MapScale]",
    ) -> None:
        from visattn.pipelines.draw_explorer import explorer, heads_sheet

        layers = self._layers(image)
        geometry, subject = maps[0].geometry, self.looker.subject
        if geometry is None:
            raise ValueError(f"the maps of {image.name} do not know their image")
        drawing = {"colors": self.asked.colors, "opacity": self.asked.opacity}
        if self.asked.grid:
            sheet = heads_sheet(image, geometry, subject=subject, layers=layers, **drawing)
            self.folder.write(f"{name}.heads.png", png(sheet))
        if self.asked.explorer:
            full = [(one, scale) for one, scale in zip(maps, scales, strict=True)
                    if not one.made.get("empty")]  # fmt: skip
            page = explorer(
                image,
                geometry,
                subject=subject,
                layers=layers,
                maps=[one for one, _ in full],
                scales=[scale for _, scale in full],
                index=INDEX,
                style="light" if self.asked.style == "light" else "heat",
                **drawing,
            )
            self.folder.write(f"{name}.html", page.encode())

    def _layers(self, image: "LoadedImage") -> "list[SeenLayer]":
        """Return what each head looked at, of a model that has heads."""
        if not self.looker.wall:
            return []
        from visattn.pipelines.inputs import prepared
        from visattn.pipelines.layer_attention import seen_layers

        looker = self.looker
        ready = prepared(looker.subject, [image], transform=looker.transform, fit=looker.fit)
        return seen_layers(looker.subject, ready.inputs, layers=looker.layers, heads=looker.heads)
