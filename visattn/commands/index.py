"""Index and table of an output folder, made from the records of its results."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from visattn.commands.files import folder_lock
from visattn.commands.records import CARD, PROVENANCE, Record
from visattn.io.atomic import atomic_write
from visattn.io.safe_text import read_json
from visattn.results.cards import Card

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np

    from visattn.geometry.affine import Box
    from visattn.viz.html.index_page import IndexRange

INDEX = "index.html"
_PAUSE = 1.0  # seconds between updates of the index, at least
_MAX_TIME_SHARE = 0.1  # of the running time that is spent on updates of the index
_PAGE_BYTES = 4_000_000  # of the cards of a page
_PAGE_ENDS = (".methods.png", ".html")  # an image has one card: that with the most on its page

_SEARCHED = {
    "caption": "captions", "ask": "questions, answers", "overlay": "classes, methods",
    "glimpse": "classes", "detect": "objects", "segment": "classes",
}  # fmt: skip
"""What the cards of a command say, by which they are searched besides names."""

Row = Mapping[str, object]
"""A row of the table: values by the names of their columns."""


class _IndexedRecord(NamedTuple):
    """What is kept of a record: its card without the thumbnail, and its rows."""

    state: tuple[int, int]
    card: Card | None = None
    size: int = 0
    rows: tuple[Row, ...] = ()


class FolderIndex:
    """Index pages and table of a folder, kept up to date while several processes write results.

    A long index is split into pages of about 4 MB, `index.html`, `index-2.html` and so on. A
    record is read once, until it changes; the thumbnails of a page, those read last, are kept in
    memory.

    Args:
        folder: The folder.
        title: Heading of the pages.
        command: The command whose results the table lists.
        rows: Returns the rows of a record.
        pages: Whether there are index pages, besides the table.

    Raises:
        ValueError: If the folder has an index.html that visattn did not write.
    """

    def __init__(
        self,
        folder: Path,
        title: str,
        command: str,
        rows: Callable[[Record], Iterable[Row]],
        *,
        pages: bool = True,
    ) -> None:
        self.folder = folder
        self.title = title
        self.command = command
        self.pages = pages
        self._rows = rows
        self._entries: dict[str, _IndexedRecord] = {}
        self._thumbnails: dict[str, tuple[tuple[int, int], str]] = {}
        self._kept_bytes = 0
        self._written: dict[int, tuple[object, tuple[int, int]]] = {}
        self._next_write = 0.0
        if pages:
            check_index(folder)

    def refresh(self) -> None:
        """Write the pages that changed, unless that would take too much of the running time."""
        if self.pages and time.monotonic() >= self._next_write:
            start = time.monotonic()
            with folder_lock(self.folder):
                self._read_records()
                self._write_pages()
            end = time.monotonic()
            self._next_write = end + max(_PAUSE, (end - start) / _MAX_TIME_SHARE)

    def write(self) -> list[Row]:
        """Write the pages that changed; return the table of all results of the command."""
        with folder_lock(self.folder):  # another process may write the same pages
            self._read_records()
            if self.pages:
                self._write_pages()
        return self._table()

    def _read_records(self) -> None:
        """Read the records that are new or changed."""
        entries: dict[str, _IndexedRecord] = {}
        for path in record_files(self.folder):
            name = path.relative_to(self.folder).as_posix()
            state = _file_state(path)
            known = self._entries.get(name)
            entries[name] = known if known and known.state == state else self._read(path, state)
        self._entries = entries

    def _read(self, path: Path, state: tuple[int, int]) -> _IndexedRecord:
        from visattn.viz.html.index_page import index_card

        try:
            record = read_json(path)
            made = record[PROVENANCE]
            card = None if record.get(CARD) is None else Card(**record[CARD])
            if card is not None and ".." in card.page.split("/"):
                return _IndexedRecord(state)  # its page is not in the folder
            rows = tuple(self._rows(record)) if made["command"] == self.command else ()
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            # Kept without card and rows, so that it is read again only when it changes.
            return _IndexedRecord(state)  # of something else, or just being replaced
        if card is None:
            return _IndexedRecord(state, None, 0, rows)
        size = len(index_card(card).encode())
        self._keep_thumbnail(path.relative_to(self.folder).as_posix(), state, card.thumbnail)
        return _IndexedRecord(state, card._replace(thumbnail=""), size, rows)

    def _keep_thumbnail(self, name: str, state: tuple[int, int], thumbnail: str) -> None:
        """Keep the thumbnail of a card, in place of that read first if a page of them is kept."""
        _, before = self._thumbnails.pop(name, (state, ""))
        self._thumbnails[name] = state, thumbnail
        self._kept_bytes += len(thumbnail) - len(before)
        while self._kept_bytes > _PAGE_BYTES:
            _, dropped = self._thumbnails.pop(next(iter(self._thumbnails)))
            self._kept_bytes -= len(dropped)

    def _table(self) -> list[Row]:
        """Return the rows of all results, by the names of their records."""
        from visattn.viz.html.index_page import index_order

        names = sorted(self._entries, key=lambda name: index_order(Card(name, "", "", "")))
        return [row for name in names for row in self._entries[name].rows]

    def _layout(self) -> list[list[str]]:
        """Return the records whose cards are shown, in pages of limited size."""
        from visattn.viz.html.index_page import index_order

        best: dict[tuple[str, str], str] = {}
        for name, entry in sorted(self._entries.items()):
            if entry.card is None or not (self.folder / entry.card.page).is_file():
                continue
            key = (str(Path(name).parent), entry.card.name)
            if key not in best or _rank(entry.card) > _rank(self._card(best[key])):
                best[key] = name
        order = sorted(best.values(), key=lambda name: index_order(self._card(name)))
        layout: list[list[str]] = [[]]
        room = _PAGE_BYTES
        for name in order:
            size = self._entries[name].size
            if size > room and layout[-1]:
                layout.append([])
                room = _PAGE_BYTES
            layout[-1].append(name)
            room -= size
        return layout

    def _write_pages(self) -> None:
        """Write the pages whose cards or links have changed, and remove those beyond the last."""
        from visattn.images.reader import is_index_page
        from visattn.viz.html.index_page import IndexRange, index_file, numbered_index_page

        layout = self._layout()
        if not layout[0] and not (self.folder / INDEX).exists():
            return
        ranges = [IndexRange.of([self._card(name) for name in page]) for page in layout]
        for number, (names, signature) in enumerate(
            zip(layout, self._signatures(layout, ranges), strict=True), start=1
        ):
            path = self.folder / index_file(number)
            written, state = self._written.get(number, (None, None))
            if path.exists() and (written, state) == (signature, _file_state(path)):
                continue
            entries = [self._with_thumbnail(name) for name in names]
            shown = ranges if number == 1 else ranges[: number + 1]
            search = _SEARCHED.get(self.command, "texts")
            page = numbered_index_page(entries, number, shown, title=self.title, search=search)
            content = page.encode()
            _check_page(path)
            if not path.is_file() or path.read_bytes() != content:
                atomic_write(path, content)
            self._written[number] = (signature, _file_state(path))
        number = len(layout) + 1
        while is_index_page(path := self.folder / index_file(number)):
            path.unlink()
            number += 1

    def _signatures(
        self, layout: Sequence[Sequence[str]], ranges: "Sequence[IndexRange]"
    ) -> Iterator[object]:
        """Yield for each page what its content depends on."""
        # The first page lists all pages. Others show the number of their first photo and whether a
        # page follows; one always precedes them.
        count = 0
        for number, names in enumerate(layout, start=1):
            states = [(name, self._entries[name].state) for name in names]
            yield states, count, ranges if number == 1 else number < len(layout)
            count += len(names)

    def _card(self, name: str) -> Card:
        card = self._entries[name].card
        if card is None:
            raise ValueError(f"{name} has no card")
        return card

    def _with_thumbnail(self, name: str) -> Card:
        state, thumbnail = self._thumbnails.get(name, (None, ""))
        if state == self._entries[name].state:
            return self._card(name)._replace(thumbnail=thumbnail)
        return Card(**read_json(self.folder / name)[CARD])


def check_index(folder: Path) -> None:
    """Refuse a folder with an index that visattn did not write.

    Raises:
        ValueError: If there is one.

    Example:
        >>> check_index(Path("no_such_folder"))
    """
    _check_page(folder / INDEX)


def has_index(folder: Path) -> bool:
    """Return whether a folder has an index of visattn.

    Example:
        >>> has_index(Path("no_such_folder"))
        False
    """
    from visattn.images.reader import is_index_page

    return is_index_page(folder / INDEX)


def _check_page(path: Path) -> None:
    """Refuse to replace a page that visattn did not write."""
    from visattn.images.reader import is_index_page

    if os.path.lexists(path) and not is_index_page(path):
        raise ValueError(
            f"--out {path.parent} has an {path.name} that visattn did not write and will not "
            "replace; choose another folder"
        )


def card_image(image: "np.ndarray", region: "Box | None" = None) -> str:
    """Return the thumbnail of a card as a data URL.

    Args:
        image: The image with a map.
        region: The region that the network sees, which is shown alone: left, top, right, bottom.

    Example:
        >>> import numpy as np
        >>> card_image(np.zeros((9, 12, 3), np.uint8), (3, 0, 9, 9)).startswith("data:image/jpeg")
        True
    """
    from visattn.viz.html.index_page import thumbnail

    return thumbnail(image if region is None else crop_to(image, region))


def crop_to(image: "np.ndarray", region: "Box") -> "np.ndarray":
    """Return the part of an image in a region, which may end outside of it; all if it is empty.

    Args:
        image: RGB.
        region: Left, top, right, bottom.

    Example:
        >>> import numpy as np
        >>> crop_to(np.zeros((9, 12, 3), np.uint8), (3.2, -2, 9.1, 40)).shape
        (9, 7, 3)
    """
    left, top = (max(0, math.floor(side)) for side in region[:2])
    right, bottom = (math.ceil(side) for side in region[2:])
    cut = image[top : max(bottom, 0), left : max(right, 0)]
    return cut if cut.size else image


def record_files(folder: Path) -> Iterator[Path]:
    """Yield the JSON files of a folder, and of those below that have no index of their own.

    Example:
        >>> list(record_files(Path("no_such_folder")))
        []
    """
    for parent, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not Path(parent, name, INDEX).exists()
        ]
        for name in files:
            if name.endswith(".json") and not name.startswith("."):
                yield Path(parent, name)


def describe_unfinished(folder: Path, stems: Iterable[Iterable[str]]) -> str:
    """Return how many images have no results yet, as the end of a sentence.

    Args:
        folder: The output folder.
        stems: Stems of the records of each image.

    Example:
        >>> describe_unfinished(Path("no_such_folder"), [["dog"], ["cat"]])
        '2 have no results yet'
    """
    written = {path.relative_to(folder).as_posix() for path in record_files(folder)}
    missing = sum(not {f"{stem}.json" for stem in of_image} <= written for of_image in stems)
    return f"{missing:,} have no results yet" if missing else "all have results"


def _file_state(path: Path) -> tuple[int, int]:
    """Return what changes whenever a file is replaced: its inode, and the time of its writing."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def _rank(card: Card) -> int:
    """Return how much the page of a card shows."""
    return max(
        (rank for rank, end in enumerate(_PAGE_ENDS, 1) if card.page.endswith(end)), default=0
    )
