"""Figures: drawings that become pixels at any scale."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from visattn.images.encoding import encode_png
from visattn.io.atomic import atomic_write
from visattn.viz.canvas import Canvas


class Figure:
    """A figure of photos, maps, text and legends.

    Args:
        draw: Returns the drawing, with this number of pixels of its images on each of its own.
        zoom: Pixels of 1/96 inch in files per pixel of the drawing.

    Raises:
        ValueError: If the figure would have no size.

    Example:
        >>> import visattn as va
        >>> figure = va.figure(va.AttentionMap.from_array([[0.0, 1.0]], image_size=(30, 40)))
        >>> figure.image.size[0], figure.to_bytes()[1:4]
        (1200, b'PNG')
    """

    def __init__(self, draw: Callable[[float], Canvas], zoom: float = 1.0) -> None:
        if not (math.isfinite(zoom) and zoom > 0):
            raise ValueError(f"the scale of a figure must be above 0, got {zoom}")
        self.draw = draw
        self.zoom = zoom
        self._drawing = draw(zoom)  # now, so that wrong arguments are errors of the caller

    @cached_property
    def image(self) -> Image.Image:
        """The figure as pixels."""
        return self._drawing.paint(self.zoom)

    def to_bytes(self) -> bytes:
        """Return the figure as a PNG file: equal figures give equal bytes."""
        return encode_png(np.asarray(self.image))

    def save(self, path: str | Path) -> None:
        """Write the figure into a file.

        Args:
            path: Path that ends in `.png`.

        Raises:
            ValueError: If it ends otherwise.
            OSError: If it cannot be written.

        Example:
            >>> import visattn as va
            >>> figure = va.figure(va.AttentionMap.from_array([[0.0, 1.0]], image_size=(30, 40)))
            >>> figure.save(getfixture("tmp_path") / "figure.png")
        """
        path = Path(path)
        if path.suffix.lower() != ".png":
            raise ValueError(f"figures are PNG files, not PDF or SVG for now; got {path.name!r}")
        atomic_write(path, self.to_bytes())

    def _repr_png_(self) -> bytes:
        """Return the figure for notebooks."""
        return self.to_bytes()


def stack_figures(figures: Sequence[Figure]) -> Figure:
    """Return a figure with others of the same scale below each other.

    Args:
        figures: At least one.

    Example:
        >>> import visattn as va
        >>> figure = va.figure(va.AttentionMap.from_array([[0.0, 1.0]], image_size=(30, 40)))
        >>> stack_figures([figure, figure]).image.height == 2 * figure.image.height
        True
    """

    def draw(detail: float) -> Canvas:
        drawings = [each.draw(detail) for each in figures]
        height = sum(each.height for each in drawings)
        page = Canvas(max(each.width for each in drawings), height, detail=detail)
        top = 0
        for drawing in drawings:
            page.place(drawing, (0, top))
            top += drawing.height
        return page

    return Figure(draw, figures[0].zoom)
