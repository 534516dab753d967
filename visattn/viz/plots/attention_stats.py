"""What attention is like, layer by layer: a dot for each head."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.text import shortened, typeface
from visattn.viz.maps.legend import GATE, INK, PAPER, SMALL, SOFT, TRACK

_FINE = 3
_LEFT, _TOP, _BOTTOM, _RIGHT = 44, 34, 30, 14  # around the plot of a panel, in pixels
_ROW = 3  # panels beside each other
_SHARES = frozenset({"entropy", "saturated", "diversity", "sink"})
_TITLES = {
    "entropy": "entropy (1: spread evenly)",
    "saturated": "rows on a single key",
    "distance": "mean distance, patches",
    "pixels": "mean distance, input pixels",
    "diversity": "difference between heads",
    "sink": "share of the strongest key",
}

Places = list[tuple[float, float]]


def diagnostic_plot(
    layers: Sequence[Mapping[str, Float[np.ndarray, " _"]]], panel: tuple[int, int] = (220, 340)
) -> UInt8[np.ndarray, "y x 3"]:
    """Return a plot for each measure: layers from left to right, heads as dots, their mean a line.

    Measures that no layer knows, or that are not numbers anywhere, are left out.

    Args:
        layers: For each, in the order of the model, the numbers of its heads by measure.
        panel: Height and width of one plot, in pixels; below 120 x 160 the text has no room.

    Raises:
        ValueError: If there is nothing to draw.

    Example:
        >>> layers = [{"entropy": np.array([0.5, 0.7])}, {"entropy": np.array([0.2, 0.9])}]
        >>> diagnostic_plot(layers).shape
        (220, 340, 3)
    """
    names = list(dict.fromkeys(name for layer in layers for name in layer))
    shown = [
        name for name in names if any(np.isfinite(one[name]).any() for one in layers if name in one)
    ]
    if not shown:
        raise ValueError("there must be a layer with a measure to draw, got none")
    drawn = [_panel(name, [layer.get(name) for layer in layers], panel) for name in shown]
    across = min(_ROW, len(drawn))
    empty = np.full((*panel, 3), PAPER, dtype=np.uint8)
    drawn += [empty] * (-len(drawn) % across)
    rows = [
        np.concatenate(drawn[start : start + across], 1) for start in range(0, len(drawn), across)
    ]
    return np.concatenate(rows, 0)


def _panel(
    name: str, heads: Sequence[Float[np.ndarray, " _"] | None], size: tuple[int, int]
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the plot of one measure."""
    height, width = size
    page = Image.new("RGB", (width * _FINE, height * _FINE), PAPER)
    pen = ImageDraw.Draw(page)
    top = _top(name, heads)
    inner = (height - _TOP - _BOTTOM, width - _LEFT - _RIGHT)
    for share in (0.0, 0.5, 1.0):
        line = _TOP + inner[0] * (1 - share)
        pen.line(_large([(_LEFT, line), (width - _RIGHT, line)]), TRACK, _FINE)
    x = _LEFT + inner[1] * (np.arange(len(heads)) + 0.5) / len(heads)
    means: Places = []
    radius = float(np.clip(inner[1] / len(heads) / 5, 1.5, 3.5)) * _FINE
    for place, values in zip(x, heads, strict=True):
        known = np.zeros(0) if values is None else values[np.isfinite(values)]
        if not len(known):
            continue
        for value in known.tolist():
            _dot(pen, _large([(float(place), _TOP + inner[0] * (1 - value / top))])[0], radius)
        means.append((float(place), float(_TOP + inner[0] * (1 - np.mean(known) / top))))
    if len(means) > 1:
        pen.line(_large(means), INK, 2 * _FINE, "curve")
    for place_x, place_y in _large(means):
        reach = 0.8 * radius
        pen.ellipse((place_x - reach, place_y - reach, place_x + reach, place_y + reach), INK)
    small = page.reduce(_FINE)
    _write(ImageDraw.Draw(small), name, top, x, size)
    return np.array(small)


def _top(name: str, heads: Sequence[Float[np.ndarray, " _"] | None]) -> float:
    """Return the value at the upper line: 1 for shares, else a round number above all."""
    if name in _SHARES or name.startswith("to "):
        return 1.0
    largest = max(
        float(np.nanmax(one)) for one in heads if one is not None and np.isfinite(one).any()
    )
    if largest <= 0:
        return 1.0
    unit = 10.0 ** np.floor(np.log10(largest))
    return float(next(unit * step for step in (1, 2, 4, 5, 8, 10) if unit * step >= largest))


def _large(places: Sequence[tuple[float, float]]) -> Places:
    return [(float(x) * _FINE, float(y) * _FINE) for x, y in places]


def _dot(pen: ImageDraw.ImageDraw, place: tuple[float, float], radius: float) -> None:
    """Draw a ring, so that those behind it can be counted."""
    x, y = place
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), None, GATE, round(0.45 * radius))


def _write(
    pen: ImageDraw.ImageDraw,
    name: str,
    top: float,
    x: Float[np.ndarray, " n"],
    size: tuple[int, int],
) -> None:
    """Write the title, the scale, and as many numbers of layers as have room."""
    (height, width), font = size, typeface(SMALL)
    title = _TITLES.get(name, f"attention {name} tokens" if name.startswith("to ") else name)
    pen.text((_LEFT, 10), shortened(title, font, width - _LEFT - _RIGHT), INK, font)
    for share in (0.0, 0.5, 1.0):
        place = (_LEFT - 8, _TOP + (height - _TOP - _BOTTOM) * (1 - share))
        pen.text(place, f"{share * top:g}", SOFT, font, anchor="rm")
    pen.text((_LEFT - 8, height - _BOTTOM + 8), "layer", SOFT, font, anchor="ra")
    every = max(1, -(-24 * len(x) // (width - _LEFT - _RIGHT)))
    for index, place in enumerate(x):
        if index % every == 0:
            pen.text((float(place), height - _BOTTOM + 8), str(index), SOFT, font, anchor="ma")
