"""Interactive HTML page of a training: the maps of the same images after each logged step."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from visattn.geometry.affine import Geometry
from visattn.viz.html.document import (
    PageOptions,
    PageParts,
    escape_text,
    image_data_url,
    page_geometry,
    photo_page,
)
from visattn.viz.text import sanitize_text

_NAME, _NOTE, _LONGEST = 60, 200, 960  # characters; pixels of a photo


@dataclass(frozen=True, eq=False)
class HistoryRow:
    """An image and its maps over the steps of a training.

    Args:
        name: Name of the image.
        pixels: The image, RGB.
        drawn: Its map after each of the steps, as data URLs; "" for a missing one.
        notes: Text of each map: the class and its score, or why there is no map.
        geometry: Geometry of the maps; None if their values are not kept.
        values: Values of the maps, each on its grid; None for a missing one.
        signed: Whether negative values count against the class.
    """

    name: str
    pixels: UInt8[np.ndarray, "y x 3"]
    drawn: Sequence[str]
    notes: Sequence[str]
    geometry: Geometry | None = None
    values: Sequence[Float[np.ndarray, "gy gx"] | None] = ()
    signed: bool = False


def history_page(
    rows: Sequence[HistoryRow],
    steps: Sequence[int],
    *,
    num_steps: int,
    method: str,
    paper: str = "",
    legend: str = "",
) -> str:
    """Return a page with the maps of each image after each logged step.

    The maps of an image have one scale, or each its own; two steps are compared side by side. Below
    are all images, as they were drawn.

    Args:
        rows: The images.
        steps: Steps of the maps, in order.
        num_steps: Number of logged steps, of which `steps` may be a selection.
        method: Name of the method in the literature.
        paper: Its reference.
        legend: The colors from the lower to the upper end, as a data URL.

    Example:
        >>> row = HistoryRow("cat", np.zeros((6, 8, 3), np.uint8), ["data:,", ""], ["cat", "none"])
        >>> page = history_page([row], [0, 500], num_steps=2, method="Grad-CAM")
        >>> page.count("<img"), "step 500" in page
        (3, True)
    """
    chosen = f"{len(steps)} of {num_steps}" if len(steps) < num_steps else f"{num_steps}"
    head = "".join(f'<th scope="col">step {step:,}</th>' for step in steps)
    shown = next((row for row in rows if row.geometry is not None), rows[0])
    return photo_page(
        shown.pixels,
        shown.geometry or Geometry.identity(shown.pixels.shape[:2]),
        PageParts(
            "history.html",
            ["history.js"],
            data={
                "smooth": True,
                "unit": "attribution",
                "rows": [_row_data(row, steps) for row in rows if any(_known(row))],
            },
            texts={
                "title": f"Attention during training: {method}",
                "count": f"{chosen} logged steps",
                "caption": shown.name,
            },
            markup={
                "head": head,
                "rows": "\n".join(_row(row, steps) for row in rows),
                "legend": _LEGEND.format(escape_text(legend)) if legend else "",
            },
            styles=["history.css"],
            method=method,
            paper=paper,
        ),
        PageOptions(name=shown.name),
    )


def _known(row: HistoryRow) -> list[bool]:
    """Whether the values of each map are known."""
    return [row.geometry is not None and values is not None for values in row.values]


def _row_data(row: HistoryRow, steps: Sequence[int]) -> dict[str, Any]:
    """Return the data of an image; `top` is the scale that its maps share."""
    if row.geometry is None:
        raise ValueError(f"the maps of {row.name} have no geometry")
    maps = [values for values in row.values if values is not None]
    address, (height, width) = image_data_url(row.pixels, longest=_LONGEST)
    return {
        "name": sanitize_text(row.name, _NAME),
        "photo": address,
        "size": [height, width],
        "geometry": page_geometry(row.geometry),
        "top": _top(maps),
        "steps": [
            {
                "step": step,
                "note": sanitize_text(note, _NOTE),
                "signed": row.signed,
                **_values(values),
            }
            for step, note, values in zip(steps, row.notes, row.values, strict=True)
        ],
    }


def _values(values: Float[np.ndarray, "gy gx"] | None) -> dict[str, Any]:
    """Return a map for the script, as base64 of little-endian float32."""
    if values is None:
        return {"values": None}
    text = base64.b64encode(values.astype("<f4").tobytes()).decode()
    return {"values": text, "grid": list(values.shape), "top": _top([values])}


def _top(maps: Sequence[Float[np.ndarray, "gy gx"]]) -> float:
    return max(float(np.abs(values).max()) for values in maps) or 1.0


_LEGEND = (
    '<p class="legend">lower end <img src="{}" width="220" height="12" alt="colors from gray over '
    'purple and orange to cream"> upper end</p>'
)


def _row(row: HistoryRow, steps: Sequence[int]) -> str:
    address = image_data_url(row.pixels, longest=320)[0]
    name = escape_text(sanitize_text(row.name, _NAME))
    texts = [
        f"{row.name} after step {step:,}: {note}"
        for step, note in zip(steps, row.notes, strict=True)
    ]
    cells = "".join(map(_cell, row.drawn, row.notes, texts))
    image = f'<img src="{address}" alt="">'
    return f'<tr><th scope="row">{image}{name}</th>{cells}</tr>'


def _cell(url: str, note: str, text: str) -> str:
    image = (
        f'<img src="{escape_text(url)}" alt="{escape_text(text)}" loading="lazy">' if url else ""
    )
    return f"<td>{image}<p>{escape_text(note)}</p></td>"
