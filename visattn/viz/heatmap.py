"""Heatmaps: colormaps, placement of cells, and blending with the photo."""

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Bool, Float, Integer, UInt8
from PIL import Image, ImageFilter

from visattn.io.messages import did_you_mean
from visattn.viz.marks import draw_range_contours


@cache
def colormap_lut(name: str = "magma") -> UInt8[np.ndarray, "256 3"]:
    """Return the 256 colors of a matplotlib colormap, from the lowest value to the highest.

    Args:
        name: Name of the colormap. `magma`, `inferno`, `viridis` and `cividis` are perceptually
            uniform by themselves; blended with a photo, they are not (see `overlay_palette`).

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


# An overlay is photo * (1 - alpha) + color * alpha. It gets lighter with the value on any photo if
# every color is lighter than the photo below it, so bright pixels are dimmed to `_BRIGHTEST` and
# colors are lifted above it:
#
#     lightness   photo       dimmed       colors
#        255      white --.                  /  1
#        144               \      _________/    0   `_DARKEST` at value 0
#        140                `---- white
#          0      black --------- black
_BRIGHTEST = 140  # luma of white paper where there is no attention
_DARKEST, _RISE = _BRIGHTEST + 4, 30  # lowest luma of a color, and how much it rises at least
_LUMA = np.array([0.299, 0.587, 0.114])
_POSITIVE = ((214, 84, 0), (244, 120, 10), (255, 160, 30), (255, 196, 60), (255, 226, 120))
_NEGATIVE = ((30, 80, 230), (30, 120, 250), (40, 160, 255), (90, 196, 255), (150, 226, 255))


@cache
def overlay_palette(name: str) -> bytes:
    """Return the colors of overlays: a colormap without its lowest fifth, lifted above the photo.

    The lowest fifth of most colormaps is nearly black and would look like shadow on a photo. With
    the colors of `magma`, `inferno`, `viridis` and others whose lightness rises, overlays become
    lighter with the value, on dark and on bright photos.

    Args:
        name: See `colormap_lut`.

    Returns:
        Red, green and blue of 256 levels, interleaved, as `PIL.Image.putpalette` takes them.

    Example:
        >>> palette = overlay_palette("gray")
        >>> list(palette[:3]), list(palette[-3:])
        ([144, 144, 144], [255, 255, 255])
    """
    return _lifted(colormap_lut(name)[np.linspace(51, 255, 256).round().astype(int)])


@cache
def signed_palettes() -> tuple[bytes, bytes]:
    """Return the colors of positive values, orange, and of negative values, blue.

    The hues differ from the first level on, also for viewers with a color-vision deficiency.

    Returns:
        Two palettes as of `overlay_palette`.

    Example:
        >>> positive, negative = signed_palettes()
        >>> positive[0] > positive[2], negative[0] < negative[2]
        (True, True)
    """
    arms = []
    for anchors in (_POSITIVE, _NEGATIVE):
        at, places = np.linspace(0, 1, 256), np.linspace(0, 1, len(anchors))
        channels = [np.interp(at, places, channel) for channel in np.array(anchors).T]
        arms.append(_lifted(np.stack(channels, -1)))
    return arms[0], arms[1]


def _lifted(colors: Integer[np.ndarray, "n 3"] | Float[np.ndarray, "n 3"]) -> bytes:
    """Return colors as a palette, made brighter where they are darker than a photo can be."""
    # A color is scaled until a channel is full, which keeps its hue, and then mixed with white.
    luma = colors @ _LUMA
    wanted = np.maximum(luma, _DARKEST + _RISE * np.linspace(0, 1, len(colors)))
    factor = np.minimum(wanted / np.maximum(luma, 1e-6), 255 / np.maximum(colors.max(1), 1e-6))
    scaled = colors * factor[:, None]
    luma = scaled @ _LUMA
    white = np.clip((wanted - luma) / np.maximum(255 - luma, 1e-6), 0, 1)[:, None]
    return (scaled + (255 - scaled) * white).round().astype(np.uint8).tobytes()


def _palettes(colormap: str, *, signed: bool) -> Sequence[bytes]:
    """Return the palette of positive values, and of negative ones if there are any."""
    return signed_palettes() if signed else (overlay_palette(colormap),)


def page_tables(colormap: str) -> dict[str, Any]:
    """Return the tables with which pages draw overlays, as plain values for JSON.

    `overlays.js` has no colors and no curves of its own.

    Args:
        colormap: See `colormap_lut`.

    Example:
        >>> tables = page_tables("magma")
        >>> sorted(tables), len(tables["cover"])
        (['colors', 'cover', 'dimming', 'negative', 'positive'], 256)
    """
    positive, negative = signed_palettes()
    names = zip(("colors", "positive", "negative"), (overlay_palette(colormap), positive, negative),
                strict=True)  # fmt: skip
    return {
        **{name: base64.b64encode(palette).decode() for name, palette in names},
        "cover": [round(each, 5) for each in _COVER],
        "dimming": {
            style: [_DIMMING[style][0], base64.b64encode(bytes(_dimming_lut(style))).decode()]
            for style in ("heat", "light")
        },
    }


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


def resize_map(
    values: Float[np.ndarray, "y x"], size: tuple[int, int]
) -> Float[np.ndarray, "y2 x2"]:
    """Return a map at another size: bilinear over finite values; NaN stays NaN.

    Args:
        values: The map; NaN outside the model's input.
        size: Height and width.

    Example:
        >>> resize_map(np.array([[1.0, 3.0, np.nan, np.nan]]), (1, 2))
        array([[ 2., nan]], dtype=float32)
    """
    if values.shape == size:
        return values
    height, width = size
    valid = ~np.isnan(values)
    # The mean over finite values: resampled with zeros for NaN, divided by the resampled mask.
    masked = Image.fromarray(np.where(valid, values, 0).astype(np.float32))
    total = masked.resize((width, height), Image.Resampling.BILINEAR)
    mask = Image.fromarray(valid.astype(np.float32))
    weight = np.asarray(mask.resize((width, height), Image.Resampling.BILINEAR))
    kept = weight >= 0.5
    return np.where(kept, np.asarray(total) / np.where(kept, weight, 1), np.float32(np.nan))


Style = Literal["heat", "light", "blur", "contour"]
STYLES: tuple[Style, ...] = ("heat", "light", "blur", "contour")

# How the image is dimmed where there is no attention: desaturation, remaining brightness of dark
# pixels and of white.
_DIMMING = {"heat": (0.7, 0.82, _BRIGHTEST / 255), "light": (0.85, 0.4, 0.4),
            "blur": (0.25, 0.8, 0.8)}  # fmt: skip
_COVER = [
    (level / 255) ** 0.75 for level in range(256)
]  # concave, so that low attention is visible
_NAN_LUT = [round(0.38 * level) + 14 for level in range(256)]
_HATCH_LUT = [level + 40 for level in _NAN_LUT]
_FRAME = 190  # gray of the line around what the model saw
_FRAMES = 240  # widths of this line in the shorter side of an image
_BLUR_RATIO = 24  # shorter side of the image / blur radius
_BAND_PIXELS = 1 << 18  # pixels that are drawn at once, so that they fit into the CPU cache


def overlay(
    image: UInt8[np.ndarray, "y x 3"],
    values: Float[np.ndarray, "y x"],
    *,
    vmin: float = 0.0,
    vmax: float = 1.0,
    colormap: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    signed: bool = False,
    hatched: bool = False,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with an attention map drawn on it.

    Where attention is low, the image is dimmed and almost gray. With `heat` and `light`, each
    output pixel depends only on its image pixel, its value, and `vmin` and `vmax`: overlays with
    the same range can be compared.

    Args:
        image: RGB.
        values: One per pixel of the image, as `AttentionMap.resize_to_image` returns them. NaN
            marks pixels outside the model's input, which are dimmed and lie outside a thin frame.
        vmin: Value at the lower end of the colormap; lower values are clipped.
        vmax: Value at the upper end of the colormap; higher values are clipped.
        colormap: Colormap of `heat` and `contour` for maps without sign, see `overlay_palette`.
        opacity: Opacity of `heat` at `vmax`, between 0 and 1.
        style: `heat` blends a heat map with the image; `light` shows the image at its original
            brightness where attention is high; `blur` blurs it where attention is low; `contour`
            draws lines at 25, 50 and 75 % of the value range.
        signed: Whether the map has negative values. `heat` and `contour` show positive ones in
            orange and negative ones in blue; the other styles show magnitudes.
        hatched: Whether what the model did not see is hatched, as in figures that are printed.

    Raises:
        ValueError: If the sizes differ, `vmin` is not below `vmax`, or the opacity, the style or
            the colormap is invalid.

    Example:
        >>> image = np.full((1, 2, 3), 200, dtype=np.uint8)
        >>> overlay(image, np.array([[0.0, 1.0]]), style="light")[0, :, 0]
        array([ 80, 200], dtype=uint8)
    """
    [drawn] = overlays(
        image, [values], vmin=vmin, vmax=[vmax], colormap=colormap, opacity=opacity, style=style,
        signed=signed, hatched=hatched,
    )  # fmt: skip
    return drawn


def overlays(
    image: UInt8[np.ndarray, "y x 3"],
    maps: Sequence[Float[np.ndarray, "y x"]],
    *,
    vmin: float = 0.0,
    vmax: Sequence[float],
    colormap: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    signed: bool = False,
    hatched: bool = False,
) -> list[UInt8[np.ndarray, "y x 3"]]:
    """Return the image with each of several maps drawn on it, as `overlay` draws one.

    What does not depend on a map, the dimmed and the hatched image, is drawn once for all.

    Args:
        image: RGB.
        maps: See `overlay`.
        vmin: See `overlay`.
        vmax: Value at the upper end of the colormap, for each map.
        colormap: See `overlay`.
        opacity: See `overlay`.
        style: See `overlay`.
        signed: See `overlay`.
        hatched: See `overlay`.

    Raises:
        ValueError: As `overlay`.

    Example:
        >>> image = np.full((1, 2, 3), 200, dtype=np.uint8)
        >>> ramp = np.array([[0.0, 1.0]])
        >>> [drawn[0, :, 0].tolist() for drawn in overlays(image, [ramp, ramp], vmax=[1.0, 2.0])]
        [[118, 211], [118, 175]]
    """
    height, width = image.shape[:2]
    for values, end in zip(maps, vmax, strict=True):
        if (height, width) != values.shape:
            raise ValueError(
                f"values must be one per pixel of the image, {image.shape[:2]}, "
                f"got {values.shape}; use AttentionMap.resize_to_image(size)"
            )
        _check_options(vmin, end, opacity, style)
    palettes = _palettes(colormap, signed=signed)
    alpha = _alpha_lut(opacity if style == "heat" else 1.0)
    outputs = [np.empty_like(image) for _ in maps]
    if style == "contour":
        pairs = zip(maps, vmax, strict=True)
        outputs = [draw_range_contours(image, each, vmin, end, palettes) for each, end in pairs]
    for band, below in _bands(image, style):
        for values, end, output in zip(maps, vmax, outputs, strict=True):
            if style == "contour":
                drawn = Image.fromarray(output[band])
            else:
                levels = Image.fromarray(quantize_levels(values[band], vmin, end, signed=signed))
                colored = style == "heat" and _apply_palettes(levels, palettes, values[band])
                drawn = Image.composite(colored or below.photo, below.dimmed, levels.point(alpha))
            is_nan = np.isnan(values[band])
            if is_nan.any():
                unseen = below.hatched if hatched else below.unseen
                drawn.paste(unseen, mask=Image.fromarray(is_nan))
            output[band] = drawn
    if not hatched:
        for output, values in zip(outputs, maps, strict=True):
            _frame_seen(output, ~np.isnan(values))
    return outputs


def _frame_seen(image: UInt8[np.ndarray, "y x 3"], seen: Bool[np.ndarray, "y x"]) -> None:
    """Draw a thin frame around what the model saw, on what it did not see."""
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    if seen.all() or not len(rows):
        return
    line = max(1, min(seen.shape) // _FRAMES)
    frame = (slice(max(rows[0] - line, 0), rows[-1] + 1 + line),
             slice(max(columns[0] - line, 0), columns[-1] + 1 + line))  # fmt: skip
    image[frame][~seen[frame]] = _FRAME


@dataclass(frozen=True)
class _Band:
    """Rows of an image below maps: what is drawn for one map serves all.

    Args:
        photo: The rows.
        background: What they fade to where attention is low, before it is dimmed.
        top: Index of the first row.
        shorter_side: Shorter side of the whole image.
    """

    photo: Image.Image
    background: Image.Image
    style: Style
    top: int
    shorter_side: int

    @cached_property
    def dimmed(self) -> Image.Image:
        """The rows where attention is low."""
        return _dim_image(self.background, self.style)

    @cached_property
    def unseen(self) -> Image.Image:
        """The rows outside of the model's input: dark and gray."""
        return self.photo.convert("L").point(_NAN_LUT).convert("RGB")

    @cached_property
    def hatched(self) -> Image.Image:
        """They with diagonal lines."""
        return _hatch_image(self.photo, self.top, self.shorter_side)


def _bands(image: UInt8[np.ndarray, "y x 3"], style: Style) -> Iterator[tuple[slice, _Band]]:
    """Yield rows that are drawn at once, and what lies below the maps on them."""
    height, width = image.shape[:2]
    background = _blur_image(image) if style == "blur" else image
    step = max(1, _BAND_PIXELS // width)
    for top in range(0, height, step):
        rows = slice(top, min(top + step, height))
        photo, low = (Image.fromarray(each[rows]) for each in (image, background))
        yield rows, _Band(photo, low, style, top, min(height, width))


def map_to_rgba(
    values: Float[np.ndarray, "y x"],
    *,
    vmin: float = 0.0,
    vmax: float = 1.0,
    colormap: str = "magma",
    opacity: float = 1.0,
    signed: bool = False,
) -> UInt8[np.ndarray, "y x 4"]:
    """Return a map as an RGBA image that is transparent where attention is low.

    Composited on an image, it looks like `overlay` with `heat`, without dimming. Pixels with NaN
    are transparent.

    Args:
        values: See `overlay`.
        vmin: See `overlay`.
        vmax: See `overlay`.
        colormap: See `overlay`.
        opacity: Opacity at `vmax`, between 0 and 1.
        signed: See `overlay`.

    Returns:
        RGB and alpha, not premultiplied.

    Example:
        >>> map_to_rgba(np.array([[0.0, 1.0, np.nan]]))[0, :, 3]
        array([  0, 255,   0], dtype=uint8)
    """
    _check_options(vmin, vmax, opacity, "heat")
    levels = Image.fromarray(quantize_levels(values, vmin, vmax, signed=signed))
    palettes = _palettes(colormap, signed=signed)
    output = _apply_palettes(levels, palettes, values)
    alpha = np.array(levels.point(_alpha_lut(opacity)))
    alpha[np.isnan(values)] = 0
    output.putalpha(Image.fromarray(alpha))
    return np.array(output)


def _check_options(vmin: float, vmax: float, opacity: float, style: str) -> None:
    if not vmin < vmax:
        raise ValueError(f"vmin must be below vmax, got {vmin} and {vmax}")
    if not 0 <= opacity <= 1:
        raise ValueError(f"opacity must be between 0 and 1, got {opacity}")
    if style not in STYLES:
        raise ValueError(f"style must be one of {', '.join(STYLES)}, got {style!r}")


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


def _apply_palettes(
    levels: Image.Image, palettes: Sequence[bytes], values: Float[np.ndarray, "y x"]
) -> Image.Image:
    """Return levels in the colors of the first palette; of negative values in those of a second."""
    output, *negatives = (levels.copy() for _ in palettes)
    output.putpalette(palettes[0])
    output = output.convert("RGB")
    for negative, palette in zip(negatives, palettes[1:], strict=True):
        negative.putpalette(palette)
        output.paste(negative.convert("RGB"), mask=Image.fromarray(values < 0))
    return output


@cache
def _alpha_lut(opacity: float) -> list[int]:
    """Return the alpha of each level."""
    return [round(255 * opacity * share) for share in _COVER]


def _dim_image(photo: Image.Image, style: Style) -> Image.Image:
    """Return the image desaturated and darkened."""
    if style not in _DIMMING:
        return photo
    gray = photo.convert("L").convert("RGB")
    return Image.blend(photo, gray, _DIMMING[style][0]).point(_dimming_lut(style) * 3)


@cache
def _dimming_lut(style: Style) -> list[int]:
    """Return the lookup table that dims red, green or blue."""
    _, dark, white = _DIMMING[style]
    bend = dark / white - 1
    return [round(dark * level / (1 + bend * level / 255)) for level in range(256)]


def _blur_image(image: UInt8[np.ndarray, "y x 3"]) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with Gaussian blur; a large image is downsampled first, which is faster."""
    photo = Image.fromarray(image)
    radius = min(photo.size) / _BLUR_RATIO
    factor = max(1, int(radius / 4))
    small = photo.reduce(factor).filter(ImageFilter.GaussianBlur(radius / factor))
    return np.array(small.resize(photo.size, Image.Resampling.BILINEAR))


def _hatch_image(photo: Image.Image, top: int, shorter_side: int) -> Image.Image:
    """Return rows of an image, dark and gray, with diagonal hatching.

    Args:
        photo: Rows of the image.
        top: Index of the first row.
        shorter_side: Shorter side of the whole image.
    """
    width, height = photo.size
    spacing = max(6, round(shorter_side / 26))
    on_line = (top + np.arange(width + height)) % spacing < max(1, spacing // 8)
    # Row i of the view begins at element i: each row is the one above, moved left by a pixel.
    hatching = np.lib.stride_tricks.sliding_window_view(on_line, width)[:height]
    gray = photo.convert("L")
    output = gray.point(_NAN_LUT)
    output.paste(gray.point(_HATCH_LUT), mask=Image.fromarray(np.ascontiguousarray(hatching)))
    return output.convert("RGB")


PAGE_WIDTH = 1200  # of a figure at scale 1, in pixels


@dataclass(frozen=True)
class DrawOptions:
    """Options of all figures of maps.

    Args:
        colormap: Colormap, see `colormap_lut`.
        opacity: Opacity at `vmax`, between 0 and 1.
        style: `heat`, `light`, `blur` or `contour`, see `visattn.viz.heatmap.overlay`.
        vmin: Value at the lower end of the colormap.
        vmax: Value at the upper end of the colormap; None for that of the result.
        smooth: Whether to interpolate between cells; None for what suits the result.
        width: Width of the figure in pixels of 1/96 inch: 317 are a column of 3.3 inches. By
            default 1200 at scale 1.
        scale: Size of text, lines and margins: at 2, letters of 12 pixels have 24, and tiles are
            as wide as the width allows.
        crop: Whether tiles show only the part of the photo that the model saw.
        hatched: Whether what the model did not see is hatched.

    Example:
        >>> DrawOptions(vmax=2.0).draw(np.zeros((1, 2, 3), np.uint8), np.ones((1, 2))).shape
        (1, 2, 3)
    """

    colormap: str = "magma"
    opacity: float = 0.7
    style: Style = "heat"
    vmin: float = 0.0
    vmax: float | None = None
    smooth: bool | None = None
    width: int | None = None
    scale: float = 1.0
    crop: bool = False
    hatched: bool = False

    @property
    def page_width(self) -> int:
        """Width of the drawing before it is scaled, in pixels.

        Raises:
            ValueError: If the scale is not above 0.

        Example:
            >>> DrawOptions().page_width, DrawOptions(width=2400, scale=2).page_width
            (1200, 1200)
        """
        if not 0 < self.scale < math.inf:
            raise ValueError(f"the scale of a figure must be above 0, got {self.scale}")
        return PAGE_WIDTH if self.width is None else round(self.width / self.scale)

    @property
    def zoom(self) -> float:
        """Pixels of a file per pixel of the drawing, so that the width is exact."""
        page = self.page_width
        return self.scale if self.width is None or page < 1 else self.width / page

    def draw(
        self,
        image: UInt8[np.ndarray, "y x 3"],
        values: Float[np.ndarray, "y x"],
        *,
        signed: bool = False,
    ) -> UInt8[np.ndarray, "y x 3"]:
        """Return the image with a map drawn on it, by `overlays`.

        Args:
            image: RGB.
            values: One per pixel of the image.
            signed: Whether negative values are drawn in blue, and positive ones in orange.
        """
        return self.draw_each(image, [values], signed=signed)[0]

    def draw_each(
        self,
        image: UInt8[np.ndarray, "y x 3"],
        maps: Sequence[Float[np.ndarray, "y x"]],
        ends: Sequence[float] | None = None,
        *,
        signed: bool = False,
    ) -> list[UInt8[np.ndarray, "y x 3"]]:
        """Return the image with each of several maps drawn on it, by `overlays`.

        Args:
            image: RGB.
            maps: One value per pixel of the image.
            ends: Values at the upper end of the colormap, for each map; None for `vmax`.
            signed: See `draw`.
        """
        vmax = 1.0 if self.vmax is None else self.vmax
        return overlays(
            image,
            maps,
            vmin=self.vmin,
            vmax=[vmax] * len(maps) if ends is None else ends,
            colormap=self.colormap,
            opacity=self.opacity,
            style=self.style,
            signed=signed,
            hatched=self.hatched,
        )

    def otherwise(self, **defaults: Any) -> Self:
        """Return the options, with values for those that are None.

        Example:
            >>> DrawOptions(vmax=2.0).otherwise(vmax=1.0, smooth=False).vmax
            2.0
        """
        missing = {key: each for key, each in defaults.items() if getattr(self, key) is None}
        return replace(self, **missing)
