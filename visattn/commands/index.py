"""Index and table of an output folder, made from the records of its results."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Protocol

from visattn.commands.files import map_in_threads
from visattn.commands.outputs import INDEX, Output, open_output
from visattn.commands.records import CARD, PROVENANCE, Record
from visattn.io.safe_text import decode_utf8, parse_json
from visattn.io.tables import csv_table, parquet_table
from visattn.results.cards import Card

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np

    from visattn.geometry.affine import Box
    from visattn.viz.html.index_page import IndexRange

SEEN = "seen_share"
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


class RecordKind(Protocol):
    """What the table says of the records of a command."""

    def table(self, record: Record, /) -> Iterable[Row]:
        """Yield the rows of a record, without the name of the image."""
        ...

    def seen_share(self, record: Record, /) -> float | None:
        """Return which share of a photo the model saw; None if that is not known."""
        ...


class _IndexedRecord(NamedTuple):
    """What is kept of a record: its card without the thumbnail, and its rows."""

    state: object
    card: Card | None = None
    size: int = 0
    command: str = ""
    rows: tuple[Row, ...] = ()


class FolderIndex:
    """Index pages and table of a folder, kept up to date while several processes write results.

    A long index is split into pages of about 4 MB, `index.html`, `index-2.html` and so on. A
    record is read once, until it changes; the thumbnails of a page, those read last, are kept in
    memory.

    Args:
        out: The folder, or a store; or its path.
        title: Heading of the pages.
        command: What the pages are searched for is what its cards say.
        kind_of: Returns what says the rows of the records of a command; None if they have none.
        pages: Whether there are index pages, besides the tables.

    Raises:
        ValueError: If the folder has an index.html that visattn did not write.
    """

    def __init__(
        self,
        out: Output | Path,
        title: str,
        command: str,
        kind_of: Callable[[str], RecordKind | None],
        *,
        pages: bool = True,
    ) -> None:
        self.out = open_output(out) if isinstance(out, Path) else out
        self.title = title
        self.command = command
        self._kind_of = kind_of
        self.pages = pages
        self._entries: dict[str, _IndexedRecord] = {}
        self._thumbnails: dict[str, tuple[object, str]] = {}
        self._kept_bytes = 0
        self._written: dict[int, tuple[object, object]] = {}
        self._next_write = 0.0
        if pages:
            check_index(self.out)

    @property
    def commands(self) -> list[str]:
        """The commands whose results were read."""
        return sorted({entry.command for entry in self._entries.values() if entry.command})

    def refresh(self) -> None:
        """Write the pages that changed, unless that would take too much of the running time."""
        if self.pages and time.monotonic() >= self._next_write:
            start = time.monotonic()
            with self.out.lock():
                self.read()
                self._write_pages()
            end = time.monotonic()
            self._next_write = end + max(_PAUSE, (end - start) / _MAX_TIME_SHARE)

    def write(
        self, commands: Iterable[str], *, parquet: bool = False, overwrite: bool = False
    ) -> None:
        """Write the pages that changed, and tables of all results.

        Args:
            commands: Commands that have a table.
            parquet: Whether the tables are written as parquet, too.
            overwrite: Whether tables of the user are replaced.

        Raises:
            FileExistsError: If there is such a table.
            OSError: If a file cannot be written.
        """
        with self.out.lock():  # another process may write the same pages
            self.read()
            if self.pages:
                self._write_pages()
        for command in commands:
            rows = self._table(command)
            tables = {"csv": csv_table(rows)}
            if parquet:
                tables["parquet"] = parquet_table(rows)
            for suffix, content in tables.items():
                name = f"{command}.{suffix}"
                self.out.write_shared(name, content, key=name, overwrite=overwrite)

    def read(self) -> None:
        """Read the records that are new or changed."""
        states = self.out.records()
        entries = self._entries
        changed = [
            name for name in states if name not in entries or entries[name].state != states[name]
        ]
        entries = {name: entries[name] for name in states if name in entries}
        for name, content in self._contents(changed):
            entries[name] = self._read(name, states[name], content)
        self._entries = {name: entries[name] for name in states}

    def _contents(self, names: Iterable[str]) -> Iterator[tuple[str, Callable[[], bytes]]]:
        """Yield files with what reads them: from afar many at once."""
        if self.out.readers is None:
            return ((name, partial(self.out.read, name)) for name in names)
        return map_in_threads(self.out.read, names, threads=self.out.readers)

    def _read(self, name: str, state: object, content: Callable[[], bytes]) -> _IndexedRecord:
        from visattn.viz.html.index_page import index_card

        try:
            record = parse_json(decode_utf8(content()))
            made = record[PROVENANCE]
            if not self.out.renames and not all(map(self.out.exists, made["files"])):
                return _IndexedRecord(state)  # its files are still being uploaded
            card = None if record.get(CARD) is None else Card(**record[CARD])
            if card is not None and ".." in card.page.split("/"):
                return _IndexedRecord(state)  # its page is not in the folder
            kind = self._kind_of(made["command"])
            command = "" if kind is None else made["command"]
            rows = () if kind is None else tuple(_table_rows(kind, record))
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            # Kept without card and rows, so that it is read again only when it changes.
            return _IndexedRecord(state)  # of something else, or just being replaced
        if card is None:
            return _IndexedRecord(state, None, 0, command, rows)
        size = len(index_card(card).encode())
        self._keep_thumbnail(name, state, card.thumbnail)
        return _IndexedRecord(state, card._replace(thumbnail=""), size, command, rows)

    def _keep_thumbnail(self, name: str, state: object, thumbnail: str) -> None:
        """Keep the thumbnail of a card, in place of that read first if a page of them is kept."""
        _, before = self._thumbnails.pop(name, (state, ""))
        self._thumbnails[name] = state, thumbnail
        self._kept_bytes += len(thumbnail) - len(before)
        while self._kept_bytes > _PAGE_BYTES:
            _, dropped = self._thumbnails.pop(next(iter(self._thumbnails)))
            self._kept_bytes -= len(dropped)

    def _table(self, command: str) -> list[Row]:
        """Return the rows of all results of a command, by the names of their records."""
        from visattn.viz.html.index_page import index_order

        own = (name for name, entry in self._entries.items() if entry.command == command)
        names = sorted(own, key=lambda name: index_order(Card(name, "", "", "")))
        return [row for name in names for row in self._entries[name].rows]

    def _layout(self) -> list[list[str]]:
        """Return the records whose cards are shown, in pages of limited size."""
        from visattn.viz.html.index_page import index_order

        best: dict[tuple[str, str], str] = {}
        for name, entry in sorted(self._entries.items()):
            if entry.card is None or not self.out.exists(entry.card.page):
                continue
            key = (str(PurePosixPath(name).parent), entry.card.name)
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
        from visattn.viz.html.index_page import IndexRange, index_file, numbered_index_page

        layout = self._layout()
        if not layout[0] and not self.out.exists(INDEX):
            return
        ranges = [IndexRange.of([self._card(name) for name in page]) for page in layout]
        for number, (names, signature) in enumerate(
            zip(layout, self._signatures(layout, ranges), strict=True), start=1
        ):
            file = index_file(number)
            present = self.out.exists(file)
            if present and self._written.get(number) == (signature, self.out.state(file)):
                continue
            entries = [self._with_thumbnail(name) for name in names]
            shown = ranges if number == 1 else ranges[: number + 1]
            search = _SEARCHED.get(self.command, "texts")
            page = numbered_index_page(entries, number, shown, title=self.title, search=search)
            content = page.encode()
            _check_page(self.out, file)
            if not present or self.out.read(file) != content:
                self.out.write(file, content)
            self._written[number] = (signature, self.out.state(file))
        number = len(layout) + 1
        while _is_index_page(self.out, file := index_file(number)):
            self.out.remove(file)
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
        return Card(**self.out.read_json(name)[CARD])


def _table_rows(kind: RecordKind, record: Record) -> Iterator[Row]:
    """Yield the rows of a record with the name of its image, its files and what was seen."""
    made = record[PROVENANCE]
    more: dict[str, object] = {"files": "; ".join(made["files"])}
    if (share := kind.seen_share(record)) is not None:
        more = {SEEN: share, **more}
    return ({"image": made["image"], **row, **more} for row in kind.table(record))


def check_index(out: Output) -> None:
    """Refuse a folder or store with an index that visattn did not write.

    Raises:
        ValueError: If there is one.

    Example:
        >>> check_index(open_output(Path("no_such_folder")))
    """
    _check_page(out, INDEX)


def has_index(out: Output) -> bool:
    """Return whether a folder or store has an index of visattn.

    Example:
        >>> has_index(open_output(Path("no_such_folder")))
        False
    """
    return _is_index_page(out, INDEX)


def _is_index_page(out: Output, name: str) -> bool:
    """Return whether a file is an index page of visattn."""
    from visattn.images.reader import is_index_page

    return out.exists(name) and is_index_page(name, out.open)


def _check_page(out: Output, name: str) -> None:
    """Refuse to replace a page that visattn did not write."""
    if out.exists(name) and not _is_index_page(out, name):
        raise ValueError(
            f"--out {out} has an {name} that visattn did not write and will not replace; choose "
            "another folder"
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


def describe_unfinished(written: Collection[str], stems: Iterable[Iterable[str]]) -> str:
    """Return how many images have no results yet, as the end of a sentence.

    Args:
        written: The records of the output folder.
        stems: Stems of the records of each image.

    Example:
        >>> describe_unfinished(["cat.json"], [["dog"], ["cat"]])
        '1 have no results yet'
    """
    missing = sum(any(f"{stem}.json" not in written for stem in each) for each in stems)
    return f"{missing:,} have no results yet" if missing else "all have results"


def _rank(card: Card) -> int:
    """Return how much the page of a card shows."""
    return max(
        (rank for rank, end in enumerate(_PAGE_ENDS, 1) if card.page.endswith(end)), default=0
    )
