"""How the probabilities of classes changed from glimpse to glimpse."""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.text import shortened, typeface
from visattn.viz.maps.legend import GATE, INK, PAPER, SMALL, SOFT, TRACK
from visattn.viz.scanpaths.path import draw_number, time_colors

_FINE = 3
_OTHERS = (GATE, (190, 128, 44), (140, 92, 160), (186, 84, 84))
_LEFT, _TOP, _BOTTOM = 48, 12, 34  # beside, above and below the plot, in pixels
_NAMES = 84  # most room for names on the right
_READABLE = 8.0  # radius of a number; where there is no room, only some have theirs
_LINE = 15  # between names


def shown_classes(probabilities: Float[np.ndarray, "t k"], most: int = 5) -> list[int]:
    """Return the classes that are worth showing: the last glimpse's best, then rivals.

    Rivals are the classes that were likely at any time, most at last first.

    Example:
        >>> shown_classes(np.array([[0.1, 0.6, 0.3], [0.2, 0.1, 0.7]]), most=2)
        [2, 1]
    """
    last = probabilities[-1]
    best = int(last.argmax())
    heights = probabilities.max(0)
    rivals = [int(one) for one in np.argsort(-heights, kind="stable") if one != best]
    return [best, *sorted(rivals[: most - 1], key=lambda one: -float(last[one]))]


def class_colors(count: int) -> list[tuple[int, int, int]]:
    """Return a color for each class that is shown: dark for the best, then one for each rival.

    Example:
        >>> class_colors(2)
        [(34, 36, 40), (64, 128, 142)]
    """
    return [(INK, *_OTHERS)[index % (1 + len(_OTHERS))] for index in range(count)]


def probability_plot(
    probabilities: Float[np.ndarray, "t k"],
    classes: tuple[str, ...],
    size: tuple[int, int],
) -> UInt8[np.ndarray, "y x 3"]:
    """Return lines of the likeliest classes over the glimpses.

    Args:
        probabilities: Of each class after each glimpse.
        classes: Their names.
        size: Height and width in pixels; below 120 x 200 there is no room for the text.

    Raises:
        ValueError: If there is not one name for each class.

    Example:
        >>> probability_plot(np.full((3, 2), 0.5), ("cat", "dog"), (240, 280)).shape
        (240, 280, 3)
    """
    if len(classes) != probabilities.shape[1]:
        raise ValueError(
            f"each of {probabilities.shape[1]} classes needs a name, got {len(classes)}"
        )
    (height, width), count = size, len(probabilities)
    page = Image.new("RGB", (width * _FINE, height * _FINE), PAPER)
    pen = ImageDraw.Draw(page)
    shown = shown_classes(probabilities)
    names = [shortened(classes[one], typeface(SMALL), _NAMES - 12) for one in shown]
    end = width - 12 - max(typeface(SMALL).getlength(name) for name in names)
    inner = (height - _TOP - _BOTTOM, end - _LEFT)
    x = _LEFT + inner[1] * (np.arange(count) + 0.5) / count
    y = _TOP + inner[0] * (1 - np.nan_to_num(probabilities[:, shown]).T)
    for share in (0.0, 0.5, 1.0):
        line = _TOP + inner[0] * (1 - share)
        pen.line(_large((_LEFT, line), (end, line)), TRACK, _FINE)
    colors = class_colors(len(shown))
    for ys, color in reversed(list(zip(y, colors, strict=True))):
        thick = 3.0 if color == INK else 2.0
        if count > 1:
            pen.line(_large(*zip(x, ys, strict=True)), color, round(thick * _FINE), "curve")
        for place in _large(*zip(x, ys, strict=True)):
            _dot(pen, place, color, (thick + 0.6) * _FINE)
    radius = min(10.0, max(_READABLE, 0.42 * inner[1] / count))
    every = -(-count * 2.3 * radius // inner[1])
    for index, color in enumerate(time_colors(count)):
        if (count - 1 - index) % every == 0:
            [place] = _large((x[index], height - _BOTTOM + 22))
            draw_number(pen, place, index + 1, color, radius * _FINE)
    small = page.reduce(_FINE)
    _write(ImageDraw.Draw(small), names, colors, y[:, -1], (height, end))
    return np.array(small)


def _large(*places: tuple[float, float]) -> list[tuple[float, float]]:
    return [(float(x) * _FINE, float(y) * _FINE) for x, y in places]


def _dot(
    pen: ImageDraw.ImageDraw,
    place: tuple[float, float],
    color: tuple[int, int, int],
    radius: float,
) -> None:
    (x, y) = place
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), color)


def _write(
    pen: ImageDraw.ImageDraw,
    names: list[str],
    colors: list[tuple[int, int, int]],
    ends: Float[np.ndarray, " k"],
    area: tuple[int, float],
) -> None:
    """Write the scale on the left, and the names where their lines end, none on another."""
    (height, end), font = area, typeface(SMALL)
    for share in (0.0, 0.5, 1.0):
        place = (_LEFT - 8, _TOP + (height - _TOP - _BOTTOM) * (1 - share))
        pen.text(place, f"{share:.0%}".replace("%", " %"), SOFT, font, anchor="rm")
    order = np.argsort(ends, kind="stable")
    places = ends[order].astype(float)
    lowest = height - _BOTTOM
    for index in range(1, len(places)):  # from the top down, each below the one before
        places[index] = max(places[index], places[index - 1] + _LINE)
    places[-1] = min(places[-1], lowest)
    for index in reversed(range(len(places) - 1)):
        places[index] = min(places[index], places[index + 1] - _LINE)
    for at, which in zip(places, order, strict=True):
        pen.text((end + 8, float(at)), names[which], colors[which], font, anchor="lm")
