"""Index page of an output folder: one card per image, kept up to date across runs."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options.folders import folder_lock
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np

    from visattn.viz.html.index_page import IndexEntry

INDEX = "index.html"
_MAX_TIME_SHARE = 0.1  # of the running time that is spent on updates of the index


class ImageIndex(AbstractContextManager["ImageIndex"]):
    """Index page with a card per image; cards of earlier runs are kept.

    The page is written at intervals, and when the context is left for any reason.

    Args:
        folder: Folder of the page.
        title: Heading of the page.

    Raises:
        ValueError: If the folder has an index.html that visattn did not write.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> with ImageIndex(folder, "Attention") as index:
        ...     index.add("dog", "dog.png", "a dog", [np.zeros((3, 4, 3), np.uint8)])
        >>> [path.name for path in folder.iterdir()]
        ['index.html']
    """

    def __init__(self, folder: Path, title: str = "Captions") -> None:
        self.folder, self.title = folder, title
        self._entries = {entry.page: entry for entry in read_index_entries(folder / INDEX)}
        self._next_write, self._changed = 0.0, False

    def __exit__(self, *_exception: object) -> None:
        """Write the index."""
        self.write()

    def __contains__(self, page: str) -> bool:
        """Whether the index has a card that links to a page."""
        return page in self._entries

    def add(self, name: str, page: str, caption: str, images: "Sequence[np.ndarray]") -> None:
        """Add a card, or replace the card of the same page.

        Args:
            name: Name of the image.
            page: File in the same folder to which the card links.
            caption: Text of the card.
            images: The image with its map; or several, of which four are shown.

        Raises:
            OSError: If the index cannot be written.
        """
        from visattn.viz.html.index_page import IndexEntry, thumbnail, tile_images

        self._entries[page] = IndexEntry(name, page, caption, thumbnail(tile_images(images)))
        self._changed = True
        if time.monotonic() >= self._next_write:
            self.write()

    def write(self) -> None:
        """Write the index if it has changed, and schedule the next write."""
        if not self._changed:
            return
        from visattn.viz.html.index_page import index_page

        start = time.monotonic()
        with folder_lock(self.folder):  # another process may update the same index
            for entry in read_index_entries(self.folder / INDEX):
                self._entries.setdefault(entry.page, entry)
            atomic_write(
                self.folder / INDEX, index_page([*self._entries.values()], title=self.title)
            )
        self._changed = False
        end = time.monotonic()
        self._next_write = end + (end - start) / _MAX_TIME_SHARE


def read_index_entries(index: Path) -> "list[IndexEntry]":
    """Return the entries of an index page whose pages still exist.

    Raises:
        ValueError: If visattn did not write the index.

    Example:
        >>> read_index_entries(Path("no_such_folder", "index.html"))
        []
    """
    if not index.exists():
        return []
    from visattn.io.safe_text import decode_utf8, read_bytes_bounded
    from visattn.viz.html.index_page import parse_index_page

    try:
        entries = parse_index_page(decode_utf8(read_bytes_bounded(index)))
    except ValueError as error:
        raise ValueError(
            f"--out {index.parent} has an {INDEX} that visattn did not write and will not replace; "
            "choose another folder"
        ) from error
    return [entry for entry in entries if (index.parent / entry.page).is_file()]
