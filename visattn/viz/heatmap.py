"""Overlays as arrays: a map drawn in colors on its photo.

Each pixel of an overlay depends on its photo pixel and its value `t`, from 0 to 1 on the scale:

    drawn = (1 - cover(t)) * quiet(photo) + cover(t) * color(t)

`quiet` dims and desaturates the photo, so that the map stands out; a style is the choice of
`quiet`, `cover` and `color`, as tables of 256 levels. The pages of `visattn.viz.html` draw with the
same tables.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image

from visattn.io.messages import did_you_mean, own_name
from visattn.viz.marks import draw_contour

Style = Literal["heat", "quantitative", "light", "contour"]


@dataclass(frozen=True)
class _Look:
    """Parameters of a style.

    Args:
        grayness: Desaturation of the photo where there is no attention.
        dark: Factor for the brightness of dark pixels there.
        white: Factor for the brightness of white pixels there.
        start: Values up to this share of the scale have no color.
        power: Exponent of `cover` above it; below 1, low attention is visible.
        first: Share of the colormap that is skipped, since nearly black colors look like shadows.
        lifted: Whether colors are made brighter than any dimmed photo.
        unseen: Factor for brightness outside the model's input.
    """

    grayness: float
    dark: float
    white: float
    start: float = 0.0
    power: float = 0.75
    first: float = 0.2
    lifted: bool = False
    unseen: float = 0.38

    def cover(self) -> Float[np.ndarray, " 256"]:
        """Return the opacity of each level at full opacity."""
        return self.share() ** self.power

    def share(self) -> Float[np.ndarray, " 256"]:
        return np.clip((np.linspace(0, 1, 256) - self.start) / (1 - self.start), 0, 1)

    def dimming(self) -> UInt8[np.ndarray, " 256"]:
        """Return the brightness of red, green or blue where there is no attention."""
        level = np.linspace(0, 1, 256)
        dimmed = self.dark * level / (1 + (self.dark / self.white - 1) * level)
        return (255 * dimmed).round().astype(np.uint8)


# "heat" keeps the photo; on warm and bright photos lightness need not rise with the value.
# "quantitative" makes it rise on any photo: white is dimmed to a luma of 140, colors start at 144.
_LOOKS: dict[str, _Look] = {
    "heat": _Look(0.3, 0.75, 0.75, start=0.1, power=0.7, first=0.3, unseen=0.55),
    "quantitative": _Look(0.7, 0.82, 140 / 255, lifted=True),
    "light": _Look(0.85, 0.4, 0.4),
    "contour": _Look(0.0, 1.0, 1.0, unseen=0.55),
}
_LUMA = np.array([0.299, 0.587, 0.114])
_DARKEST, _RISE = 144, 30  # lowest luma of a lifted color, and its minimum increase
# For signed maps: the hues differ at all levels, also for color-blind readers.
_POSITIVE = ((214, 84, 0), (244, 120, 10), (255, 160, 30), (255, 196, 60), (255, 226, 120))
_NEGATIVE = ((30, 80, 230), (30, 120, 250), (40, 160, 255), (90, 196, 255), (150, 226, 255))
CONTOURS = (0.25, 0.5, 0.75)
"""Shares of the value range at which `contour` draws lines."""
_FRAME = 190  # gray level of the frame around the model's input
_FRAMES = 240  # shorter side of the image / width of the frame


@cache
def colormap_lut(name: str = "inferno") -> UInt8[np.ndarray, "256 3"]:
    """Return the 256 colors of a matplotlib colormap, from the lowest to the highest value.

    Args:
        name: Name of the colormap.

    Returns:
        RGB, read-only.

    Raises:
        ValueError: If matplotlib has no such colormap.

    Example:
        >>> colormap_lut("gray")[[0, 128, 255], 0]
        array([  0, 128, 255], dtype=uint8)
    """
    from matplotlib import colormaps

    if name not in colormaps:
        raise ValueError(f"unknown colormap {name!r}; {did_you_mean(name, colormaps)}")
    lut = colormaps[name](np.linspace(0.0, 1.0, 256), bytes=True)[:, :3].copy()
    lut.flags.writeable = False
    return lut


@cache
def palettes(style: Style, colormap: str) -> tuple[bytes, bytes, bytes]:
    """Return the colors of 256 levels: for unsigned maps, positive values, and negative values.

    Args:
        style: See `overlay`.
        colormap: See `colormap_lut`.

    Returns:
        Red, green and blue of each level, interleaved, as `PIL.Image.putpalette` takes them.

    Example:
        >>> plain, positive, negative = palettes("quantitative", "gray")
        >>> list(plain[:3]), list(plain[-3:])
        ([144, 144, 144], [255, 255, 255])
    """
    look, tables = _LOOKS[style], []
    plain = colormap_lut(colormap)[round(255 * look.first) :]
    for anchors in (plain, _POSITIVE, _NEGATIVE):
        places = np.linspace(0, 1, len(anchors))
        channels = [np.interp(look.share(), places, channel) for channel in np.array(anchors).T]
        colors = np.stack(channels, -1)
        tables.append((_lifted(colors) if look.lifted else colors).round().astype(np.uint8))
    plain, positive, negative = (table.tobytes() for table in tables)
    return plain, positive, negative


def _lifted(colors: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 3"]:
    """Return colors of increasing brightness, all brighter than any dimmed photo."""
    # Scale a color until a channel is saturated, which keeps its hue; then mix it with white.
    luma = colors @ _LUMA
    wanted = np.maximum(luma, _DARKEST + _RISE * np.linspace(0, 1, len(colors)))
    factor = np.minimum(wanted / np.maximum(luma, 1e-6), 255 / np.maximum(colors.max(1), 1e-6))
    scaled = colors * factor[:, None]
    luma = scaled @ _LUMA
    white = np.clip((wanted - luma) / np.maximum(255 - luma, 1e-6), 0, 1)[:, None]
    return scaled + (255 - scaled) * white


def page_tables(colormap: str) -> dict[str, Any]:
    """Return the tables of the styles for the script of pages.

    `overlays.js` does not define colors or curves.

    Args:
        colormap: See `colormap_lut`.

    Example:
        >>> tables = page_tables("magma")
        >>> list(tables), list(tables["heat"])[3:]
        (['heat', 'light'], ['cover', 'grayness', 'unseen', 'dimming'])
    """
    names = ("colors", "positive", "negative")
    return {
        style: {
            **{
                name: np.frombuffer(colors, np.uint8)
                for name, colors in zip(names, palettes(style, colormap), strict=True)
            },
            "cover": _LOOKS[style].cover().astype(np.float32),
            "grayness": _LOOKS[style].grayness,
            "unseen": _LOOKS[style].unseen,
            "dimming": _LOOKS[style].dimming(),
        }
        for style in PAGE_STYLES
    }


PAGE_STYLES: tuple[Style, ...] = ("heat", "light")
"""Styles that pages can draw; for other styles they start with the first."""


def resize_image(
    image: UInt8[np.ndarray, "y x 3"], size: tuple[int, int]
) -> UInt8[np.ndarray, "y2 x2 3"]:
    """Return an image at another size.

    Lanczos resampling; nearest neighbor where the image is enlarged three times or more.

    Args:
        image: RGB.
        size: Height and width.

    Example:
        >>> resize_image(np.zeros((480, 640, 3), dtype=np.uint8), (120, 160)).shape
        (120, 160, 3)
    """
    height, width = size
    if (height, width) == image.shape[:2]:
        return image
    if min(height / image.shape[0], width / image.shape[1]) >= 3:
        return np.array(Image.fromarray(image).resize((width, height), Image.Resampling.NEAREST))
    lanczos = Image.Resampling.LANCZOS
    return np.array(Image.fromarray(image).resize((width, height), lanczos, reducing_gap=3.0))


def overlay(
    image: UInt8[np.ndarray, "y x 3"],
    values: Float[np.ndarray, "y x"],
    *,
    vmin: float = 0.0,
    vmax: float = 1.0,
    colormap: str = "inferno",
    opacity: float = 0.8,
    style: Style = "heat",
    signed: bool = False,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with an attention map drawn on it.

    With all styles but `contour`, each output pixel depends only on its image pixel, its value, and
    `vmin` and `vmax`: overlays with the same range can be compared.

    Args:
        image: RGB.
        values: One per pixel of the image, as `AttentionMap.resize_to_image` returns them. NaN
            marks pixels outside the model's input, which are dimmed, outside a thin frame.
        vmin: Value at the lower end of the colormap; lower values are clipped.
        vmax: Value at the upper end of the colormap; higher values are clipped.
        colormap: Colormap of unsigned maps.
        opacity: Opacity of colors at `vmax`, between 0 and 1.
        style: `heat` keeps the colors of the photo, with a heat map above a tenth of the scale;
            `quantitative` is a heat map on a gray photo whose lightness increases with the value on
            any photo; `light` shows the image at its original brightness where attention is high;
            `contour` draws lines at 25, 50 and 75 % of the value range.
        signed: Whether the map has negative values: positive ones are orange and negative ones
            blue; `light` shows magnitudes.

    Raises:
        ValueError: If the sizes differ, `vmin` is not below `vmax`, or the opacity, the style or
            the colormap is invalid.

    Example:
        >>> image = np.full((1, 2, 3), 200, dtype=np.uint8)
        >>> overlay(image, np.array([[0.0, 1.0]]), style="light")[0, :, 0]
        array([ 80, 200], dtype=uint8)
    """
    if not vmin < vmax:
        raise ValueError(f"vmin must be below vmax, got {vmin} and {vmax}")
    _check_drawing(style, opacity)
    if style == "contour":
        drawn = image.copy()
        colors = palettes(style, colormap)[1:] if signed else palettes(style, colormap)[:1]
        for sign, palette in zip((1, -1), colors, strict=False):
            for share in CONTOURS:
                red, green, blue = palette[3 * round(255 * share) :][:3]
                level = sign * (vmin + share * (vmax - vmin))
                drawn = draw_contour(drawn, values, level, (red, green, blue))
    else:
        photo = Image.fromarray(image)
        levels = Image.fromarray(quantize_levels(values, vmin, vmax, signed=signed))
        shown = photo if style == "light" else _colored(levels, values, style, colormap, signed)
        cover = _LOOKS[style].cover() * (1.0 if style == "light" else opacity)
        mask = levels.point((255 * cover).round().astype(int).tolist())
        drawn = np.array(Image.composite(shown, _quiet(photo, style), mask))
    unseen = np.isnan(values)
    if unseen.any():
        gray = _LOOKS[style].unseen * (image[unseen] @ _LUMA) + 14
        drawn[unseen] = gray.round().astype(np.uint8)[:, None]
        _frame_seen(drawn, ~unseen)
    return drawn


def _check_drawing(style: str, opacity: float) -> None:
    if style not in _LOOKS:
        raise ValueError(f"style must be one of {', '.join(_LOOKS)}, got {style!r}")
    if not 0 <= opacity <= 1:
        raise ValueError(f"opacity must be between 0 and 1, got {opacity}")


def _quiet(photo: Image.Image, style: Style) -> Image.Image:
    """Return the photo as drawn where there is no attention."""
    look = _LOOKS[style]
    gray = photo.convert("L").convert("RGB")
    return Image.blend(photo, gray, look.grayness).point(look.dimming().tolist() * 3)


def _colored(
    levels: Image.Image,
    values: Float[np.ndarray, "y x"],
    style: Style,
    colormap: str,
    signed: bool,
) -> Image.Image:
    """Return the colors of levels."""
    plain, positive, negative = palettes(style, colormap)
    output = levels.copy()
    output.putpalette(positive if signed else plain)
    output = output.convert("RGB")
    if signed:
        below = levels.copy()
        below.putpalette(negative)
        output.paste(below.convert("RGB"), mask=Image.fromarray(values < 0))
    return output


def _frame_seen(image: UInt8[np.ndarray, "y x 3"], seen: Bool[np.ndarray, "y x"]) -> None:
    """Draw a thin frame just outside the model's input."""
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    if not len(rows):
        return
    line = max(1, min(seen.shape) // _FRAMES)
    frame = (slice(max(rows[0] - line, 0), rows[-1] + 1 + line),
             slice(max(columns[0] - line, 0), columns[-1] + 1 + line))  # fmt: skip
    image[frame][~seen[frame]] = _FRAME


def quantize_levels(
    values: Float[np.ndarray, "y x"], vmin: float, vmax: float, *, signed: bool = False
) -> UInt8[np.ndarray, "y x"]:
    """Return values quantized to 256 levels; values outside the range are clipped.

    Args:
        values: NaN becomes 0.
        vmin: Value of level 0.
        vmax: Value of level 255.
        signed: Whether to quantize magnitudes.

    Example:
        >>> quantize_levels(np.array([[-1.0, 0.0, 0.5]]), 0.0, 1.0, signed=True)
        array([[255,   0, 128]], dtype=uint8)
    """
    levels = np.abs(values) if signed else values
    levels = (levels.astype(np.float32) - np.float32(vmin)) * np.float32(255 / (vmax - vmin))
    levels += np.float32(0.5)
    np.fmax(levels, 0, out=levels)  # NaN becomes 0
    return np.fmin(levels, 255, out=levels).astype(np.uint8)


@dataclass(frozen=True)
class DrawOptions:
    """How maps are drawn, in overlays, figures and pages.

    Args:
        colormap: Colormap of matplotlib.
        opacity: Opacity of colors at `vmax`, between 0 and 1.
        style: `heat`, `quantitative`, `light` or `contour`, see `visattn.viz.heatmap.overlay`.
        vmin: Value at the lower end of the colormap.
        vmax: Value at the upper end of the colormap; None for a default that depends on the result.
        smooth: Whether to interpolate between cells; None for a default that depends on the result.

    Raises:
        ValueError: If there is no such style, or the opacity is out of range.

    Example:
        >>> DrawOptions(vmax=2.0).draw(np.zeros((1, 2, 3), np.uint8), np.ones((1, 2))).shape
        (1, 2, 3)
    """

    colormap: str = "inferno"
    opacity: float = 0.8
    style: Style = "heat"
    vmin: float = 0.0
    vmax: float | None = None
    smooth: bool | None = None

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Raise an error with the name used here for options of other libraries."""
        if hints := [hint for name in options if (hint := own_name(name))]:
            raise TypeError(f"unexpected option{hints[0]}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check style and opacity before anything is drawn."""
        _check_drawing(self.style, self.opacity)

    def draw(
        self,
        image: UInt8[np.ndarray, "y x 3"],
        values: Float[np.ndarray, "y x"],
        *,
        signed: bool = False,
    ) -> UInt8[np.ndarray, "y x 3"]:
        """Return the image with a map drawn on it, by `overlay`.

        Args:
            image: RGB.
            values: One per pixel of the image.
            signed: Whether negative values are drawn in blue, and positive ones in orange.
        """
        return overlay(
            image, values, vmin=self.vmin, vmax=1.0 if self.vmax is None else self.vmax,
            colormap=self.colormap, opacity=self.opacity, style=self.style, signed=signed,
        )  # fmt: skip

    def otherwise(self, **defaults: Any) -> Self:
        """Return the options with values in place of None.

        Example:
            >>> DrawOptions(vmax=2.0).otherwise(vmax=1.0, smooth=False).vmax
            2.0
        """
        missing = {key: each for key, each in defaults.items() if getattr(self, key) is None}
        return replace(self, **missing)
