"""HTML pages of a folder, with a card for each image."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from visattn.results.cards import Card
from visattn.viz.html.document import (
    escape_text,
    file_url,
    image_data_url,
    path_url,
    render_page,
)
from visattn.viz.text import sanitize_text

_NAME, _CAPTION, _LISTED = 200, 300, 40  # characters
_THUMBNAIL = 320  # pixels; 1,000 thumbnails take about 10 MB


def index_page(entries: Sequence[Card], *, title: str = "Captions") -> str:
    """Return a page with a card for each image, sorted by name, and a search field.

    Args:
        entries: Entries in any order; numbers in names are sorted numerically.
        title: Title of the page.

    Example:
        >>> page = index_page([Card("50 %", "50 %.html", "a dog", "data:image/jpeg;base64,")])
        >>> 'href="./50%20%25.html"' in page, "1 photo" in page
        (True, True)
    """
    ordered = sorted(entries, key=index_order)
    return numbered_index_page(ordered, 1, [IndexRange.of(ordered)], title=title)


class IndexRange(NamedTuple):
    """The cards of one page of an index: how many, and the names of the first and the last."""

    size: int
    first: str = ""
    last: str = ""

    @classmethod
    def of(cls, entries: Sequence[Card]) -> "IndexRange":
        """Return the range of a page.

        Args:
            entries: Its entries, in order.
        """
        return cls(len(entries), *(entries[at].name for at in (0, -1) if entries))


def numbered_index_page(
    entries: Sequence[Card],
    number: int,
    pages: Sequence[IndexRange],
    *,
    title: str,
    search: str = "captions",
) -> str:
    """Return one page of an index that is split into several.

    The first page lists all others by the names of their first and last images; each links to the
    pages before and after it.

    Args:
        entries: Entries of the page, in order.
        number: Number of the page, from 1.
        pages: Range of each page, up to the page itself and, for the first page and to link to the
            next one, beyond.
        title: Title of the page.
        search: What the texts of the cards are, which can be searched.

    Example:
        >>> dogs = [Card(name, f"{name}.html", "", "") for name in ("a", "b")]
        >>> pages = [IndexRange.of([dog]) for dog in dogs]
        >>> 'href="./index-2.html"' in numbered_index_page(dogs[:1], 1, pages, title="Dogs")
        True
    """
    before = sum(page.size for page in pages[: number - 1])
    total = sum(page.size for page in pages)
    if len(pages) == 1:
        count = _count_text(len(entries))
    elif number == 1:
        count = f"{_count_text(total)}, {len(entries):,} of them on this page"
    else:
        count = f"photos {before + 1:,} to {before + len(entries):,}"
    return render_page(
        "index.html",
        styles=["paper.css", "index.css"],
        scripts=["index.js"],
        data={},
        texts={
            "title": sanitize_text(title, _NAME),
            "count": count,
            "search": f"Search {search} and names" + " on this page" * (len(pages) > 1),
        },
        markup={
            "cards": "\n".join(map(index_card, entries)),
            "pages": _page_links(number, pages),
            "list": _page_list(pages) if number == 1 else "",
        },
    )


def index_file(number: int) -> str:
    """Return the file name of a page of an index.

    Args:
        number: Number of the page, from 1.

    Example:
        >>> index_file(1), index_file(2)
        ('index.html', 'index-2.html')
    """
    return "index.html" if number == 1 else f"index-{number}.html"


def index_order(entry: Card) -> tuple[list[tuple[int, str]], str]:
    """Return the sort key of an entry: photo 9 before photo 10."""
    return _natural_sort_key(entry.name), entry.page


def thumbnail(image: UInt8[np.ndarray, "y x 3"]) -> str:
    """Return a thumbnail of an image as a data URL.

    Example:
        >>> thumbnail(np.zeros((30, 40, 3), np.uint8)).startswith("data:image/jpeg;base64,")
        True
    """
    return image_data_url(image, longest=_THUMBNAIL, quality=72)[0]


def index_card(entry: Card) -> str:
    """Return the markup of a card."""
    name = escape_text(sanitize_text(entry.name, _NAME))
    caption = escape_text(sanitize_text(entry.caption, _CAPTION))
    return (
        f'<li><a class="photo" href="{path_url(entry.page)}">'
        f'<img src="{escape_text(entry.thumbnail)}" alt="" loading="lazy" decoding="async">'
        f'<span class="caption" lang="" dir="auto">{caption}</span>'
        f'<span class="name" lang="" dir="auto">{name}</span></a></li>'
    )


def _page_links(number: int, pages: Sequence[IndexRange]) -> str:
    """Return links to the first, the previous and the next page, if there are several."""
    if len(pages) == 1:
        return ""
    targets = {"First": 1, "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK} Previous": number - 1}
    links = [] if number == 1 else list(targets.items())
    if number < len(pages):
        links.append(("Next \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}", number + 1))
    anchors = [f'<a href="{file_url(index_file(target))}">{text}</a>' for text, target in links]
    here = f'<span aria-current="page">Page {number:,}</span>'
    return f'<nav class="pages" aria-label="Pages">{"".join([here, *anchors])}</nav>'


def _page_list(pages: Sequence[IndexRange]) -> str:
    """Return links to all pages, by the names of their first and last images."""
    if len(pages) == 1:
        return ""
    rows = "".join(
        f'<li><a href="{file_url(index_file(number))}">{_shown_name(page.first)} '
        f"\N{EN DASH} {_shown_name(page.last)}</a></li>"
        for number, page in enumerate(pages, start=1)
    )
    summary = f"All {len(pages):,} pages by name"
    return f'<details class="list"><summary>{summary}</summary><ol>{rows}</ol></details>'


def _shown_name(name: str) -> str:
    return escape_text(sanitize_text(name, _LISTED))


def _count_text(count: int) -> str:
    return f"{count:,} photo{'' if count == 1 else 's'}"


def _natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Return a natural sort key: photo 9 before photo 10."""
    return [
        # By the number of digits, then digit by digit: numbers of any length.
        (len(part.lstrip("0")) if part.isdecimal() else 0, part.casefold())
        for part in re.split(r"(\d+)", name)
    ]
