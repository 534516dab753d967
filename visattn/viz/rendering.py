"""Figures: drawings that become pixels at any scale, PDF, SVG, or a figure of matplotlib."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from PIL import Image

from visattn.images.encoding import encode_png
from visattn.io.atomic import atomic_write
from visattn.viz.canvas import Canvas
from visattn.viz.vector import PIXELS_PER_INCH, matplotlib_figure, vector_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

FigureFormat = Literal["png", "pdf", "svg"]
FORMATS: tuple[FigureFormat, ...] = get_args(FigureFormat)
_RESOLUTION = 300  # of photos in PDF and SVG, in pixels per inch


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
        >>> figure.image.size[0], figure.to_bytes("svg")[:5]
        (1200, b'<?xml')
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

    def matplotlib(self) -> "MatplotlibFigure":
        """Return a figure of matplotlib, for changes before it is saved.

        Example:
            >>> import visattn as va
            >>> figure = va.figure(va.AttentionMap.from_array([[0.0, 1.0]], image_size=(30, 40)))
            >>> figure.matplotlib().get_size_inches()[0]
            np.float64(12.5)
        """
        return matplotlib_figure(self._detailed(), self.zoom)

    def to_bytes(self, kind: FigureFormat = "png") -> bytes:
        """Return the figure as a file: equal figures give equal bytes.

        Args:
            kind: `png`; or `pdf` or `svg`, where text stays text, lines and legends are vectors,
                and photos are embedded with 300 pixels per inch.

        Raises:
            ValueError: If the format is unknown.
        """
        if kind not in FORMATS:
            raise ValueError(f"the format of a figure must be png, pdf or svg, got {kind!r}")
        if kind != "png":
            return vector_bytes(self._detailed(), kind, self.zoom)
        return encode_png(np.asarray(self.image))

    def save(self, path: str | Path) -> None:
        """Write the figure into a file, whose suffix says the format.

        Args:
            path: Path that ends in `.png`, `.pdf` or `.svg`.

        Raises:
            ValueError: If it ends otherwise.
            OSError: If it cannot be written.

        Example:
            >>> import visattn as va
            >>> figure = va.figure(va.AttentionMap.from_array([[0.0, 1.0]], image_size=(30, 40)))
            >>> figure.save(getfixture("tmp_path") / "figure.pdf")
        """
        path = Path(path)
        for kind in FORMATS:
            if path.suffix.lower() == f".{kind}":
                atomic_write(path, self.to_bytes(kind))
                return
        raise ValueError(f"the name of a figure must end in .png, .pdf or .svg, got {path.name!r}")

    def _detailed(self) -> Canvas:
        return self.draw(self.zoom * _RESOLUTION / PIXELS_PER_INCH)

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
