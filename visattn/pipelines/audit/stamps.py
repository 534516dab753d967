"""Stamp probes: artefacts that are put on photos, and what they change for each class."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from visattn.geometry.affine import Box
from visattn.images.reader import LoadedImage, read_header, read_image

Draw = Callable[[Image.Image, np.random.Generator], Image.Image]
_CHANGED = 3  # of 255; less is rounding
_SHORT = 0.05  # of the shorter side: lines, margins


@dataclass(frozen=True)
class Stamp:
    """An artefact.

    Args:
        name: Its name in reports.
        draw: Puts it on the visible part of a photo; random numbers place it.
        is_local: Whether it covers a part of the photo. Its control then has the covered part
            blurred, so that what is lost below it is lost in both.
    """

    name: str
    draw: Draw
    is_local: bool = True

    def apply(
        self, image: LoadedImage, region: Box, generator: np.random.Generator
    ) -> tuple[LoadedImage, LoadedImage]:
        """Return a photo with the artefact, and its control.

        Args:
            image: The photo.
            region: Left, top, right, bottom of the part that the model sees.
            generator: Random numbers of its place.
        """
        left, top, right, bottom = (round(side) for side in region)
        part = Image.fromarray(image.pixels[top:bottom, left:right])
        stamped = np.asarray(self.draw(part, generator))
        control = np.asarray(part)
        if self.is_local:
            control = _without_content(part, stamped)
        return tuple(_with_part(image, each, left, top) for each in (stamped, control))  # pyright: ignore[reportReturnType]


def _without_content(part: Image.Image, stamped: UInt8[np.ndarray, "y x 3"]) -> np.ndarray:
    """Return a photo that is blurred where the artefact changed it."""
    pixels = np.asarray(part)
    changed = (np.abs(stamped.astype(int) - pixels).max(2) > _CHANGED).astype(np.uint8) * 255
    around = np.asarray(Image.fromarray(changed).filter(ImageFilter.MaxFilter(3))) > 0
    blurred = np.asarray(part.filter(ImageFilter.GaussianBlur(_side(part) * 0.08)))
    return np.where(around[..., None], blurred, pixels)


def _with_part(image: LoadedImage, part: np.ndarray, left: int, top: int) -> LoadedImage:
    pixels = image.pixels.copy()
    pixels[top : top + part.shape[0], left : left + part.shape[1]] = part
    return LoadedImage(pixels, image.orientation, image.name)


def _side(image: Image.Image) -> int:
    return min(image.size)


def _frame(color: tuple[int, int, int]) -> Draw:
    def draw(image: Image.Image, _: np.random.Generator) -> Image.Image:
        drawn = image.copy()
        width = max(1, round(_side(image) * _SHORT))
        ImageDraw.Draw(drawn).rectangle(
            (0, 0, image.width - 1, image.height - 1), outline=color, width=width
        )
        return drawn

    return draw


def _font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(max(6, round(size)))


def _label(
    text: str,
    color: tuple[int, int, int],
    *,
    fill: tuple[int, int, int] | None = None,
    height: float = 0.08,
    opacity: float = 1.0,
    corner: tuple[float, float] | None = None,
) -> Draw:
    """Return what draws a text, on a plate of its own if `fill` is set, in a corner or anywhere."""

    def draw(image: Image.Image, generator: np.random.Generator) -> Image.Image:
        font = _font(_side(image) * height)
        box = font.getbbox(text)
        margin = round(_side(image) * height * 0.3)
        width, tall = round(box[2]) + 2 * margin, round(box[3]) + 2 * margin
        plate = Image.new("RGBA", (width, tall), (*fill, 255) if fill else (0, 0, 0, 0))
        ImageDraw.Draw(plate).text((margin, margin), text, fill=(*color, 255), font=font)
        if plate.width > image.width:
            plate = plate.resize((image.width, max(1, tall * image.width // width)))
        at = generator.random(2) if corner is None else np.array(corner)
        return _pasted(image, plate, at, opacity)

    return draw


def _pasted(image: Image.Image, plate: Image.Image, at: np.ndarray, opacity: float) -> Image.Image:
    """Return a photo with a plate; 0, 0 is the upper left place and 1, 1 the lower right."""
    x = round(float(at[0]) * (image.width - plate.width))
    y = round(float(at[1]) * max(image.height - plate.height, 0))
    mask = plate.getchannel("A").point([round(level * opacity) for level in range(256)])
    drawn = image.copy()
    drawn.paste(plate.convert("RGB"), (x, y), mask)
    return drawn


def _ruler(image: Image.Image, _: np.random.Generator) -> Image.Image:
    drawn = image.copy()
    pen = ImageDraw.Draw(drawn)
    height = max(4, round(_side(image) * 0.09))
    top = image.height - height
    pen.rectangle((0, top, image.width, image.height), fill=(238, 232, 205))
    step = max(3, round(_side(image) * 0.025))
    for number, x in enumerate(range(0, image.width, step)):
        length = height * (0.7 if number % 5 == 0 else 0.4)
        pen.line((x, top, x, top + length), fill=(20, 20, 20), width=max(1, step // 5))
    return drawn


def _tint(*gains: float) -> Draw:
    def draw(image: Image.Image, _: np.random.Generator) -> Image.Image:
        tinted = np.asarray(image) * np.array(gains)
        return Image.fromarray(tinted.clip(0, 255).astype(np.uint8))

    return draw


def _gray(image: Image.Image, _: np.random.Generator) -> Image.Image:
    return image.convert("L").convert("RGB")


def _blur(image: Image.Image, _: np.random.Generator) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(_side(image) * 0.015))


def _jpeg(image: Image.Image, _: np.random.Generator) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "jpeg", quality=8)
    return Image.fromarray(read_image(buffer.getvalue()).pixels)


def _bars(image: Image.Image, _: np.random.Generator) -> Image.Image:
    drawn = image.copy()
    height = round(image.height * 0.12)
    pen = ImageDraw.Draw(drawn)
    pen.rectangle((0, 0, image.width, height - 1), fill=(0, 0, 0))
    pen.rectangle((0, image.height - height, image.width, image.height), fill=(0, 0, 0))
    return drawn


_WHITE, _BLACK = (255, 255, 255), (10, 10, 10)


def default_stamps() -> list[Stamp]:
    """Return the bank of artefacts.

    Example:
        >>> len({stamp.name for stamp in default_stamps()}) == len(default_stamps()) > 20
        True
    """
    right, left = (1.0, 1.0), (0.0, 0.0)
    return [
        Stamp("frame, black", _frame(_BLACK)),
        Stamp("frame, white", _frame(_WHITE)),
        Stamp("frame, colored", _frame((30, 60, 200))),
        Stamp("bars above and below", _bars),
        Stamp("corner text, white", _label("(c) 2024 Photo", _WHITE, corner=right)),
        Stamp("corner text, upper left", _label("IMG 0412 A", _WHITE, corner=left)),
        Stamp("corner text, black on white", _label("No. 3719", _BLACK, fill=_WHITE, corner=right)),
        Stamp("date, orange", _label("12 05 '21", (255, 140, 20), corner=(0.95, 0.95))),
        Stamp(
            "watermark, faint", _label("SAMPLE", _WHITE, height=0.2, opacity=0.4, corner=(0.5, 0.5))
        ),
        Stamp(
            "watermark, corner",
            _label("stock.example", _WHITE, height=0.1, opacity=0.55, corner=(0.0, 1.0)),
        ),
        Stamp("tag, yellow", _label("A 17", _BLACK, fill=(250, 220, 60), height=0.1)),
        Stamp("tag, red", _label("B 52", _WHITE, fill=(200, 30, 40), height=0.1)),
        Stamp("tag, blue", _label("C 08", _WHITE, fill=(30, 80, 200), height=0.1)),
        Stamp("tag, green", _label("D 31", _WHITE, fill=(30, 140, 60), height=0.1)),
        Stamp("ruler", _ruler),
        Stamp("tint, warm", _tint(1.15, 1.0, 0.7), is_local=False),
        Stamp("tint, yellow-green", _tint(1.0, 1.15, 0.7), is_local=False),
        Stamp("tint, sea green", _tint(0.7, 1.15, 1.0), is_local=False),
        Stamp("tint, cold", _tint(0.7, 1.0, 1.15), is_local=False),
        Stamp("tint, violet", _tint(1.0, 0.7, 1.15), is_local=False),
        Stamp("tint, pink", _tint(1.15, 0.7, 1.0), is_local=False),
        Stamp("gray", _gray, is_local=False),
        Stamp("blur", _blur, is_local=False),
        Stamp("JPEG of low quality", _jpeg, is_local=False),
        Stamp("dark", _tint(0.5, 0.5, 0.5), is_local=False),
    ]


def stamp_of_file(path: Path) -> Stamp:
    """Return an artefact from an image, which is put anywhere on photos, a quarter as wide.

    Args:
        path: An image; its transparency is kept.

    Raises:
        ImageError: If it cannot be read.
    """
    is_transparent = read_header(path).mode == "RGBA"
    image = read_image(path, display=0 if is_transparent else None)
    if image.values is None:
        plate = Image.fromarray(image.pixels).convert("RGBA")
    else:  # not composited on white, as photos are
        plate = Image.fromarray((image.values * 255).round().astype(np.uint8))

    def draw(image: Image.Image, generator: np.random.Generator) -> Image.Image:
        width = max(2, round(_side(image) * 0.25))
        small = plate.resize((width, max(2, min(round(width * plate.height / plate.width),
                                                image.height))))  # fmt: skip
        return _pasted(image, small, generator.random(2), 1.0)

    return Stamp(path.name, draw)


def reduced(image: LoadedImage, region: Box, side: int) -> tuple[LoadedImage, Box]:
    """Return a large photo at a smaller size, and the region of it that the model sees.

    Args:
        image: The photo.
        region: Left, top, right, bottom.
        side: Shorter side of the region that is enough, in pixels.
    """
    factor = int(min(region[2] - region[0], region[3] - region[1]) // side)
    if factor < 2:
        return image, region
    size = tuple(-(-length // factor) for length in image.size[::-1])
    small = Image.fromarray(image.pixels).resize((size[0], size[1]), Image.Resampling.BOX)
    scale = (size[0] / image.size[1], size[1] / image.size[0])
    moved = tuple(edge * scale[number % 2] for number, edge in enumerate(region))
    pixels = np.asarray(small)
    return LoadedImage(pixels, image.orientation, image.name), moved  # pyright: ignore[reportReturnType]
