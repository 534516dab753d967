"""Plots of attention statistics by layer, with a dot for each head."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.canvas import ACCENT, BACKGROUND, MUTED, TEXT, TRACK
from visattn.viz.text import load_font, truncate_text
from visattn.viz.tiles import SMALL

_SUPERSAMPLING = 3  # for antialiased lines
_LEFT, _TOP, _BOTTOM, _RIGHT = 44, 34, 30, 14  # margins of a plot, in pixels
_PLOTS_PER_ROW = 3
_UNIT_RANGE = frozenset({"entropy", "saturated", "diversity", "sink"})
_TITLES = {
    "entropy": "normalized entropy (1: uniform)",
    "saturated": "saturated rows (one key)",
    "distance": "mean distance, patches",
    "pixels": "mean distance, input pixels",
    "diversity": "diversity of heads",
    "sink": "attention to the strongest key",
}

Points = list[tuple[float, float]]


def plot_attention_stats(
    layers: Sequence[Mapping[str, Float[np.ndarray, " _"]]], plot_size: tuple[int, int] = (220, 340)
) -> UInt8[np.ndarray, "y x 3"]:
    """Return a plot of each statistic over layers: a dot per head, and a line of their mean.

    Statistics without any finite value are left out.

    Args:
        layers: For each layer, in the order of the model: the values of its heads by statistic.
        plot_size: Height and width of one plot in pixels; at least 120 x 160.

    Raises:
        ValueError: If there is no statistic with a finite value.

    Example:
        >>> layers = [{"entropy": np.array([0.5, 0.7])}, {"entropy": np.array([0.2, 0.9])}]
        >>> plot_attention_stats(layers).shape
        (220, 340, 3)
    """
    names = list(dict.fromkeys(name for layer in layers for name in layer))
    finite = [
        name
        for name in names
        if any(np.isfinite(layer[name]).any() for layer in layers if name in layer)
    ]
    if not finite:
        raise ValueError("at least one layer must have a statistic with finite values, got none")
    plots = [_draw_plot(name, [layer.get(name) for layer in layers], plot_size) for name in finite]
    columns = min(_PLOTS_PER_ROW, len(plots))
    empty = np.full((*plot_size, 3), BACKGROUND, dtype=np.uint8)
    plots += [empty] * (-len(plots) % columns)
    rows = [
        np.concatenate(plots[start : start + columns], 1) for start in range(0, len(plots), columns)
    ]
    return np.concatenate(rows, 0)


def _draw_plot(
    name: str, heads: Sequence[Float[np.ndarray, " _"] | None], size: tuple[int, int]
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the plot of one statistic."""
    height, width = size
    page = Image.new("RGB", (width * _SUPERSAMPLING, height * _SUPERSAMPLING), BACKGROUND)
    pen = ImageDraw.Draw(page)
    y_max = _axis_maximum(name, heads)
    inner_size = (height - _TOP - _BOTTOM, width - _LEFT - _RIGHT)
    for fraction in (0.0, 0.5, 1.0):
        line = _TOP + inner_size[0] * (1 - fraction)
        pen.line(_scale_up([(_LEFT, line), (width - _RIGHT, line)]), TRACK, _SUPERSAMPLING)
    x = _LEFT + inner_size[1] * (np.arange(len(heads)) + 0.5) / len(heads)
    means: Points = []
    radius = float(np.clip(inner_size[1] / len(heads) / 5, 1.5, 3.5)) * _SUPERSAMPLING
    for x_layer, values in zip(x, heads, strict=True):
        finite = np.zeros(0) if values is None else values[np.isfinite(values)]
        if not len(finite):
            continue
        for value in finite.tolist():
            _draw_ring(
                pen,
                _scale_up([(float(x_layer), _TOP + inner_size[0] * (1 - value / y_max))])[0],
                radius,
            )
        means.append((float(x_layer), float(_TOP + inner_size[0] * (1 - np.mean(finite) / y_max))))
    if len(means) > 1:
        pen.line(_scale_up(means), TEXT, 2 * _SUPERSAMPLING, "curve")
    for mean_x, mean_y in _scale_up(means):
        dot = 0.8 * radius
        pen.ellipse((mean_x - dot, mean_y - dot, mean_x + dot, mean_y + dot), TEXT)
    small = page.reduce(_SUPERSAMPLING)
    _write_labels(ImageDraw.Draw(small), name, y_max, x, size)
    return np.array(small)


def _axis_maximum(name: str, heads: Sequence[Float[np.ndarray, " _"] | None]) -> float:
    """Return the upper end of the y axis: 1 for fractions, otherwise a round number."""
    if name in _UNIT_RANGE or name.startswith("to "):
        return 1.0
    largest = max(
        float(np.nanmax(values))
        for values in heads
        if values is not None and np.isfinite(values).any()
    )
    if largest <= 0:
        return 1.0
    unit = 10.0 ** np.floor(np.log10(largest))
    return float(next(unit * step for step in (1, 2, 4, 5, 8, 10) if unit * step >= largest))


def _scale_up(points: Sequence[tuple[float, float]]) -> Points:
    return [(float(x) * _SUPERSAMPLING, float(y) * _SUPERSAMPLING) for x, y in points]


def _draw_ring(pen: ImageDraw.ImageDraw, place: tuple[float, float], radius: float) -> None:
    """Draw a ring, which leaves overlapping ones visible."""
    x, y = place
    pen.ellipse(
        (x - radius, y - radius, x + radius, y + radius), None, ACCENT, round(0.45 * radius)
    )


def _write_labels(
    pen: ImageDraw.ImageDraw,
    name: str,
    y_max: float,
    x: Float[np.ndarray, " n"],
    size: tuple[int, int],
) -> None:
    """Write the title, the labels of the y axis, and as many layer indices as fit."""
    (height, width), font = size, load_font(SMALL)
    title = _TITLES.get(name, f"attention {name} tokens" if name.startswith("to ") else name)
    pen.text((_LEFT, 10), truncate_text(title, font, width - _LEFT - _RIGHT), TEXT, font)
    for fraction in (0.0, 0.5, 1.0):
        position = (_LEFT - 8, _TOP + (height - _TOP - _BOTTOM) * (1 - fraction))
        pen.text(position, f"{fraction * y_max:g}", MUTED, font, anchor="rm")
    pen.text((_LEFT - 8, height - _BOTTOM + 8), "layer", MUTED, font, anchor="ra")
    step = max(1, -(-24 * len(x) // (width - _LEFT - _RIGHT)))
    for index, x_layer in enumerate(x):
        if index % step == 0:
            pen.text((float(x_layer), height - _BOTTOM + 8), str(index), MUTED, font, anchor="ma")
