"""Figures of segmentations: class colors, label maps over an image, errors, and panels of tiles."""

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Bool, Integer, UInt8
from PIL import Image

from visattn.images.reader import ImageLike, read_image
from visattn.results.attention_map import AttentionMap
from visattn.results.kinds import BACKGROUND, IGNORE_CLASS
from visattn.results.values import Segmentation
from visattn.viz.canvas import MUTED, Canvas
from visattn.viz.heatmap import DrawOptions, overlay, resize_image
from visattn.viz.photo_part import PhotoPart
from visattn.viz.rendering import Figure
from visattn.viz.text import load_font, truncate_text
from visattn.viz.tiles import (
    COMPACT,
    GAP,
    LEGEND_HEIGHT,
    MARGIN,
    NAMES,
    SMALL,
    Legend,
    Tile,
    TileLegend,
    compute_tile_grid,
    tile_figure,
)

_GOLDEN_RATIO = 0.618034
_SWATCH, _ROW_HEIGHT = 13, 24  # of the legend of classes
_WRONG = (214, 40, 40)
_RIGHT = 0.35
_UNCOUNTED = (150, 150, 150)


@dataclass(frozen=True, eq=False)
class ClassLegend:
    """The colors of classes, in rows.

    Args:
        rows: Numbers and names.
        height: Height in a figure, in pixels.
    """

    rows: Sequence[Sequence[tuple[int, str]]]
    height: int

    def height_on(self, width: int) -> int:
        """Return the height of its rows, which fit a page.

        Args:
            width: Width of the page, in pixels.
        """
        del width
        return self.height

    def draw(self, page: Canvas, position: tuple[int, int]) -> None:
        """Draw the legend.

        Args:
            page: Is drawn on.
            position: Left and top of the legend.
        """
        font = load_font(SMALL)
        for row, entries in enumerate(self.rows):
            x = position[0]
            y = position[1] + row * _ROW_HEIGHT
            for number, name in entries:
                color = _UNCOUNTED if number == IGNORE_CLASS else class_color(number)
                page.rectangle((x, y, x + _SWATCH, y + _SWATCH), color)
                text = truncate_text(name, font, 400)
                page.text((x + _SWATCH + 8, y - 1), text, MUTED, font)
                x += _SWATCH + 8 + round(font.getlength(text)) + GAP


def class_color(number: int) -> tuple[int, int, int]:
    """Return the color of a class, RGB; class 0, the background, is black.

    The color depends on the number alone, so that figures can be compared.

    Example:
        >>> class_color(0), class_color(1)
        ((0, 0, 0), (235, 84, 70))
    """
    if number == 0:
        return 0, 0, 0
    # Steps of the golden ratio spread any number of hues evenly, and keep successive ones apart.
    hue = (0.014 + (number - 1) * _GOLDEN_RATIO) % 1
    saturation, value = (0.7, 0.92) if (number - 1) % 2 == 0 else (0.85, 0.72)
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def class_palette(*, background: bool = True) -> UInt8[np.ndarray, "256 3"]:
    """Return the colors of the values of a label map, RGB; 255, which does not count, is gray.

    Args:
        background: Whether class 0 is the background, which is black.

    Example:
        >>> class_palette()[[0, 1, 255]].tolist()
        [[0, 0, 0], [235, 84, 70], [150, 150, 150]]
    """
    colors = [class_color(number + (not background)) for number in range(IGNORE_CLASS)]
    return np.array([*colors, _UNCOUNTED], np.uint8)


def draw_labels(
    image: UInt8[np.ndarray, "y x 3"],
    labels: Integer[np.ndarray, "y x"],
    *,
    opacity: float = 0.6,
    background: bool = True,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image with the color of each pixel's class over it, and the outlines of regions.

    Args:
        image: RGB.
        labels: Class of each pixel; 255 is drawn in gray.
        opacity: Opacity of the colors, 0 to 1.
        background: Whether class 0 is the background, which is dimmed instead of colored.

    Raises:
        ValueError: If the sizes differ, or the opacity is out of range.

    Example:
        >>> drawn = draw_labels(np.zeros((1, 2, 3), np.uint8), np.array([[0, 1]]), opacity=1.0)
        >>> drawn[0].tolist()
        [[0, 0, 0], [235, 84, 70]]
    """
    if image.shape[:2] != labels.shape or not 0 <= opacity <= 1:
        raise ValueError(
            f"labels must be one per pixel of the image, {image.shape[:2]}, and opacity 0 to 1; "
            f"got {labels.shape} and {opacity}"
        )
    colors = class_palette(background=background)[labels]
    alpha = np.full(labels.shape, opacity)
    if background:
        alpha[labels == 0] = opacity / 2
    alpha[outlines(labels)] = 1.0
    mixed = image * (1 - alpha[..., None]) + colors * alpha[..., None]
    return np.rint(mixed).astype(np.uint8)


def outlines(labels: Integer[np.ndarray, "y x"]) -> Bool[np.ndarray, "y x"]:
    """Return the pixels of classes above 0 that border on another class.

    Example:
        >>> outlines(np.array([[0, 3, 3, 3, 3]])).astype(int)
        array([[0, 1, 0, 0, 0]])
    """
    edge = np.zeros(labels.shape, dtype=bool)
    for axis in (0, 1):
        first = [slice(None), slice(None)]
        second = [slice(None), slice(None)]
        first[axis], second[axis] = slice(None, -1), slice(1, None)
        differs = labels[tuple(first)] != labels[tuple(second)]
        edge[tuple(first)] |= differs
        edge[tuple(second)] |= differs
    return edge & (labels != 0) & (labels != IGNORE_CLASS)


def draw_errors(
    image: UInt8[np.ndarray, "y x 3"],
    truth: Integer[np.ndarray, "y x"],
    labels: Integer[np.ndarray, "y x"],
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image in gray, with wrong pixels red and pixels that do not count light gray.

    Args:
        image: RGB.
        truth: True class of each pixel; 255 does not count.
        labels: Predicted class of each pixel.

    Example:
        >>> black, truth = np.zeros((1, 2, 3), np.uint8), np.array([[0, 1]])
        >>> draw_errors(black, truth, np.array([[0, 0]]))[0].tolist()
        [[0, 0, 0], [214, 40, 40]]
    """
    gray = np.asarray(Image.fromarray(image).convert("L"), dtype=np.float32)[..., None]
    drawn = np.repeat(gray * _RIGHT, 3, axis=2)
    drawn[truth == IGNORE_CLASS] = _UNCOUNTED
    drawn[(truth != labels) & (truth != IGNORE_CLASS)] = _WRONG
    return np.rint(drawn).astype(np.uint8)


def draw_gate(image: UInt8[np.ndarray, "y x 3"], values: np.ndarray) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image with a gate over it, on the fixed scale from 0 to 1.

    Stretching each gate from its minimum to its maximum would show a structure in a gate that is
    open everywhere.

    Example:
        >>> draw_gate(np.zeros((1, 1, 3), np.uint8), np.ones((1, 1))).max() > 0
        np.True_
    """
    return overlay(image, values, vmin=0.0, vmax=1.0, hatched=True)


def _resized(image: UInt8[np.ndarray, "y x 3"], size: tuple[int, int]) -> np.ndarray:
    """Return a tile at another size; when it is larger, pixels are repeated, not interpolated."""
    if size[0] >= image.shape[0]:
        scaled = Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.NEAREST)
        return np.asarray(scaled)
    return resize_image(image, size)


def _legend_rows(classes: Sequence[tuple[int, str]], width: int) -> list[list[tuple[int, str]]]:
    """Return the entries of the legend in rows that fit the width."""
    rows: list[list[tuple[int, str]]] = [[]]
    x = MARGIN
    font = load_font(SMALL)
    for number, name in classes:
        step = _SWATCH + 8 + round(font.getlength(name[:40])) + GAP
        if x + step > width - MARGIN and rows[-1]:
            rows.append([])
            x = MARGIN
        rows[-1].append((number, name[:40]))
        x += step
    return rows


def segmentation_figure(
    image: ImageLike,
    segmentation: Segmentation,
    truth: UInt8[np.ndarray, "y x"] | None = None,
    *,
    title: str = "",
    width: int | None = None,
    scale: float = 1.0,
    crop: bool = False,
) -> Figure:
    """Return a figure of photo, prediction and gates; with a true label map also truth and errors.

    Gates are drawn on the fixed scale from 0 to 1, each on its own grid. The subtitle says which
    share of the photo the model saw, if it is not all of it.

    Args:
        image: The photo.
        segmentation: Its segmentation.
        truth: True class of each pixel of the photo; 255 does not count.
        title: Title; by default the shares of the classes.
        width: See `DrawOptions`.
        scale: See `DrawOptions`.
        crop: See `DrawOptions`.

    Raises:
        ValueError: If the photo and the label maps differ in size.

    Example:
        >>> from visattn.geometry import Geometry
        >>> labels = np.zeros((30, 40), np.uint8)
        >>> geometry = Geometry.identity((30, 40))
        >>> result = Segmentation(labels, ("background", "cat"), (), geometry)
        >>> segmentation_figure(np.zeros((30, 40, 3), np.uint8), result, width=600).image.width
        600
    """
    options = DrawOptions(width=width, scale=scale, crop=crop)
    title = title or _summary(segmentation)
    draw = partial(_panel, read_image(image).pixels, segmentation, truth, title, options)
    return Figure(draw, options.zoom)


def _panel(
    pixels: UInt8[np.ndarray, "y x 3"],
    segmentation: Segmentation,
    truth: UInt8[np.ndarray, "y x"] | None,
    title: str,
    drawing: DrawOptions,
    detail: float,
) -> Canvas:
    """Return the drawing of photo, truth, prediction, errors and gates."""
    labels = segmentation.labels
    background = segmentation.has_background
    gates = segmentation.gates
    width = drawing.page_width
    drawn = {"image": pixels}
    if truth is not None:
        drawn["truth"] = draw_labels(pixels, truth, background=background)
    drawn["prediction"] = draw_labels(pixels, labels, background=background)
    if truth is not None:
        wrong = (truth != labels) & (truth != IGNORE_CLASS)
        share = wrong.sum() / max(1, (truth != IGNORE_CLASS).sum())
        drawn[f"errors {100 * share:.1f} %"] = draw_errors(pixels, truth, labels)
    count = len(drawn) + len(gates)
    part = PhotoPart.of(segmentation.geometry, crop=drawing.crop)
    grid = compute_tile_grid(part.size, count, width, detail)
    whole, window = part.whole_size(grid.pixels), part.window(grid.pixels)
    tiles = [Tile(_resized(each, whole)[window], name) for name, each in drawn.items()]
    for gate in gates:
        over = draw_gate(pixels, gate.resize_to_image(smooth=False).numpy())
        tiles.append(Tile(resize_image(over, whole)[window], "gate", _gate_note(gate)))
    rows = _legend_rows(_legend(segmentation, truth), width)
    below = GAP if not gates else 8
    legends: list[TileLegend] = [ClassLegend(rows, len(rows) * _ROW_HEIGHT + below)]
    if gates:
        hatched = segmentation.geometry.seen_share < 1 and part.size == part.image_size
        height = LEGEND_HEIGHT + GAP - 8
        legends.append(Legend(draw_gate, (0.0, 1.0), "gate", has_nan=hatched, height=height))
    return tile_figure(
        tiles, grid, title=title, subtitle=segmentation.geometry.seen_text, legends=legends,
        text=COMPACT if gates else NAMES, width=width,
    )  # fmt: skip


def _gate_note(gate: AttentionMap) -> str:
    rows, columns = gate.values.shape
    return f"{rows} \N{MULTIPLICATION SIGN} {columns}, mean {float(gate.values.mean()):.2f}"


def _legend(
    segmentation: Segmentation, truth: UInt8[np.ndarray, "y x"] | None
) -> list[tuple[int, str]]:
    """Return number and name of the classes on the photo; numbers are those of `class_color`."""
    present = set(np.unique(segmentation.labels).tolist())
    present |= set() if truth is None else set(np.unique(truth).tolist())
    shift = 0 if segmentation.has_background else 1
    names = segmentation.class_names
    entries = [(n + shift, names[n]) for n in sorted(present) if n < len(names)]
    return entries + ([(IGNORE_CLASS, "not counted")] if IGNORE_CLASS in present else [])


def _summary(segmentation: Segmentation) -> str:
    shares = segmentation.shares()
    if segmentation.has_background:
        shares.pop(BACKGROUND, None)
    parts = [f"{name} {100 * share:.1f} %" for name, share in list(shares.items())[:4]]
    return ", ".join(parts) or "nothing but background"
