"""HTML page of attention maps over the steps of a training."""

from collections.abc import Sequence
from typing import NamedTuple

from visattn.viz.html.document import escape_text, render_page


class HistoryRow(NamedTuple):
    """An image and its maps over the steps of a training."""

    name: str
    image: str
    """The image, as a data URL."""
    maps: Sequence[str]
    """Its map after each of the steps, as data URLs; "" for a missing one."""
    notes: Sequence[str]
    """Text below each map: the class and its score, or why there is no map."""


def history_page(
    rows: Sequence[HistoryRow], steps: Sequence[int], *, num_steps: int, method: str
) -> str:
    """Return a page with a row for each image and a column for each logged step.

    Args:
        rows: The images.
        steps: Steps of the maps, in order.
        num_steps: Number of logged steps, of which `steps` may be a selection.
        method: Name of the method.

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
            "count": f"{chosen} logged steps. Each map has its own color scale.",
        },
        markup={"head": head, "rows": "\n".join(map(_row, rows))},
    )


def _row(row: HistoryRow) -> str:
    cells = "".join(map(_cell, row.maps, row.notes))
    name = escape_text(row.name)
    return f'<tr><th scope="row"><img src="{escape_text(row.image)}" alt="">{name}</th>{cells}</tr>'


def _cell(url: str, note: str) -> str:
    image = f'<img src="{escape_text(url)}" alt="" loading="lazy">' if url else ""
    return f"<td>{image}<p>{escape_text(note)}</p></td>"
