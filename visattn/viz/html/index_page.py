"""A page with a card for each photo of a folder."""

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
from jaxtyping import UInt8

from visattn.viz.html.document import escaped_text, file_address, image_address, sealed_document
from visattn.viz.html.safe_text import shown_text
from visattn.viz.maps.legend import TRACK
from visattn.viz.maps.resize import resized_image

_NAME, _CAPTION = 200, 300  # characters
_THUMBNAIL = 320  # pixels: a thousand of them make a page of some ten megabytes


class IndexEntry(NamedTuple):
    """A card of an index."""

    name: str
    """As people know the photo."""
    page: str
    """Name of the file beside the index that shows it."""
    caption: str
    thumbnail: str
    """As `thumbnail` makes it."""


def index_page(entries: Sequence[IndexEntry], *, title: str = "Captions") -> str:
    """Return a page with a card for each photo, sorted by name, and a box to search their words.

    Args:
        entries: In any order; numbers in names count as numbers.
        title: Stands above the cards.

    Example:
        >>> page = index_page([IndexEntry("50 %", "50 %.html", "a dog", "data:image/jpeg;base64,")])
        >>> 'href="./50%20%25.html"' in page, "1 photo" in page
        (True, True)
    """
    ordered = sorted(entries, key=lambda entry: (_natural(entry.name), entry.page))
    return sealed_document(
        "index.html",
        styles=["paper.css", "index.css"],
        scripts=["index.js"],
        data={},
        texts={"title": shown_text(title, _NAME), "count": _counted(len(ordered))},
        markup={"cards": "\n".join(map(_card, ordered))},
    )


def index_entries(page: str) -> list[IndexEntry]:
    """Return the entries of a page that `index_page` made, so that others can join them.

    Raises:
        ValueError: If something else made the page.

    Example:
        >>> dog = IndexEntry("50 %", "50 %.html", "a <dog>", "data:image/jpeg;base64,")
        >>> index_entries(index_page([dog])) == [dog]
        True
    """
    reader = _CardReader()
    reader.feed(page)
    if not reader.ours:
        raise ValueError("this is no index that visattn made")
    return [IndexEntry(**card) for card in reader.cards]


def thumbnail(image: UInt8[np.ndarray, "y x 3"]) -> str:
    """Return a small copy of an image, as an address that holds it.

    Example:
        >>> thumbnail(np.zeros((30, 40, 3), np.uint8)).startswith("data:image/jpeg;base64,")
        True
    """
    return image_address(image, longest=_THUMBNAIL, quality=72)[0]


def tiled(images: Sequence[UInt8[np.ndarray, "y x 3"]]) -> UInt8[np.ndarray, "y2 x2 3"]:
    """Return images of one size as one about as large; of several the first four, two by two.

    Example:
        >>> white = np.full((4, 6, 3), 255, np.uint8)
        >>> tiled([white, white]).shape, int((tiled([white, white]) == 255).sum())
        ((4, 6, 3), 36)
    """
    if len(images) == 1:
        return images[0]
    height, width = images[0].shape[:2]
    half = (max(1, height // 2), max(1, width // 2))
    whole = np.empty((2 * half[0], 2 * half[1], 3), np.uint8)
    whole[:] = TRACK
    for at, image in enumerate(images[:4]):
        top, left = at // 2 * half[0], at % 2 * half[1]
        whole[top : top + half[0], left : left + half[1]] = resized_image(image, half)
    return whole


def _card(entry: IndexEntry) -> str:
    name = escaped_text(shown_text(entry.name, _NAME))
    caption = escaped_text(shown_text(entry.caption, _CAPTION))
    return (
        f'<li><a class="photo" href="{file_address(entry.page)}">'
        f'<img src="{escaped_text(entry.thumbnail)}" alt="" loading="lazy" decoding="async">'
        f'<span class="caption" lang="" dir="auto">{caption}</span>'
        f'<span class="name" lang="" dir="auto">{name}</span></a></li>'
    )


def _counted(count: int) -> str:
    return f"{count:,} photo{'' if count == 1 else 's'}"


def _natural(name: str) -> list[tuple[int, str]]:
    """Return what sorts photo 9 before photo 10: numbers by their length first."""
    return [
        (len(part.lstrip("0")) if part.isdecimal() else 0, part.casefold())
        for part in re.split(r"(\d+)", name)
    ]


class _CardReader(HTMLParser):
    """Finds the cards of a page that `index_page` made."""

    def __init__(self) -> None:
        super().__init__()
        self.ours = False
        self.cards: list[dict[str, str]] = []
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag == "meta" and told.get("name") == "generator":
            self.ours = told.get("content") == "visattn"
        elif tag == "a" and told.get("class") == "photo":
            page = unquote(told.get("href") or "").removeprefix("./")
            self.cards.append({"name": "", "page": page, "caption": "", "thumbnail": ""})
        elif tag == "img" and self.cards:
            self.cards[-1]["thumbnail"] = told.get("src") or ""
        self._text = (told.get("class") or "") if tag == "span" else ""

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 (the parser hands it over)
        self._text = ""

    def handle_data(self, data: str) -> None:
        if self.cards and self._text in ("caption", "name"):
            self.cards[-1][self._text] = data
