"""HTML pages of a folder: a card for each image, and the history of a training."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from visattn.results.cards import Card
from visattn.viz.canvas import TRACK
from visattn.viz.heatmap import resize_image
from visattn.viz.html.document import (
    escape_text,
    file_url,
    image_data_url,
    path_url,
    render_page,
)
from visattn.viz.text import sanitize_text

_NAME, _CAPTION, _LISTED = 200, 300, 40  # characters
_CARD_ASPECT, _WIDE = 4 / 3, 1.2  # of index.css; of photos
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
    entries: Sequence[Card], number: int, pages: Sequence[IndexRange], *, title: str
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
            "search": "Search captions and names" + " on this page" * (len(pages) > 1),
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


def tile_images(
    images: Sequence[UInt8[np.ndarray, "_y _x 3"]], *, cut_first: bool = False
) -> UInt8[np.ndarray, "_y2 _x2 3"]:
    """Return up to four images as a mosaic with the proportions of a card, which cuts nothing off.

    Cells have the proportions of the first image; others have a margin. Of three images the first
    is larger. A single image is returned as it is.

    Args:
        images: RGB.
        cut_first: Whether the first of three may be cut to a strip above the others, if it is wide:
            the others are larger then.

    Example:
        >>> white = np.full((30, 40, 3), 255, np.uint8)
        >>> tile_images([white] * 4).shape, tile_images([white] * 3).shape
        ((30, 40, 3), (45, 60, 3))
    """
    if len(images) == 1:
        return images[0]
    height, width = images[0].shape[:2]
    cut = cut_first and width >= _WIDE * height
    cells = _cells(len(images[:4]), max(1, height // 2), max(1, width // 2), cut_first=cut)
    inner = [
        max(top + rows for top, _, rows, _ in cells),
        max(left + columns for _, left, _, columns in cells),
    ]
    outer = (
        max(inner[0], round(inner[1] / _CARD_ASPECT)),
        max(inner[1], round(inner[0] * _CARD_ASPECT)),
    )
    mosaic = np.full((*outer, 3), TRACK, np.uint8)
    margin = [(whole - used) // 2 for whole, used in zip(outer, inner, strict=True)]
    for image, (top, left, *cell) in zip(images, cells, strict=False):
        if image is images[0] and cut and len(cells) == 3:  # the middle of the photo
            rows = min(height, round(cell[0] * width / cell[1]))
            image = image[(height - rows) // 2 :][:rows]
        share = min(cell[0] / image.shape[0], cell[1] / image.shape[1])
        fitted = [max(1, round(share * side)) for side in image.shape[:2]]
        size = cell if image.shape == images[0].shape else fitted
        y = margin[0] + top + (cell[0] - size[0]) // 2
        x = margin[1] + left + (cell[1] - size[1]) // 2
        mosaic[y : y + size[0], x : x + size[1]] = resize_image(image, (size[0], size[1]))
    return mosaic


def _cells(
    count: int, height: int, width: int, *, cut_first: bool
) -> list[tuple[int, int, int, int]]:
    """Return top, left, height and width of the cells of a mosaic of two to four images."""
    # Where the images lie, by their number:
    #
    #     2, wide     2, tall     3          3, first cut     4
    #       0           0 1       0 0 1         0 0           0 1
    #       1                     0 0 2         1 2           2 3
    if count == 4:
        return [(y, x, height, width) for y in (0, height) for x in (0, width)]
    if count == 2 and width > height:
        return [(0, 0, height, width), (height, 0, height, width)]
    if count == 2:
        return [(0, 0, height, width), (0, width, height, width)]
    if not cut_first:
        return [(0, 0, 2 * height, 2 * width), (0, 2 * width, height, width),
                (height, 2 * width, height, width)]  # fmt: skip
    strip = min(2 * height, max(1, round(2 * width / _CARD_ASPECT) - height))
    return [(0, 0, strip, 2 * width), (strip, 0, height, width), (strip, width, height, width)]


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


class HistoryRow(NamedTuple):
    """An image and its maps over the steps of a training."""

    name: str
    image: str
    """The image, as a data URL."""
    maps: Sequence[str]
    """Its map after each of the steps, as data URLs; "" for a missing one."""
    notes: Sequence[str]
    """Text below each map: the class and its score, the range of colors; or why there is none."""


def history_page(
    rows: Sequence[HistoryRow],
    steps: Sequence[int],
    *,
    num_steps: int,
    method: str,
    legend: str = "",
) -> str:
    """Return a page with a row for each image and a column for each logged step.

    Args:
        rows: The images.
        steps: Steps of the maps, in order.
        num_steps: Number of logged steps, of which `steps` may be a selection.
        method: Title of the method.
        legend: The colors from the lower to the upper end, as a data URL.

    Example:
        >>> row = HistoryRow("cat", "data:,", ["data:,", ""], ["cat 0.9", "not logged"])
        >>> page = history_page([row], [0, 500], num_steps=2, method="gradcam")
        >>> page.count("<img"), "step 500" in page
        (2, True)
    """
    chosen = f"{len(steps)} of {num_steps}" if len(steps) < num_steps else f"{num_steps}"
    head = "".join(f'<th scope="col">step {step:,}</th>' for step in steps)
    return render_page(
        "history.html",
        styles=["paper.css", "history.css"],
        scripts=[],
        data={},
        texts={
            "title": f"Attention during training: {method}",
            "count": f"{chosen} logged steps. The ends of the colors stand below each map.",
        },
        markup={
            "head": head,
            "rows": "\n".join(_row(row, steps) for row in rows),
            "legend": _LEGEND.format(escape_text(legend)) if legend else "",
        },
    )


_LEGEND = (
    '<p class="legend">lower end <img src="{}" width="220" height="12" alt="colors from gray over '
    'purple and orange to cream"> upper end</p>'
)


def _row(row: HistoryRow, steps: Sequence[int]) -> str:
    name = escape_text(row.name)
    texts = [escape_text(f"{row.name} after step {step:,}: {note}")
             for step, note in zip(steps, row.notes, strict=True)]  # fmt: skip
    cells = "".join(map(_cell, row.maps, row.notes, texts))
    image = f'<img src="{escape_text(row.image)}" alt="{name}">'
    return f'<tr><th scope="row">{image}{name}</th>{cells}</tr>'


def _cell(url: str, note: str, text: str) -> str:
    image = f'<img src="{escape_text(url)}" alt="{text}" loading="lazy">' if url else ""
    return f"<td>{image}<p>{escape_text(note)}</p></td>"
