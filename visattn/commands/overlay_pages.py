"""What stands on pages beside the maps of `visattn overlay`: methods, heads, and the explorer."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.folders import png
from visattn.commands.galleries import INDEX, PictureIndex
from visattn.commands.map_looks import Looker
from visattn.commands.map_records import PICTURES, MapFolder

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    from types import TracebackType

    import numpy as np

    from visattn.data.pictures import Picture
    from visattn.maps.attention_maps import AttentionMap
    from visattn.seeing.layer_readings import SeenLayer
    from visattn.seeing.map_scales import MapScale


def page_files(asked: argparse.Namespace, name: str, *, several: bool) -> list[str]:
    """Return the names of the files that a picture has besides its maps.

    Args:
        asked: What the command line says.
        name: Of the picture's files.
        several: Whether there are several maps of it.
    """
    wanted = (
        (several, "methods.png"),
        (asked.grid, "heads.png"),
        (asked.explorer, "html"),
    )
    return [f"{name}.{ending}" for there, ending in wanted if there]


def index_text(maps: "Sequence[AttentionMap]") -> str:
    """Return what the card of a picture says: what is explained, by which methods, what failed.

    Args:
        maps: One for each method.
    """
    from visattn.seeing.map_drawings import method_title, subject_line

    titles = [method_title(one) for one in maps if not one.made.get("empty")]
    said = [subject_line(maps[0]), ", ".join(titles)]
    said += [
        f"{method_title(one)} not drawn: {one.made['empty']}"
        for one in maps
        if one.made.get("empty")
    ]
    return " \N{MIDDLE DOT} ".join(filter(None, said))


def has_index(asked: argparse.Namespace, count: int) -> bool:
    """Whether a run keeps an index: of several pictures, of explorers, and where there is one.

    Args:
        asked: What the command line says.
        count: Of the pictures.
    """
    return count > 1 or asked.explorer or (asked.out / INDEX).exists()


class OverlayPages:
    """Writes the pages of pictures into a folder, and keeps an index that shows the maps.

    Args:
        asked: What the command line says.
        looker: The model.
        folder: Where the pages go.
        count: Of the pictures.

    Raises:
        ValueError: If the folder holds an index that something else made.
    """

    def __init__(
        self, asked: argparse.Namespace, looker: Looker, folder: MapFolder, count: int
    ) -> None:
        self.asked, self.looker, self.folder = asked, looker, folder
        self.index = PictureIndex(folder.folder, "Attention") if has_index(asked, count) else None

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
        """Return the names of the files that a picture has besides its maps."""
        return page_files(self.asked, name, several=len(self.looker.looks) > 1)

    def shows(self, name: str, keys: Sequence[str]) -> bool:
        """Whether the index has a card of a picture, if there is an index.

        Args:
            name: Of its files.
            keys: Of its maps that show something.
        """
        return self.index is None or self._page(name, keys) in self.index

    def _page(self, name: str, keys: Sequence[str]) -> str:
        """Return the file that the card of a picture leads to."""
        if self.asked.explorer:
            return f"{name}.html"
        if len(self.looker.looks) > 1:
            return f"{name}.methods.png"
        if not keys:
            return f"{name}.{self.looker.looks[0].key}.json"
        kind = "overlay" if "overlay" in self.asked.kinds else self.asked.kinds[0]
        return f"{name}.{keys[0]}{PICTURES[kind]}"

    def add(
        self,
        name: str,
        picture: "Picture",
        maps: "Sequence[AttentionMap]",
        scales: "Sequence[MapScale]",
        shown: "Mapping[str, np.ndarray]",
    ) -> None:
        """Write the pages of a picture.

        Args:
            name: Of its files.
            picture: The original.
            maps: One for each method.
            scales: One for each map.
            shown: The maps that show something on the picture, by their keys.

        Raises:
            OSError: If a file cannot be written.
        """
        from visattn.seeing.map_drawings import comparison

        drawing = {"colours": self.asked.colours, "opacity": self.asked.opacity}
        if len(maps) > 1:
            file = Path(picture.name).name
            sheet = comparison(
                picture,
                maps,
                scales=scales,
                subtitle=f"{file} \N{MIDDLE DOT} {self.looker.subject.card.name}",
                style=self.asked.style,
                **drawing,
            )
            self.folder.write(f"{name}.methods.png", png(sheet))
        if self.asked.grid or self.asked.explorer:
            self._add_heads(name, picture, maps, scales)
        if self.index is not None:
            page, several = self._page(name, [*shown]), len(maps) > 1
            tiles = [picture.pixels] if several or not shown else []
            self.index.add(name, page, index_text(maps), [*tiles, *shown.values()])

    def _add_heads(
        self,
        name: str,
        picture: "Picture",
        maps: "Sequence[AttentionMap]",
        scales: "Sequence[MapScale]",
    ) -> None:
        from visattn.seeing.explorers import explorer, heads_sheet

        layers = self._layers(picture)
        geometry, subject = maps[0].geometry, self.looker.subject
        if geometry is None:
            raise ValueError(f"the maps of {picture.name} do not know their picture")
        drawing = {"colours": self.asked.colours, "opacity": self.asked.opacity}
        if self.asked.grid:
            sheet = heads_sheet(picture, geometry, subject=subject, layers=layers, **drawing)
            self.folder.write(f"{name}.heads.png", png(sheet))
        if self.asked.explorer:
            full = [(one, scale) for one, scale in zip(maps, scales, strict=True)
                    if not one.made.get("empty")]  # fmt: skip
            page = explorer(
                picture,
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

    def _layers(self, picture: "Picture") -> "list[SeenLayer]":
        """Return what each head looked at, of a model that has heads."""
        if not self.looker.wall:
            return []
        from visattn.seeing.layer_readings import seen_layers
        from visattn.seeing.preparations import prepared

        looker = self.looker
        ready = prepared(looker.subject, [picture], transform=looker.transform, fit=looker.fit)
        return seen_layers(looker.subject, ready.inputs, layers=looker.layers, heads=looker.heads)
