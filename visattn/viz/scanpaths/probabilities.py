"""Line plot of class probabilities over glimpses."""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.text import load_font, truncate_text
from visattn.viz.maps.legend import ACCENT, BACKGROUND, MUTED, SMALL, TEXT, TRACK
from visattn.viz.scanpaths.path import draw_number_marker, glimpse_colors

_SUPERSAMPLING = 3  # for antialiased lines
_COLORS = (
    TEXT, ACCENT, (190, 128, 44), (140, 92, 160), (186, 84, 84),
    (96, 140, 72), (84, 104, 176), (150, 120, 104),
)  # fmt: skip
_LEFT, _TOP, _BOTTOM = 48, 12, 34  # margins of the plot, in pixels
_MAX_NAME_WIDTH = 84
_MIN_RADIUS = 8.0  # of a number marker; if they do not fit, some are left out
_LINE_HEIGHT = 15


def top_classes(
    probabilities: Float[np.ndarray, "t k"],
    max_classes: int = 5,
    *,
    glimpses_per_label: int | None = None,
) -> list[int]:
    """Return the classes to plot: the predictions, then their rivals.

    A prediction is made after the last glimpse or, for a sequence of labels, after each
    `glimpses_per_label` glimpses; a sequence may have more of them than `max_classes`, up to the
    number of colors. Rivals are the classes with the highest probability after any glimpse, ordered
    by their probability after the last one.

    Example:
        >>> top_classes(np.array([[0.1, 0.6, 0.3], [0.2, 0.1, 0.7]]), max_classes=2)
        [2, 1]
    """
    step = glimpses_per_label or len(probabilities)
    read = list(dict.fromkeys(probabilities[step - 1 :: step].argmax(1).tolist()))
    read = read[: max(max_classes, len(_COLORS))]
    last, peaks = probabilities[-1], probabilities.max(0)
    rivals = [int(index) for index in np.argsort(-peaks, kind="stable") if index not in read]
    rivals = rivals[: max(0, max_classes - len(read))]
    return [*read, *sorted(rivals, key=lambda index: -float(last[index]))]


def class_colors(count: int = len(_COLORS)) -> list[tuple[int, int, int]]:
    """Return a color for each plotted class: dark for the first, then one for each rival.

    Example:
        >>> class_colors(2)
        [(34, 36, 40), (64, 128, 142)]
    """
    return [_COLORS[index % len(_COLORS)] for index in range(count)]


def plot_probabilities(
    probabilities: Float[np.ndarray, "t k"],
    class_names: tuple[str, ...],
    size: tuple[int, int],
    *,
    glimpses_per_label: int | None = None,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return a line plot of the most probable classes over glimpses.

    The lines of a sequence of labels are interrupted where the next label begins.

    Args:
        probabilities: Class probabilities after each glimpse.
        class_names: Names of the classes.
        size: Height and width of the plot in pixels; at least 120 x 200.
        glimpses_per_label: Number of glimpses after which each label of a sequence is read.

    Raises:
        ValueError: If the numbers of classes and names differ.

    Example:
        >>> plot_probabilities(np.full((3, 2), 0.5), ("cat", "dog"), (240, 280)).shape
        (240, 280, 3)
    """
    if len(class_names) != probabilities.shape[1]:
        raise ValueError(
            f"each of {probabilities.shape[1]} classes needs a name, got {len(class_names)}"
        )
    (height, width), count = size, len(probabilities)
    page = Image.new("RGB", (width * _SUPERSAMPLING, height * _SUPERSAMPLING), BACKGROUND)
    pen = ImageDraw.Draw(page)
    shown = top_classes(probabilities, glimpses_per_label=glimpses_per_label)
    names = [
        truncate_text(class_names[index], load_font(SMALL), _MAX_NAME_WIDTH - 12) for index in shown
    ]
    end = width - 12 - max(load_font(SMALL).getlength(name) for name in names)
    inner_size = (height - _TOP - _BOTTOM, end - _LEFT)
    x = _LEFT + inner_size[1] * (np.arange(count) + 0.5) / count
    y = _TOP + inner_size[0] * (1 - np.nan_to_num(probabilities[:, shown]).T)
    for fraction in (0.0, 0.5, 1.0):
        line = _TOP + inner_size[0] * (1 - fraction)
        pen.line(_scale_up((_LEFT, line), (end, line)), TRACK, _SUPERSAMPLING)
    colors = class_colors(len(shown))
    step = glimpses_per_label or count
    for start in range(step, count, step):  # between two labels
        border = (x[start - 1] + x[start]) / 2
        ends = _scale_up((border, _TOP), (border, height - _BOTTOM))
        pen.line(ends, TRACK, 2 * _SUPERSAMPLING)
    for ys, color in reversed(list(zip(y, colors, strict=True))):
        for start in range(0, count, step):
            _draw_line(pen, x[start : start + step], ys[start : start + step], color)
    radius = min(10.0, max(_MIN_RADIUS, 0.42 * inner_size[1] / count))
    every = -(-count * 2.3 * radius // inner_size[1])
    for index, color in enumerate(glimpse_colors(count)):
        if (count - 1 - index) % every == 0:
            [center] = _scale_up((x[index], height - _BOTTOM + 22))
            draw_number_marker(pen, center, index + 1, color, radius * _SUPERSAMPLING)
    small = page.reduce(_SUPERSAMPLING)
    _write_labels(ImageDraw.Draw(small), names, colors, y[:, -1], (height, end))
    return np.array(small)


def _scale_up(*points: tuple[float, float]) -> list[tuple[float, float]]:
    return [(float(x) * _SUPERSAMPLING, float(y) * _SUPERSAMPLING) for x, y in points]


def _draw_line(
    pen: ImageDraw.ImageDraw,
    x: Float[np.ndarray, " t"],
    y: Float[np.ndarray, " t"],
    color: tuple[int, int, int],
) -> None:
    """Draw the probabilities of a class as a line with a dot at each glimpse."""
    points, width = _scale_up(*zip(x, y, strict=True)), 3.0 if color == TEXT else 2.0
    if len(points) > 1:
        pen.line(points, color, round(width * _SUPERSAMPLING), "curve")
    for point in points:
        _draw_dot(pen, point, color, (width + 0.6) * _SUPERSAMPLING)


def _draw_dot(
    pen: ImageDraw.ImageDraw,
    center: tuple[float, float],
    color: tuple[int, int, int],
    radius: float,
) -> None:
    (x, y) = center
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), color)


def _write_labels(
    pen: ImageDraw.ImageDraw,
    names: list[str],
    colors: list[tuple[int, int, int]],
    ends: Float[np.ndarray, " k"],
    area: tuple[int, float],
) -> None:
    """Write the labels of the y axis, and the class names at the ends of their lines."""
    (height, end), font = area, load_font(SMALL)
    for fraction in (0.0, 0.5, 1.0):
        position = (_LEFT - 8, _TOP + (height - _TOP - _BOTTOM) * (1 - fraction))
        pen.text(position, f"{fraction:.0%}".replace("%", " %"), MUTED, font, anchor="rm")
    order = np.argsort(ends, kind="stable")
    positions = ends[order].astype(float)
    lowest = height - _BOTTOM
    for index in range(1, len(positions)):  # from the top down, without overlap
        positions[index] = max(positions[index], positions[index - 1] + _LINE_HEIGHT)
    positions[-1] = min(positions[-1], lowest)
    for index in reversed(range(len(positions) - 1)):
        positions[index] = min(positions[index], positions[index + 1] - _LINE_HEIGHT)
    for y, index in zip(positions, order, strict=True):
        pen.text((end + 8, float(y)), names[index], colors[index], font, anchor="lm")
