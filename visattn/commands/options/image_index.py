"""Index of an output folder: one card per image, in pages that are kept up to date across runs."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from visattn.commands.options.folders import folder_lock
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np

    from visattn.viz.html.index_page import IndexEntry, IndexRange

    _Card = tuple[IndexEntry, int]
    """An entry without its thumbnail, and the bytes of its card."""

INDEX = "index.html"
_MAX_TIME_SHARE = 0.1  # of the running time that is spent on updates of the index
_PAGE_BYTES = 4_000_000  # of the cards of a page


class ImageIndex(AbstractContextManager["ImageIndex"]):
    """Index with a card per image, sorted by name; cards of earlier runs are kept.

    A long index is split into pages of about 4 MB, `index.html`, `index-2.html` and so on. They are
    written at intervals, and when the context is left for any reason; a page whose cards are the
    same is not written again. Thumbnails of written pages are not kept in memory.

    Args:
        folder: Folder of the pages.
        title: Heading of the pages.

    Raises:
        ValueError: If the folder has an index.html that visattn did not write.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> with ImageIndex(folder, "Attention") as index:
        ...     index.add("dog", "dog.png", "a dog", card_image([np.zeros((3, 4, 3), np.uint8)]))
        >>> [path.name for path in folder.iterdir()]
        ['index.html']
    """

    def __init__(self, folder: Path, title: str = "Captions") -> None:
        self.folder, self.title = folder, title
        self._pages: dict[int, _Page] = {}
        self._links: set[str] = set()
        self._new: dict[str, IndexEntry] = {}
        self._next_write = 0.0
        self._read_changed_pages()

    def __exit__(self, *_exception: object) -> None:
        """Write the index."""
        self.write()

    def __contains__(self, page: str) -> bool:
        """Whether the index has a card that links to a page."""
        return page in self._links or page in self._new

    def add(self, name: str, page: str, caption: str, thumbnail: str) -> None:
        """Add the card of an image, in place of an earlier one that may link to another page.

        Args:
            name: Name of the image.
            page: File in the same folder to which the card links.
            caption: Text of the card.
            thumbnail: Data URL, from `card_image`.

        Raises:
            OSError: If the index cannot be written.
        """
        from visattn.viz.html.index_page import IndexEntry

        self._new[page] = IndexEntry(name, page, caption, thumbnail)
        if time.monotonic() >= self._next_write:
            self.write()

    def write(self) -> None:
        """Write the pages that have changed, and schedule the next write."""
        if not self._new:
            return
        start = time.monotonic()
        with folder_lock(self.folder):  # another process may update the same index
            self._read_changed_pages()
            self._write_changed_pages()
        self._new.clear()
        end = time.monotonic()
        self._next_write = end + (end - start) / _MAX_TIME_SHARE

    def _read_changed_pages(self) -> None:
        """Read the cards of pages that another process has written, without their thumbnails."""
        pages: dict[int, _Page] = {}
        for number, path in _page_paths(self.folder):
            state, known = _file_state(path), self._pages.get(number)
            if known is None or known.state != state:
                cards = [_light(entry) for entry in _read_page(path)]
                exist = {entry.page for entry, _ in cards if (self.folder / entry.page).is_file()}
                known = _Page(state, cards, exist)
            pages[number] = known
        self._pages = pages
        self._links = {link for page in pages.values() for link in page.exist}

    def _write_changed_pages(self) -> None:
        """Write new cards into their pages, and all pages whose cards or links have changed."""
        from visattn.viz.html.index_page import IndexRange, index_file, numbered_index_page

        layout = self._layout()
        ranges = [IndexRange.of([entry for entry, _ in page]) for page in layout]
        old = [[card[0] for card in page.cards] for page in self._pages.values()]
        known = _signatures(old, [IndexRange.of(page) for page in old])
        wanted = _signatures([[entry for entry, _ in page] for page in layout], ranges)
        thumbnails: dict[str, str] = {}
        for number, (page, signature) in enumerate(zip(layout, wanted, strict=True), start=1):
            path = self.folder / index_file(number)
            fresh = any(entry.page in self._new for entry, _ in page)
            if not fresh and number in self._pages and known[number - 1] == signature:
                continue
            if path.exists():  # what is overwritten may belong to another page now
                thumbnails |= {entry.page: entry.thumbnail for entry in _read_page(path)}
            entries = [self._with_thumbnail(entry, thumbnails) for entry, _ in page]
            shown = ranges if number == 1 else ranges[: number + 1]
            content = numbered_index_page(entries, number, shown, title=self.title)
            atomic_write(path, content.encode())
            links = {entry.page for entry, _ in page}
            self._pages[number] = _Page(_file_state(path), page, links)
        for number in [number for number in self._pages if number > len(layout)]:
            (self.folder / index_file(number)).unlink(missing_ok=True)
            del self._pages[number]
        self._links = {entry.page for page in layout for entry, _ in page}

    def _layout(self) -> "list[list[_Card]]":
        """Return all cards, old and new, in pages of limited size."""
        from visattn.viz.html.index_page import index_order

        replaced = {entry.name for entry in self._new.values()}
        cards = {
            card[0].page: card
            for page in self._pages.values()
            for card in page.cards
            if card[0].page in page.exist and card[0].name not in replaced
        }
        cards |= {link: _light(entry) for link, entry in self._new.items()}
        layout: list[list[_Card]] = [[]]
        room = _PAGE_BYTES
        for card in sorted(cards.values(), key=lambda card: index_order(card[0])):
            if card[1] > room and layout[-1]:
                layout.append([])
                room = _PAGE_BYTES
            layout[-1].append(card)
            room -= card[1]
        return layout

    def _with_thumbnail(self, entry: "IndexEntry", thumbnails: dict[str, str]) -> "IndexEntry":
        """Return an entry with its thumbnail, which is new or on one of the pages."""
        if entry.page in self._new:
            return self._new[entry.page]
        if entry.page not in thumbnails:  # pages before this one have shrunk
            number = next(
                number
                for number, page in self._pages.items()
                if any(each.page == entry.page for each, _ in page.cards)
            )
            from visattn.viz.html.index_page import index_file

            read = _read_page(self.folder / index_file(number))
            thumbnails |= {each.page: each.thumbnail for each in read}
        return entry._replace(thumbnail=thumbnails.pop(entry.page, ""))


class _Page(NamedTuple):
    """A page of an index as it was last read or written."""

    state: tuple[int, int]
    cards: "list[_Card]"
    exist: set[str]
    """Links of the cards whose files exist."""


def card_image(images: "Sequence[np.ndarray]") -> str:
    """Return the thumbnail of a card as a data URL.

    Args:
        images: The image with its map; or several, of which four are shown.
    """
    from visattn.viz.html.index_page import thumbnail, tile_images

    return thumbnail(tile_images(images))


def read_index_entries(folder: Path) -> "list[IndexEntry]":
    """Return the entries of all pages of an index whose own pages still exist.

    Raises:
        ValueError: If visattn did not write the index.

    Example:
        >>> read_index_entries(Path("no_such_folder"))
        []
    """
    entries = (entry for _, path in _page_paths(folder) for entry in _read_page(path))
    return [entry for entry in entries if (folder / entry.page).is_file()]


def _page_paths(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield number and path of the pages of an index."""
    from visattn.viz.html.index_page import index_file

    for number in itertools.count(1):
        path = folder / index_file(number)
        if not path.exists():
            return
        yield number, path


def _read_page(path: Path) -> "list[IndexEntry]":
    from visattn.io.safe_text import decode_utf8, read_bytes_bounded
    from visattn.viz.html.index_page import parse_index_page

    try:
        return parse_index_page(decode_utf8(read_bytes_bounded(path)))
    except ValueError as error:
        raise ValueError(
            f"--out {path.parent} has an {path.name} that visattn did not write and will not "
            "replace; choose another folder"
        ) from error


def _file_state(path: Path) -> tuple[int, int]:
    """Return what changes whenever a file is replaced: its inode, and the time of its writing."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _light(entry: "IndexEntry") -> "_Card":
    """Return an entry without its thumbnail, and the bytes of its card."""
    from visattn.viz.html.index_page import index_card

    return entry._replace(thumbnail=""), len(index_card(entry).encode())


def _signatures(
    pages: "Sequence[Sequence[IndexEntry]]", ranges: "Sequence[IndexRange]"
) -> list[object]:
    """Return for each page what its content depends on, besides new cards."""
    count = 0
    signatures: list[object] = []
    for number, page in enumerate(pages, start=1):
        links = [entry.page for entry in page]
        more = ranges if number == 1 else number < len(pages)
        signatures.append((links, count, more))
        count += len(page)
    return signatures
