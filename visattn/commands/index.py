"""Index and table of an output folder, made from the records of its results."""

import csv
import io
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from visattn.commands.records import CARD, INDEX, PROVENANCE, Record, read_record, record_files
from visattn.io.atomic import atomic_write
from visattn.results.cards import Card

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np

    from visattn.geometry.affine import Box

SEEN = "seen_share"
MOST_THUMBNAILS = 2000  # a page with more takes long to open
_PAGE_ENDS = (".methods.png", ".html")  # an image has one card: that with the most on its page
_SEARCHED = {
    "caption": "captions", "ask": "questions, answers", "overlay": "classes, methods",
    "glimpse": "classes", "detect": "objects", "segment": "classes",
}  # fmt: skip
"""What the cards of a command say, by which they are searched besides names."""

Row = Mapping[str, object]
"""A row of the table: values by the names of their columns."""


def write_index(folder: Path, job: Any) -> None:
    """Write the table of all results of a job in a folder, and the index if it has one.

    Both are made anew from the records, also those of other commands that share the work.

    Args:
        folder: The output folder.
        job: The `Job`, which says the rows of its records.

    Raises:
        OSError: If a file cannot be written.
    """
    from visattn.viz.html.index_page import index_order, index_page

    names = {path.relative_to(folder).as_posix(): path for path in record_files(folder)}
    cards: dict[tuple[str, str], Card] = {}
    rows: list[Row] = []
    for name in sorted(names, key=lambda name: index_order(Card(name, "", "", ""))):
        record = read_record(names[name])
        if record is None or record[PROVENANCE]["settings"] is None:
            continue
        if record[PROVENANCE]["command"] == job.command:
            rows += _table_rows(job, record)
        if job.has_index and CARD in record:
            card = Card(**record[CARD])
            if len(cards) >= MOST_THUMBNAILS:
                card = card._replace(thumbnail="")
            best = cards.get(key := (str(PurePosixPath(name).parent), card.name))
            if (folder / card.page).exists() and (best is None or _rank(card) > _rank(best)):
                cards[key] = card
    if cards:
        search = _SEARCHED.get(job.command, "texts")
        page = index_page([*cards.values()], title=job.title, search=search)
        atomic_write(folder / INDEX, page)
    if rows:
        atomic_write(folder / f"{job.command}.csv", csv_table(rows))


def _table_rows(job: Any, record: Record) -> Iterable[Row]:
    """Yield the rows of a record with the name of its image, its files and what was seen."""
    made = record[PROVENANCE]
    share = job.seen_share(record)
    more = {**({} if share is None else {SEEN: share}), "files": "; ".join(made["files"])}
    return ({"image": made["image"], **row, **more} for row in job.table(record))


def csv_table(rows: Iterable[Row]) -> str:
    r"""Return rows as CSV (RFC 4180) with a header; columns in the order of their first use.

    Example:
        >>> csv_table([{"image": "a", "class": "red, round"}, {"image": "b", "score": 0.5}])
        'image,class,score\r\na,"red, round",\r\nb,,0.5\r\n'
    """
    rows = [*rows]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys(column for row in rows for column in row))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


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
