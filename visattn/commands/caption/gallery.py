"""A folder of captioned photos: files for each, and an index of them all."""

import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.folders import folder_lock, png, prepare_folder, write_whole

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    from types import TracebackType

    import numpy as np

    from visattn.data.images.reader import LoadedImage
    from visattn.data.phrases.phrases import Phrase
    from visattn.pipelines.captioning import Caption
    from visattn.viz.html.index_page import IndexEntry

SUFFIXES = (".png", ".html", ".json", ".npz", ".gif")
INDEX = "index.html"
_SHARE = 0.1  # of the time, at most, goes into keeping the index up to date


class Gallery:
    """Writes what is known of photos into a folder, each file at once, and keeps its index.

    On leaving, for whatever reason, the index shows all photos whose page is there, those of
    earlier runs too.

    Args:
        folder: Is made if it is not there.
        moving: Whether each photo also gets a GIF.
        regions: Phrases with boxes by the name of the photo's file.

    Raises:
        OSError: If the folder cannot be written.
        ValueError: If it holds an index that something else made.

    Example:
        >>> with Gallery(getfixture("tmp_path") / "new") as gallery:
        ...     [path.name for path in gallery.folder.iterdir()]
        []
    """

    def __init__(
        self,
        folder: Path,
        *,
        moving: bool = False,
        regions: "Mapping[str, Sequence[Phrase]] | None" = None,
    ) -> None:
        self.folder, self.moving, self.regions = folder, moving, regions
        prepare_folder(folder)
        self._index = ImageIndex(folder)

    def __enter__(self) -> "Gallery":
        """Return itself."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: "TracebackType | None",
    ) -> None:
        """Write the index."""
        self._index.write()

    def add(self, name: str, image: "LoadedImage", caption: "Caption") -> None:
        """Write the files of a photo, its page last.

        Args:
            name: Of the files, without suffix.
            image: Is named after its own file.
            caption: With its alternatives, which the page shows too.

        Raises:
            OSError: If a file cannot be written.
            ValueError: If the caption cannot be shown.
        """
        from visattn.pipelines.draw_captions import panel
        from visattn.pipelines.draw_pages import animation, page

        known = (self.regions or {}).get(Path(image.name).name, ())
        self._write(f"{name}.png", png(panel(image, caption)))
        self._write(f"{name}.json", _json(image, caption, known))
        self._write(f"{name}.npz", _arrays(caption))
        if self.moving:
            self._write(f"{name}.gif", animation(image, caption))
        html = page(image, caption, regions=known, name=name, index=INDEX)
        self._write(f"{name}.html", html.encode())
        self._index.add(name, f"{name}.html", caption.text, [_seen_in_all(image, caption)])

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self.folder / name, content)


class ImageIndex:
    """Keeps the index of a folder up to date: a card for each image, those of earlier runs too.

    On leaving, for whatever reason, it is written.

    Args:
        folder: In which it lies.
        title: Stands above the cards.

    Raises:
        ValueError: If something else made the index that is there.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> with ImageIndex(folder, "Attention") as index:
        ...     index.add("dog", "dog.png", "a dog", [np.zeros((3, 4, 3), np.uint8)])
        >>> [path.name for path in folder.iterdir()]
        ['index.html']
    """

    def __init__(self, folder: Path, title: str = "Captions") -> None:
        self.folder, self.title = folder, title
        self._entries = {entry.page: entry for entry in earlier_entries(folder / INDEX)}
        self._due, self._news = 0.0, False

    def __enter__(self) -> "ImageIndex":
        """Return itself."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: "TracebackType | None",
    ) -> None:
        """Write the index."""
        self.write()

    def __contains__(self, page: str) -> bool:
        """Whether a page has its card."""
        return page in self._entries

    def add(self, name: str, page: str, caption: str, shown: "Sequence[np.ndarray]") -> None:
        """Add a card, or put it in place of an earlier one of the same page.

        Args:
            name: Of the image, as people know it.
            page: File beside the index that shows it.
            caption: What is said of it.
            shown: The image with its map on it; or several, of which four have room.

        Raises:
            OSError: If the index cannot be written.
        """
        from visattn.viz.html.index_page import IndexEntry, thumbnail, tiled

        entry = IndexEntry(name, page, caption, thumbnail(tiled(shown)))
        self._entries[page], self._news = entry, True
        if time.monotonic() >= self._due:
            self.write()

    def write(self) -> None:
        """Write the index, if there is something new, and say when it may be written again."""
        if not self._news:
            return
        from visattn.viz.html.index_page import index_page

        start = time.monotonic()
        with folder_lock(self.folder):  # another command may add its images to the same index
            for entry in earlier_entries(self.folder / INDEX):
                self._entries.setdefault(entry.page, entry)
            content = index_page([*self._entries.values()], title=self.title).encode()
            write_whole(self.folder / INDEX, content)
        self._news = False
        end = time.monotonic()
        self._due = end + (end - start) / _SHARE


def _seen_in_all(image: "LoadedImage", caption: "Caption") -> "np.ndarray":
    """Return the photo with what was looked at for all words together."""
    import numpy as np

    from visattn.pipelines.draw_captions import overlay

    maps = caption.maps
    if not len(maps):
        return image.pixels
    mean = replace(maps, values=maps.values.mean(0), labels=())
    return np.array(overlay(image, mean, opacity=0.6))


def earlier_entries(index: Path) -> "list[IndexEntry]":
    """Return the entries of an index whose pages are still there.

    Raises:
        ValueError: If something else made the index.

    Example:
        >>> earlier_entries(Path("no_such_folder", "index.html"))
        []
    """
    if not index.exists():
        return []
    from visattn.io.safe_text import bounded_bytes, plain_text
    from visattn.viz.html.index_page import index_entries

    try:
        entries = index_entries(plain_text(bounded_bytes(index)))
    except ValueError as error:
        raise ValueError(
            f"--out {index.parent} has an {INDEX} that visattn did not write and will not replace; "
            "choose another folder"
        ) from error
    return [entry for entry in entries if (index.parent / entry.page).is_file()]


def _json(image: "LoadedImage", caption: "Caption", known: "Sequence[Phrase]") -> bytes:
    geometry = caption.maps.geometry
    first, *others = (_numbers(one, known) for one in (caption, *caption.alternatives))
    told = {
        "image": image.name,
        **first,
        "geometry": None if geometry is None else geometry.to_dict(),
        "alternatives": others,
    }
    return json.dumps(told, allow_nan=False).encode() + b"\n"


def _numbers(caption: "Caption", known: "Sequence[Phrase]") -> dict[str, Any]:
    """Return a caption as JSON holds it; each map is a grid of shares that sum to one."""
    from visattn.pipelines.draw_pages import judged_phrases

    return {
        "caption": caption.text,
        "tokens": list(caption.words),
        "log_probabilities": list(caption.log_probabilities),
        "gates": list(caption.gates),
        "finished": caption.finished,
        "score": caption.score,
        "maps": caption.maps.values.tolist(),
        "phrases": [
            {"text": " ".join(caption.words[one.first : one.first + one.words]), **one._asdict()}
            for one in judged_phrases(caption, known)
        ],
    }


def _arrays(caption: "Caption") -> bytes:
    """Return captions as NumPy's arrays, none of which needs pickle; the second ends in _2."""
    import numpy as np

    arrays: dict[str, Any] = {}
    for number, one in enumerate((caption, *caption.alternatives), start=1):
        end = "" if number == 1 else f"_{number}"
        arrays |= {
            f"maps{end}": one.maps.values.numpy(),
            f"words{end}": np.array(one.words, dtype=np.str_),
            f"gates{end}": np.array(one.gates),
            f"log_probabilities{end}": np.array(one.log_probabilities),
            f"score{end}": np.array(one.score),
        }
    if caption.maps.geometry is not None:
        arrays["geometry"] = np.array(json.dumps(caption.maps.geometry.to_dict()))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()
