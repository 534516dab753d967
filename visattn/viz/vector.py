"""Drawings as figures of matplotlib, for PDF and SVG: images are embedded, text stays text."""

import io
import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import UInt8

from visattn.viz.canvas import (
    BACKGROUND,
    Canvas,
    Circle,
    Frame,
    Ink,
    PlacedDrawing,
    PlacedImage,
    PlacedText,
    Rectangle,
    Shape,
    Stroke,
)
from visattn.viz.photo_compression import is_photo, strip_of, with_photos
from visattn.viz.text import fallback_font, has_rtl_letters, load_font

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure as MatplotlibFigure

VectorFormat = Literal["pdf", "svg"]
PIXELS_PER_INCH = 96
_POINTS = 72 / PIXELS_PER_INCH  # per pixel
_RTL_DETAIL = 4  # pixels of text that is drawn as an image, per pixel of the canvas


def matplotlib_figure(canvas: Canvas, zoom: float = 1.0) -> "MatplotlibFigure":
    """Return a drawing as a figure of matplotlib.

    Args:
        canvas: The drawing.
        zoom: Pixels of 1/96 inch per pixel of the canvas.

    Example:
        >>> canvas = Canvas(192, 96)
        >>> matplotlib_figure(canvas).get_size_inches().tolist()
        [2.0, 1.0]
    """
    from matplotlib.figure import Figure

    inches = (canvas.width * zoom / PIXELS_PER_INCH, canvas.height * zoom / PIXELS_PER_INCH)
    figure = Figure(figsize=inches, facecolor=_color(BACKGROUND))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, canvas.width)
    axes.set_ylim(canvas.height, 0)
    axes.axis("off")
    _Painter(axes, zoom).draw(canvas, (0.0, 0.0), None)
    return figure


def vector_bytes(canvas: Canvas, kind: VectorFormat, zoom: float = 1.0) -> bytes:
    """Return a drawing as a file; equal drawings give equal bytes.

    Args:
        canvas: The drawing.
        kind: `pdf` or `svg`.
        zoom: Pixels of 1/96 inch per pixel of the canvas.

    Example:
        >>> vector_bytes(Canvas(60, 40), "pdf")[:5]
        b'%PDF-'
    """
    import matplotlib as mpl

    dated = {"pdf": "CreationDate", "svg": "Date"}[kind]
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
        "svg.hashsalt": "visattn",
        "image.composite_image": False,
        "path.simplify": False,
    }
    buffer = io.BytesIO()
    with mpl.rc_context(settings), warnings.catch_warnings():
        # Of letters that the font lacks, a box is drawn, as on raster images.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = matplotlib_figure(canvas, zoom)
        photos = _without_photos(figure)
        figure.savefig(buffer, format=kind, metadata={dated: None, "Creator": "visattn"})
    return with_photos(buffer.getvalue(), kind, photos)


def _without_photos(figure: "MatplotlibFigure") -> list[UInt8[np.ndarray, "_y _x _c"]]:
    """Take the photos out of a figure, leave a strip in the place of each, and return them."""
    from matplotlib.image import AxesImage

    images = [each for each in figure.axes[0].get_children() if isinstance(each, AxesImage)]
    photos: list[UInt8[np.ndarray, "_y _x _c"]] = []
    for image in images:
        if is_photo(pixels := np.asarray(image.get_array())):
            image.set_data(strip_of(len(photos)))
            photos.append(pixels)
    return photos


def _color(color: Ink) -> Any:
    return tuple(level / 255 for level in color)


class _Painter:
    """Adds the marks of a drawing to axes, each above those before."""

    def __init__(self, axes: Any, zoom: float) -> None:
        self.axes = axes
        self.zoom = zoom
        self.points = _POINTS * zoom
        self.count = 0

    def draw(self, canvas: Canvas, place: tuple[float, float], clip: Any) -> None:
        """Add all marks of a drawing, cut at its edges if it lies on another one."""
        for mark in canvas.marks:
            if isinstance(mark, PlacedDrawing):
                inner = (place[0] + mark.place[0], place[1] + mark.place[1])
                self.draw(mark.drawing, inner, self._clip(mark.drawing, inner))
                continue
            for artist in self.artists(mark.moved(*place)):
                self.count += 1
                artist.set_zorder(self.count)
                self.axes.add_artist(artist)
                if clip is not None:
                    artist.set_clip_path(clip)

    def _clip(self, canvas: Canvas, place: tuple[float, float]) -> "Artist":
        from matplotlib.patches import Rectangle as Patch

        return Patch(place, canvas.width, canvas.height, transform=self.axes.transData)

    def artists(self, mark: PlacedImage | Shape) -> "list[Artist]":
        """Return what matplotlib draws for a mark."""
        match mark:
            case PlacedImage():
                return [self._image(mark)]
            # Pillow shapes right-to-left text, and knows which font has the letters.
            case PlacedText() if has_rtl_letters(mark.text) or fallback_font(mark.text):
                return [self._image(mark.as_image(_RTL_DETAIL))]
            case PlacedText():
                return [self._text(mark)]
            case Rectangle():
                return self._rectangle(mark)
            case Frame():
                return [self._frame(mark)]
            case Stroke():
                return [self._line(mark)]
            case Circle():
                return [self._circle(mark)]

    def _image(self, mark: PlacedImage) -> "Artist":
        from matplotlib.collections import PolyCollection
        from matplotlib.image import AxesImage

        (x, y), (height, width) = mark.place, mark.size
        if not mark.is_ramp:
            extent = (x, x + width, y + height, y)
            image = AxesImage(self.axes, interpolation="none", origin="upper", extent=extent)
            image.set_data(mark.pixels)
            return image
        colors = mark.pixels[0]
        steps = np.flatnonzero(np.append(True, (colors[1:] != colors[:-1]).any(1)))
        lefts = x + steps * (width / len(colors))
        # Each color reaches to the right end, below the next one: no seams between them.
        boxes = [[(a, y), (x + width, y), (x + width, y + height), (a, y + height)] for a in lefts]
        faces = [_color(tuple(colors[step].tolist())) for step in steps]
        return PolyCollection(boxes, facecolors=faces, edgecolors="none")

    def _text(self, mark: PlacedText) -> "Artist":
        from matplotlib.font_manager import FontProperties
        from matplotlib.text import Text

        ascent, descent = load_font(mark.size * 8).getmetrics()
        across, along = mark.anchor
        below = {"a": ascent / 8, "m": (ascent - descent) / 16, "s": 0.0}[along]
        x, y = mark.place
        x, y = (x + below, y) if mark.upright else (x, y + below)
        fonts = FontProperties(family=["DejaVu Sans"], size=mark.size * self.points)
        return Text(
            x,
            y,
            mark.text,
            color=_color(mark.color),
            fontproperties=fonts,
            ha={"l": "left", "m": "center", "r": "right"}[across],
            va="baseline",
            rotation=90 if mark.upright else 0,
            rotation_mode="anchor",
            parse_math=False,
            usetex=False,
        )

    def _rectangle(self, mark: Rectangle) -> "list[Artist]":
        from matplotlib.patches import FancyBboxPatch

        left, top, right, bottom = mark.box
        if not mark.smooth:  # the last pixel belongs to it
            right += 1
            bottom += 1
        line = 0.0 if mark.outline is None else mark.width
        width, height = right - left - line, bottom - top - line
        if width <= 0 or height <= 0:
            return []
        style = "square,pad=0"
        if mark.radius:
            style = f"round,pad=0,rounding_size={min(mark.radius, width / 2, height / 2)}"
        return [
            FancyBboxPatch(
                (left + line / 2, top + line / 2),
                width,
                height,
                boxstyle=style,
                facecolor="none" if mark.fill is None else _color(mark.fill),
                edgecolor="none" if mark.outline is None else _color(mark.outline),
                linewidth=line * self.points,
                joinstyle="miter",
            )
        ]

    def _frame(self, mark: Frame) -> "Artist":
        from matplotlib.patches import Rectangle as Patch

        left, top, right, bottom = mark.box
        size = (max(right - left, 0.0), max(bottom - top, 0.0))
        return Patch((left, top), *size, fill=False, edgecolor=_color(mark.color),
                     linewidth=mark.width * self.points, joinstyle="miter")  # fmt: skip

    def _line(self, mark: Stroke) -> "Artist":
        from matplotlib.lines import Line2D

        x, y = zip(*mark.points, strict=True)
        return Line2D(x, y, color=_color(mark.color), linewidth=mark.width * self.points,
                      solid_joinstyle="round", solid_capstyle="butt")  # fmt: skip

    def _circle(self, mark: Circle) -> "Artist":
        from matplotlib.patches import Circle as Patch

        return Patch(
            mark.center,
            mark.radius,
            facecolor="none" if mark.fill is None else _color(mark.fill),
            edgecolor="none" if mark.outline is None else _color(mark.outline),
            linewidth=0.0 if mark.outline is None else mark.width * self.points,
        )
