"""Drawings of images, text and shapes, which become pixels of any size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Self

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from visattn.viz.text import UnicodeFont, load_font

Color = tuple[int, int, int]
Ink = tuple[int, ...]  # a color, or one with an alpha
BACKGROUND = (250, 250, 247)
TEXT = (34, 36, 40)
MUTED = (100, 102, 106)
TRACK = (226, 226, 221)
ACCENT = (64, 128, 142)
_SUPERSAMPLING = 3  # of antialiased shapes
_SHARP = 1.5  # enlarged by more, pixels stay squares


@dataclass(frozen=True, eq=False)
class PlacedImage:
    """An image on a canvas.

    Args:
        pixels: RGB, or RGB and alpha, at any resolution.
        place: Left and top.
        size: Height and width on the canvas.
    """

    pixels: UInt8[np.ndarray, "y x 3"] | UInt8[np.ndarray, "y x 4"]
    place: tuple[float, float]
    size: tuple[float, float]
    smooth = False

    def paint(self, page: Image.Image, _: ImageDraw.ImageDraw, zoom: float) -> None:
        """Paste the image."""
        left, top = (round(side * zoom) for side in self.place)
        height, width = (max(1, round(side * zoom)) for side in self.size)
        image = Image.fromarray(self.pixels)
        if image.size != (width, height):
            enlarged = min(width / image.width, height / image.height) >= _SHARP
            resampling = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
            image = image.resize((width, height), resampling)
        page.paste(image, (left, top), image if image.mode == "RGBA" else None)


@dataclass(frozen=True, eq=False)
class PlacedText:
    """A line of text on a canvas.

    Args:
        place: Where the anchor lies.
        text: The text.
        color: Its color.
        size: Font size.
        anchor: Anchor as Pillow names them: `la`, `rm`, `ms`, ...
        smooth: Whether it is drawn at three times the resolution, like shapes around it.
    """

    place: tuple[float, float]
    text: str
    color: Ink
    size: float
    anchor: str = "la"
    smooth: bool = False

    def moved(self, x: float, y: float) -> Self:
        """Return the mark at another place."""
        return replace(self, place=(self.place[0] + x, self.place[1] + y))

    @property
    def reach(self) -> tuple[float, float, float, float]:
        """A box around the text, on the safe side."""
        (x, y), far = self.place, self.size * (len(self.text) + 2)
        return x - far, y - 2 * self.size, x + far, y + 2 * self.size

    def paint(self, _: Image.Image, pen: ImageDraw.ImageDraw, zoom: float) -> None:
        """Write the text."""
        font = load_font(round(self.size * zoom) if self.smooth else _font_size(self.size * zoom))
        x, y = (side * zoom for side in self.place)
        pen.text((x, y), self.text, self.color, font, anchor=self.anchor)


@dataclass(frozen=True, eq=False)
class Rectangle:
    """A filled or framed rectangle on a canvas.

    Args:
        box: Left, top, right and bottom: the first and the last pixel of each axis.
        fill: Color inside.
        outline: Color of the frame, which lies inside of the box.
        width: Width of the frame.
        radius: Radius of the corners.
        smooth: Whether edges lie between pixels, too: right and bottom are where it ends.
    """

    box: tuple[float, float, float, float]
    fill: Ink | None = None
    outline: Ink | None = None
    width: float = 1.0
    radius: float = 0.0
    smooth: bool = False

    def moved(self, x: float, y: float) -> Self:
        """Return the mark at another place."""
        left, top, right, bottom = self.box
        return replace(self, box=(left + x, top + y, right + x, bottom + y))

    @property
    def reach(self) -> tuple[float, float, float, float]:
        """A box around the rectangle."""
        left, top, right, bottom = self.box
        return left - 1, top - 1, right + 2, bottom + 2

    def paint(self, _: Image.Image, pen: ImageDraw.ImageDraw, zoom: float) -> None:
        """Draw the rectangle."""
        left, top, right, bottom = (side * zoom for side in self.box)
        if not self.smooth and zoom != 1:  # the last pixel has become several
            right += zoom - 1
            bottom += zoom - 1
        box = (left, top, right, bottom)
        width = max(1, round(self.width * zoom))
        if self.radius:
            pen.rounded_rectangle(box, self.radius * zoom, self.fill, self.outline, width)
        else:
            pen.rectangle(box, self.fill, self.outline, width)


@dataclass(frozen=True, eq=False)
class Stroke:
    """A line through points, antialiased."""

    points: Sequence[tuple[float, float]]
    color: Ink
    width: float = 1.0
    smooth = True

    def moved(self, x: float, y: float) -> Self:
        """Return the mark at another place."""
        return replace(self, points=[(each[0] + x, each[1] + y) for each in self.points])

    @property
    def reach(self) -> tuple[float, float, float, float]:
        """A box around the line."""
        x, y = zip(*self.points, strict=True)
        return min(x) - self.width, min(y) - self.width, max(x) + self.width, max(y) + self.width

    def paint(self, _: Image.Image, pen: ImageDraw.ImageDraw, zoom: float) -> None:
        """Draw the line."""
        points = [(float(x) * zoom, float(y) * zoom) for x, y in self.points]
        pen.line(points, self.color, max(1, round(self.width * zoom)), "curve")


@dataclass(frozen=True, eq=False)
class Circle:
    """A disk or a ring, antialiased."""

    center: tuple[float, float]
    radius: float
    fill: Ink | None = None
    outline: Ink | None = None
    width: float = 1 / _SUPERSAMPLING
    smooth = True

    def moved(self, x: float, y: float) -> Self:
        """Return the mark at another place."""
        return replace(self, center=(self.center[0] + x, self.center[1] + y))

    @property
    def reach(self) -> tuple[float, float, float, float]:
        """A box around the circle."""
        (x, y), far = self.center, self.radius + 1
        return x - far, y - far, x + far, y + far

    def paint(self, _: Image.Image, pen: ImageDraw.ImageDraw, zoom: float) -> None:
        """Draw the circle."""
        (x, y), radius = (side * zoom for side in self.center), self.radius * zoom
        box = (x - radius, y - radius, x + radius, y + radius)
        pen.ellipse(box, self.fill, self.outline, max(1, round(self.width * zoom)))


@dataclass(frozen=True, eq=False)
class Frame:
    """A line along the edges of a box, antialiased."""

    box: tuple[float, float, float, float]
    color: Ink
    width: float
    smooth = True

    @property
    def reach(self) -> tuple[float, float, float, float]:
        """A box around the line."""
        left, top, right, bottom = self.box
        width = self.width
        return left - width, top - width, max(left, right) + width, max(top, bottom) + width

    def moved(self, x: float, y: float) -> Self:
        """Return the mark at another place."""
        left, top, right, bottom = self.box
        return replace(self, box=(left + x, top + y, right + x, bottom + y))

    def paint(self, _: Image.Image, pen: ImageDraw.ImageDraw, zoom: float) -> None:
        """Draw the line."""
        left, top, right, bottom = (side * zoom for side in self.box)
        half = self.width * zoom / 2
        edges = (left - half, top - half, max(left, right + half - 1), max(top, bottom + half - 1))
        pen.rectangle(edges, outline=self.color, width=max(1, round(2 * half)))


@dataclass(frozen=True, eq=False)
class PlacedDrawing:
    """A drawing on another one, which ends at its own edges."""

    drawing: "Canvas"
    place: tuple[float, float]
    smooth = False

    def paint(self, page: Image.Image, _: ImageDraw.ImageDraw, zoom: float) -> None:
        """Paste the drawing."""
        left, top = (round(side * zoom) for side in self.place)
        page.paste(self.drawing.paint(zoom), (left, top))


Shape = PlacedText | Rectangle | Stroke | Circle | Frame
Mark = PlacedImage | PlacedDrawing | Shape


class Canvas:
    """A drawing: images, texts and shapes in their order, placed in pixels of 1/96 inch.

    What is drawn is kept; `paint` turns it into pixels, of any resolution.

    Args:
        width: Width in pixels.
        height: Height in pixels.
        detail: Pixels of images per pixel of the canvas.

    Example:
        >>> canvas = Canvas(60, 40)
        >>> canvas.rectangle((10, 10, 19, 19), ACCENT)
        >>> canvas.paint(2).size, canvas.paint(2).getpixel((39, 39)) == ACCENT
        ((120, 80), True)
    """

    def __init__(self, width: int, height: int, *, detail: float = 1.0) -> None:
        self.width = width
        self.height = height
        self.detail = detail
        self.marks: list[Mark] = []

    def paste(
        self,
        image: UInt8[np.ndarray, "y x 3"],
        place: tuple[float, float],
        size: tuple[float, float] | None = None,
    ) -> None:
        """Place an image; by default, with `detail` pixels on each of the canvas.

        Args:
            image: RGB.
            place: Left and top.
            size: Height and width.
        """
        if size is None:
            size = (image.shape[0] / self.detail, image.shape[1] / self.detail)
        self.marks.append(PlacedImage(image, place, size))

    def text(
        self,
        place: tuple[float, float],
        text: str,
        color: Ink,
        font: UnicodeFont,
        *,
        anchor: str = "la",
        smooth: bool = False,
    ) -> None:
        """Write a line of text, see `PlacedText`."""
        if text:
            self.marks.append(PlacedText(place, text, color, font.size, anchor, smooth))

    def rectangle(self, box: Sequence[float], fill: Ink | None = None, **options: Any) -> None:
        """Draw a rectangle, see `Rectangle`."""
        left, top, right, bottom = map(float, box)
        self.marks.append(Rectangle((left, top, right, bottom), fill, **options))

    def line(self, points: Sequence[tuple[float, float]], color: Ink, width: float = 1.0) -> None:
        """Draw a line through points."""
        self.marks.append(Stroke(points, color, width))

    def circle(
        self, center: tuple[float, float], radius: float, fill: Ink | None, **options: Any
    ) -> None:
        """Draw a disk or a ring, see `Circle`."""
        self.marks.append(Circle(center, radius, fill, **options))

    def frame(self, edges: Sequence[float], color: Ink, width: float) -> None:
        """Draw an antialiased line along the edges of a box, half of it on each side."""
        left, top, right, bottom = map(float, edges)
        self.marks.append(Frame((left, top, right, bottom), color, width))

    def place(self, drawing: "Canvas", place: tuple[float, float]) -> None:
        """Place another drawing, with its left and top there; what reaches out of it is cut."""
        self.marks.append(PlacedDrawing(drawing, place))

    def paint(self, zoom: float = 1.0) -> Image.Image:
        """Return the drawing as pixels: text, lines, margins and images grow alike.

        Args:
            zoom: Pixels of the image per pixel of the canvas.
        """
        size = max(1, round(self.width * zoom)), max(1, round(self.height * zoom))
        page = Image.new("RGB", size, BACKGROUND)
        for smooth, marks in groupby(self.marks, lambda mark: mark.smooth):
            if smooth:
                _paint_smooth(page, [mark for mark in marks if isinstance(mark, Shape)], zoom)
                continue
            pen = ImageDraw.Draw(page)
            for mark in marks:
                mark.paint(page, pen, zoom)
        return page


def _font_size(size: float) -> float:
    """Return a size in pixels, whole where it is: fonts of whole sizes have sharper stems."""
    return round(size) if abs(size - round(size)) < 0.05 else size


def _paint_smooth(page: Image.Image, marks: Sequence[Shape], zoom: float) -> None:
    """Draw shapes antialiased: on an enlarged copy of their surroundings, which is reduced."""
    boxes = np.array([mark.reach for mark in marks]) * zoom
    left, top = (max(0, math.floor(side)) for side in boxes[:, :2].min(0).tolist())
    right, bottom = (math.ceil(side) for side in boxes[:, 2:].max(0).tolist())
    right, bottom = min(right, page.width), min(bottom, page.height)
    if left >= right or top >= bottom:
        return
    size = ((right - left) * _SUPERSAMPLING, (bottom - top) * _SUPERSAMPLING)
    large = page.crop((left, top, right, bottom)).resize(size, Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(large, "RGBA")  # blends colors with an alpha
    for mark in marks:
        mark.moved(-left / zoom, -top / zoom).paint(large, pen, zoom * _SUPERSAMPLING)
    page.paste(large.reduce(_SUPERSAMPLING), (left, top))
