"""HTML pages of a folder, with a card for each image."""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from visattn.results.kinds import Card
from visattn.viz.html.document import (
    escape_text,
    image_data_url,
    path_url,
    render_page,
)
from visattn.viz.text import join_notes, sanitize_text

_NAME, _CAPTION = 200, 300  # characters
_THUMBNAIL = 320  # pixels; 1,000 thumbnails take about 10 MB


def index_page(
    entries: Sequence[Card],
    *,
    title: str = "Captions",
    about: Sequence[str] = (),
    first: Sequence[str] = (),
) -> str:
    """Return a page with a card for each image, and a search field.

    Cards are sorted by name; the page can also sort by class or probability, with errors first.

    Args:
        entries: Entries in any order; numbers in names are sorted numerically.
        title: Title of the page.
        about: Facts about all images: model, command, date.
        first: Names of the cards that come first, in this order.

    Example:
        >>> page = index_page([Card("50 %", "50 %.html", "a dog", "data:image/jpeg;base64,")])
        >>> 'href="./50%20%25.html"' in page, "1 photo" in page
        (True, True)
    """
    rank = {name: place for place, name in enumerate(first)}
    entries = sorted(entries, key=lambda each: (rank.get(each.name, len(rank)), *_order(each)))
    count = len({entry.name for entry in entries})
    known = [each for each in entries if each.truth]
    right = sum(each.label == each.truth for each in known)
    accuracy = f"accuracy {right / len(known):.1%} of {len(known):,}" if known else ""
    return render_page(
        "index.html",
        styles=["paper.css", "index.css"],
        scripts=["index.js"],
        data={
            "labels": sorted({each.label for each in entries if each.label}),
            "sorts": [
                "photo" if first else "name",
                *(["class"] if any(each.label for each in entries) else []),
                *(["probability"] if any(each.probability for each in entries) else []),
                *(["wrong first"] if known else []),
            ],
        },
        heading=sanitize_text(title, _NAME),
        texts={
            "title": sanitize_text(title, _NAME),
            "count": f"{count:,} photo{'' if count == 1 else 's'}",
            "about": join_notes(*(sanitize_text(each, _CAPTION) for each in about), accuracy),
        },
        markup={"cards": "\n".join(map(_index_card, entries))},
    )


def thumbnail(image: UInt8[np.ndarray, "y x 3"]) -> str:
    """Return a thumbnail of an image as a data URL.

    Example:
        >>> thumbnail(np.zeros((30, 40, 3), np.uint8)).startswith("data:image/jpeg;base64,")
        True
    """
    # Reduce by an integer factor first, which halves the work without a visible difference.
    reduced = Image.fromarray(image).reduce(max(1, max(image.shape) // _THUMBNAIL))
    return image_data_url(np.asarray(reduced), longest=_THUMBNAIL, quality=64)[0]


def _index_card(entry: Card) -> str:
    """Return the markup of a card."""
    name = escape_text(sanitize_text(entry.name, _NAME))
    caption = escape_text(sanitize_text(entry.caption, _CAPTION))
    image = f'<img src="{escape_text(entry.thumbnail)}" alt="" loading="lazy" decoding="async">'
    wrong = f"wrong: {entry.truth}" if entry.truth and entry.truth != entry.label else ""
    noted = f'<span class="wrong">{escape_text(sanitize_text(wrong, _NAME))}</span>'
    facts = {"label": entry.label, "probability": entry.probability, "wrong": wrong}
    marks = "".join(
        f' data-{key}="{escape_text(str(value))}"' for key, value in facts.items() if value
    )
    return (
        f'<li{marks}><a class="photo" href="{path_url(entry.page)}">'
        f"{image if entry.thumbnail else ''}"
        f'<span class="caption" lang="" dir="auto">{caption}</span>{noted if wrong else ""}'
        f'<span class="name" lang="" dir="auto">{name}</span></a></li>'
    )


def _order(entry: Card) -> tuple[list[tuple[int, str]], str]:
    """Return the sort key of a card: photo 9 before photo 10."""
    natural = [
        # By the number of digits, then digit by digit, for numbers of any length.
        (len(part.lstrip("0")) if part.isdecimal() else 0, part.casefold())
        for part in re.split(r"(\d+)", entry.name)
    ]
    return natural, entry.page
