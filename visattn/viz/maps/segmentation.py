"""Figures of segmentations: class colors, label maps over an image, errors, and panels of tiles."""

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Integer, UInt8
from PIL import Image, ImageDraw

from visattn.images.reader import ImageLike, read_image
from visattn.results.attention_map import AttentionMap
from visattn.results.kinds import BACKGROUND, IGNORE_CLASS
from visattn.results.values import Segmentation
from visattn.viz.layout.grid import GAP, MARGIN, compute_tile_grid, create_titled_page
from visattn.viz.layout.text import load_font, truncate_text
from visattn.viz.maps.heatmap import overlay
from visattn.viz.maps.legend import LEGEND_HEIGHT, MUTED, SMALL, TEXT, draw_legend
from visattn.viz.maps.resize import resize_image

IGNORED = 255  # class number of pixels that do not count
_GOLDEN_RATIO = 0.618034
_NAME_SIZE, _CAPTION_HEIGHT = 15, 30  # font size of titles; height of the text below a tile
_SWATCH, _ROW_HEIGHT = 13, 24  # of the legend of classes
_WRONG, _RIGHT, _UNCOUNTED = (214, 40, 40), 0.35, (150, 150, 150)


@dataclass(frozen=True, eq=False)
class SegmentationTile:
    """A tile of a panel.

    Args:
        title: Text below the tile.
        image: RGB, of the size of the photo.
        nearest: Whether pixels are repeated, not interpolated, when the tile is larger.
    """

    title: str
    image: UInt8[np.ndarray, "y x 3"]
    nearest: bool = False


def class_color(number: int) -> tuple[int, int, int]:
    """Return the color of a class, RGB; class 0, the background, is black.

    The color depends on the number alone, so that figures can be compared.

    Example:
        >>> class_color(0), class_color(1)
        ((0, 0, 0), (235, 84, 70))
    """
    if number == 0:
        return 0, 0, 0
    hue = (0.014 + (number - 1) * _GOLDEN_RATIO) % 1
    saturation, value = (0.7, 0.92) if (number - 1) % 2 == 0 else (0.85, 0.72)
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


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
    palette = np.array([class_color(n + (not background)) for n in range(IGNORED)] + [_UNCOUNTED])
    colors, alpha = palette[labels], np.full(labels.shape, opacity)
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
    return edge & (labels != 0) & (labels != IGNORED)


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
    drawn[truth == IGNORED] = _UNCOUNTED
    drawn[(truth != labels) & (truth != IGNORED)] = _WRONG
    return np.rint(drawn).astype(np.uint8)


def segmentation_panel(
    tiles: Sequence[SegmentationTile],
    classes: Sequence[tuple[int, str]],
    *,
    title: str,
    subtitle: str = "",
    width: int = 1200,
    gates: bool = False,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure of tiles of one image, with a legend of classes.

    Args:
        tiles: At least one; all of one size.
        classes: Number and name of each class in the legend.
        title: Title of the figure.
        subtitle: Second line of the title, smaller.
        width: Width of the figure in pixels, at least 480.
        gates: Whether to draw the color bar of gates, from 0 to 1.

    Raises:
        ValueError: If there is no tile, or the figure is too narrow.

    Example:
        >>> tile = SegmentationTile("Image", np.zeros((30, 40, 3), np.uint8))
        >>> segmentation_panel([tile], [(1, "cat")], title="cat", width=600).shape[1]
        600
    """
    if not tiles or width < 480:
        raise ValueError(
            f"a panel needs at least one tile and a width of 480 pixels, got {len(tiles)} tiles "
            f"and {width} pixels"
        )
    size = (tiles[0].image.shape[0], tiles[0].image.shape[1])
    grid = compute_tile_grid(size, len(tiles), width)
    rows = _legend_rows(classes, width)
    footer = GAP + len(rows) * _ROW_HEIGHT + (LEGEND_HEIGHT if gates else 0)
    page, places = create_titled_page(
        title, grid, width, _CAPTION_HEIGHT, footer, subtitle=subtitle
    )
    pen, font = ImageDraw.Draw(page), load_font(_NAME_SIZE)
    for tile, (x, y) in zip(tiles, places, strict=False):
        page.paste(Image.fromarray(_resize_tile(tile, grid.tile_size)), (x, y))
        name = truncate_text(tile.title, font, grid.cell_width)
        pen.text((x, y + grid.tile_size[0] + 7), name, TEXT, font)
    top = page.height - footer
    _draw_classes(pen, rows, top)
    if gates:
        position = (MARGIN, top + len(rows) * _ROW_HEIGHT + 8)
        draw_legend(page, position, draw_gate, (0.0, 1.0), label="gate")
    return np.array(page)


def draw_gate(image: UInt8[np.ndarray, "y x 3"], values: np.ndarray) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image with a gate over it, on the fixed scale from 0 to 1.

    Stretching each gate from its minimum to its maximum would show a structure in a gate that is
    open everywhere.

    Example:
        >>> draw_gate(np.zeros((1, 1, 3), np.uint8), np.ones((1, 1))).max() > 0
        np.True_
    """
    return overlay(image, values, vmin=0.0, vmax=1.0)


def _resize_tile(tile: SegmentationTile, size: tuple[int, int]) -> UInt8[np.ndarray, "y x 3"]:
    if tile.nearest and size[0] >= tile.image.shape[0]:
        scaled = Image.fromarray(tile.image).resize((size[1], size[0]), Image.Resampling.NEAREST)
        return np.asarray(scaled)
    return resize_image(tile.image, size)


def _legend_rows(classes: Sequence[tuple[int, str]], width: int) -> list[list[tuple[int, str]]]:
    """Return the entries of the legend in rows that fit the width."""
    rows: list[list[tuple[int, str]]] = [[]]
    x, font = MARGIN, load_font(SMALL)
    for number, name in classes:
        step = _SWATCH + 8 + round(font.getlength(name[:40])) + GAP
        if x + step > width - MARGIN and rows[-1]:
            rows.append([])
            x = MARGIN
        rows[-1].append((number, name[:40]))
        x += step
    return rows


def _draw_classes(
    pen: ImageDraw.ImageDraw, rows: Sequence[Sequence[tuple[int, str]]], top: int
) -> None:
    font = load_font(SMALL)
    for row, entries in enumerate(rows):
        x, y = MARGIN, top + row * _ROW_HEIGHT
        for number, name in entries:
            color = _UNCOUNTED if number == IGNORED else class_color(number)
            pen.rectangle((x, y, x + _SWATCH, y + _SWATCH), color)
            text = truncate_text(name, font, 400)
            pen.text((x + _SWATCH + 8, y - 1), text, MUTED, font)
            x += _SWATCH + 8 + round(font.getlength(text)) + GAP


def segmentation_figure(
    image: ImageLike,
    segmentation: Segmentation,
    truth: UInt8[np.ndarray, "y x"] | None = None,
    *,
    title: str = "",
    width: int = 1200,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure of photo, prediction and gates; with a true label map also truth and errors.

    Gates are drawn on the fixed scale from 0 to 1, each on its own grid.

    Args:
        image: The photo.
        segmentation: Its segmentation.
        truth: True class of each pixel of the photo; 255 does not count.
        title: Title; by default the shares of the classes.
        width: Width of the figure in pixels.

    Raises:
        ValueError: If the photo and the label maps differ in size.

    Example:
        >>> labels = np.zeros((30, 40), np.uint8)
        >>> geometry = Geometry.identity((30, 40))
        >>> result = Segmentation(labels, ("background", "cat"), (), geometry)
        >>> segmentation_figure(np.zeros((30, 40, 3), np.uint8), result, width=600).shape[1]
        600
    """
    pixels = read_image(image).pixels
    tiles = [SegmentationTile("image", pixels, nearest=True)]
    options: dict[str, Any] = {"background": segmentation.has_background}
    if truth is not None:
        tiles.append(SegmentationTile("truth", draw_labels(pixels, truth, **options), nearest=True))
    labels = segmentation.labels
    tiles.append(
        SegmentationTile("prediction", draw_labels(pixels, labels, **options), nearest=True)
    )
    if truth is not None:
        wrong = (truth != labels) & (truth != IGNORE_CLASS)
        share = wrong.sum() / max(1, (truth != IGNORE_CLASS).sum())
        errors = draw_errors(pixels, truth, labels)
        tiles.append(SegmentationTile(f"errors, {100 * share:.1f} %", errors, nearest=True))
    tiles += [_gate_tile(pixels, gate) for gate in segmentation.gates]
    return segmentation_panel(
        tiles,
        _legend(segmentation, truth),
        title=title or _summary(segmentation),
        width=width,
        gates=bool(segmentation.gates),
    )


def _gate_tile(pixels: UInt8[np.ndarray, "y x 3"], gate: AttentionMap) -> SegmentationTile:
    rows, columns = gate.values.shape
    title = f"gate {rows} \N{MULTIPLICATION SIGN} {columns}, mean {float(gate.values.mean()):.2f}"
    return SegmentationTile(title, draw_gate(pixels, gate.resize_to_image(smooth=False).numpy()))


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
