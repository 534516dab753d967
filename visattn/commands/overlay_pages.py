"""What stands on pages beside the maps of `visattn overlay`: methods, heads, and the explorer."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.folders import png
from visattn.commands.galleries import INDEX, earlier_entries
from visattn.commands.map_looks import Looker
from visattn.commands.map_records import MapFolder

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    from types import TracebackType

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


class OverlayPages:
    """Writes the pages of pictures into a folder; on leaving, an index of the explorers.

    Args:
        asked: What the command line says.
        looker: The model.
        folder: Where the pages go.

    Raises:
        ValueError: If the folder holds an index that something else made.
    """

    def __init__(self, asked: argparse.Namespace, looker: Looker, folder: MapFolder) -> None:
        self.asked, self.looker, self.folder = asked, looker, folder
        earlier = earlier_entries(folder.folder / INDEX) if asked.explorer else []
        self.entries = {entry.page: entry for entry in earlier}

    def __enter__(self) -> "OverlayPages":
        """Return itself."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: "TracebackType | None",
    ) -> None:
        """Write the index, if there are pages to lead to."""
        if not self.entries:
            return
        from visattn.viz.indexes import index_page

        page = index_page([*self.entries.values()], title="Attention")
        self.folder.write(INDEX, page.encode())

    def files(self, name: str) -> list[str]:
        """Return the names of the files that a picture has besides its maps."""
        return page_files(self.asked, name, several=len(self.looker.looks) > 1)

    def add(
        self,
        name: str,
        picture: "Picture",
        maps: "Sequence[AttentionMap]",
        scales: "Sequence[MapScale]",
    ) -> None:
        """Write the pages of a picture.

        Args:
            name: Of its files.
            picture: The original.
            maps: One for each method.
            scales: One for each map.

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

    def _add_heads(
        self,
        name: str,
        picture: "Picture",
        maps: "Sequence[AttentionMap]",
        scales: "Sequence[MapScale]",
    ) -> None:
        from visattn.seeing.explorers import explorer, heads_sheet
        from visattn.seeing.map_drawings import subject_line
        from visattn.viz.indexes import IndexEntry, thumbnail

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
            entry = IndexEntry(
                name, f"{name}.html", subject_line(maps[0]), thumbnail(picture.pixels)
            )
            self.entries[entry.page] = entry

    def _layers(self, picture: "Picture") -> "list[SeenLayer]":
        """Return what each head looked at, of a model that has heads."""
        if not self.looker.wall:
            return []
        from visattn.seeing.layer_readings import seen_layers
        from visattn.seeing.preparations import prepared

        looker = self.looker
        ready = prepared(looker.subject, [picture], transform=looker.transform, fit=looker.fit)
        return seen_layers(looker.subject, ready.inputs, layers=looker.layers, heads=looker.heads)
