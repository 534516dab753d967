"""Figures of Spatial Transformers: images with the outlines of the crops, and the crops."""

from functools import partial

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.patches import Polygon

from visattn.viz.figures import Figure, axes_in_rows, halo, show, style
from visattn.viz.heatmap import resize_image

_COLUMNS = 8
_COLOR = (1.0, 0.77, 0.0)


def crop_figure(
    images: UInt8[np.ndarray, "n y x 3"],
    corners: Float[np.ndarray, "n 4 2"],
    crops: UInt8[np.ndarray, "n y2 x2 3"],
) -> Figure:
    """Return a figure of images with the outlines of their crops, and each crop below its image.

    Args:
        images: RGB; at least one.
        corners: Corners of each crop as (x, y) in pixels of the image, in order around it; the
            first, top left, is marked by a dot. They may be outside of the image and form any
            quadrilateral.
        crops: The crops.

    Example:
        >>> blank = np.zeros((3, 14, 14, 3), np.uint8)
        >>> corners = np.tile(np.array([[1.0, 1], [9, 1], [9, 9], [1, 9]]), (3, 1, 1))
        >>> len(crop_figure(blank, corners, blank).axes)
        6
    """
    columns = min(_COLUMNS, len(images))
    size, cropped = images.shape[1:3], crops.shape[1:3]
    aspects = [size[0] / size[1], cropped[0] / cropped[1]] * -(-len(images) // columns)
    with style():
        figure, rows = axes_in_rows(aspects, columns)
        upper, lower = ([ax for row in rows[start::2] for ax in row] for start in (0, 1))
        for ax in (*upper[len(images) :], *lower[len(images) :]):
            ax.remove()
        for ax, below, image, outline, crop in zip(
            upper, lower, images, corners, crops, strict=False
        ):
            show(ax, size, partial(resize_image, image))
            show(below, cropped, partial(resize_image, crop))
            ax.add_patch(Polygon(outline, fill=False, edgecolor=_COLOR, linewidth=1.2,
                                 path_effects=halo(1.2)))  # fmt: skip
            ax.plot(*outline[0], "o", color=_COLOR, markersize=3)
    return figure
