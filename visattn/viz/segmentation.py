"""Figures of segmentations: class colors, label maps over an image, errors, and panels of tiles."""

import colorsys
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Integer, UInt8
from matplotlib.patches import Patch
from PIL import Image

from visattn.images.reader import ImageLike, read_image
from visattn.results.kinds import IGNORE_CLASS
from visattn.results.scale import MapScale
from visattn.results.values import Segmentation
from visattn.viz.figures import LINE, MARGIN, Figure, Tile, sheet, style
from visattn.viz.heatmap import DrawOptions
from visattn.viz.text import fit_text

_GOLDEN_RATIO = 0.618034
_WRONG = (214, 40, 40)
_RIGHT = 0.35
_UNCOUNTED = (150, 150, 150)


def class_color(number: int) -> tuple[int, int, int]:
    """Return the color of a class, RGB; class 0, the background, is black.

    The color depends only on the index, so that figures can be compared.

    Example:
        >>> class_color(0), class_color(1)
        ((0, 0, 0), (235, 84, 70))
    """
    if number == 0:
        return 0, 0, 0
    # Golden-ratio steps spread any number of hues evenly and keep successive ones distinct.
    hue = (0.014 + (number - 1) * _GOLDEN_RATIO) % 1
    saturation, value = (0.7, 0.92) if (number - 1) % 2 == 0 else (0.85, 0.72)
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def class_palette(*, background: bool = True) -> UInt8[np.ndarray, "256 3"]:
    """Return the RGB colors of the values of a label map; 255 (ignored) is gray.

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
    """Return an image overlaid with class colors and the outlines of regions.

    Args:
        image: RGB.
        labels: Class of each pixel; 255 is drawn in gray.
        opacity: Opacity of the colors, 0 to 1.
        background: Whether class 0 is the background, which is dimmed instead of colored.

    Example:
        >>> drawn = draw_labels(np.zeros((1, 2, 3), np.uint8), np.array([[0, 1]]), opacity=1.0)
        >>> drawn[0].tolist()
        [[0, 0, 0], [235, 84, 70]]
    """
    colors = class_palette(background=background)[labels]
    alpha = np.full(labels.shape, opacity)
    if background:
        alpha[labels == 0] = opacity / 2
    alpha[outlines(labels)] = 1.0
    mixed = image * (1 - alpha[..., None]) + colors * alpha[..., None]
    return np.rint(mixed).astype(np.uint8)


def outlines(labels: Integer[np.ndarray, "y x"]) -> Bool[np.ndarray, "y x"]:
    """Return the pixels of classes above 0 that border another class.

    Example:
        >>> outlines(np.array([[0, 3, 3, 3, 3]])).astype(int)
        array([[0, 1, 0, 0, 0]])
    """
    edge = np.zeros(labels.shape, dtype=bool)
    down, across = (np.diff(labels, axis=axis) != 0 for axis in (0, 1))
    edge[1:] |= down
    edge[:-1] |= down
    edge[:, 1:] |= across
    edge[:, :-1] |= across
    return edge & (labels != 0) & (labels != IGNORE_CLASS)


def draw_errors(
    image: UInt8[np.ndarray, "y x 3"],
    truth: Integer[np.ndarray, "y x"],
    labels: Integer[np.ndarray, "y x"],
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image in gray, with wrong pixels in red and ignored pixels in light gray.

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


def segmentation_figure(
    image: ImageLike,
    segmentation: Segmentation,
    truth: UInt8[np.ndarray, "y x"] | None = None,
    *,
    crop: bool = False,
    width: float | None = None,
    rc: Mapping[str, Any] | None = None,
) -> Figure:
    """Return a figure of photo, prediction and gates; with a true label map also truth and errors.

    Gates are drawn on a fixed scale from 0 to 1, each on its own grid: with a stretched scale, a
    gate that is open everywhere would seem to have structure.

    Args:
        image: The photo.
        segmentation: Its segmentation.
        truth: True class of each pixel of the photo; 255 does not count.
        crop: See `visattn.figure`.
        width: See `visattn.figure`.
        rc: See `visattn.figure`.

    Raises:
        ValueError: If the photo and the label maps differ in size.

    Example:
        >>> from visattn import Geometry
        >>> labels = np.zeros((30, 40), np.uint8)
        >>> geometry = Geometry.identity((30, 40))
        >>> result = Segmentation(labels, ("background", "cat"), (), geometry)
        >>> drawn = segmentation_figure(np.zeros((30, 40, 3), np.uint8), result)
        >>> [ax.get_title(loc="left") for ax in drawn.axes]
        ['image', 'prediction']
    """
    pixels, labels = read_image(image).pixels, segmentation.labels
    background, geometry = segmentation.has_background, segmentation.geometry
    drawn = {"image": pixels}
    if truth is not None:
        drawn["truth"] = draw_labels(pixels, truth, background=background)
    drawn["prediction"] = draw_labels(pixels, labels, background=background)
    if truth is not None:
        wrong = (truth != labels) & (truth != IGNORE_CLASS)
        share = wrong.sum() / max(1, (truth != IGNORE_CLASS).sum())
        drawn[f"errors {100 * share:.1f} %"] = draw_errors(pixels, truth, labels)
    tiles = [Tile(each, title=name) for name, each in drawn.items()]
    for gate in segmentation.gates:
        rows, columns = gate.values.shape
        title = f"gate {rows} \N{MULTIPLICATION SIGN} {columns}"
        mean = f"mean {float(gate.values.mean()):.2f}"
        tiles.append(Tile(pixels, gate, MapScale("global", 0.0, 1.0), title, mean))
    present = np.union1d(labels, labels if truth is None else truth).tolist()
    names = {**dict(enumerate(segmentation.class_names)), IGNORE_CLASS: "not counted"}
    colors = class_palette(background=background) / 255
    patches = [
        Patch(color=tuple(colors[number]), label=fit_text(names.get(number, ""), 1.3))
        for number in present
    ]
    per_row = max(1, int((width or 7.0) / 1.2))
    result = sheet(
        [tiles],
        DrawOptions(smooth=False),
        notes=(geometry.seen_text,),
        spare=-(-len(patches) // per_row),
        crop=crop,
        width=width,
        rc=rc,
    )
    with style(rc):
        height = result.get_figheight()
        result.legend(handles=patches, loc="lower left", ncols=per_row, borderaxespad=0.0,
                      bbox_to_anchor=(MARGIN / result.get_figwidth(),
                                      (MARGIN + bool(geometry.seen_text) * LINE) / height),
                      handlelength=1.0, handleheight=1.0, columnspacing=1.2)  # fmt: skip
    return result
