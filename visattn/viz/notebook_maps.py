"""Attention maps as notebooks show them, without a photo: tiles with a color bar, gates as bars."""

import math
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image

from visattn.images.encoding import encode_png
from visattn.results.attention_map import AttentionMap
from visattn.results.scale import MapScale, format_end
from visattn.viz.canvas import ACCENT, MUTED, TEXT, TRACK, Canvas
from visattn.viz.heatmap import DrawOptions
from visattn.viz.maps import map_legend, method_title, target_line
from visattn.viz.text import join_notes, load_font, truncate_text
from visattn.viz.tiles import LEGEND_HEIGHT, SMALL

_SIDE = 160  # longer side of a tile, in pixels
_COLUMNS, _MAX_MAPS = 6, 24
_MARGIN, _GAP, _MIN_WIDTH, _LINE = 12, 6, 680, 22
_GRAY = 150  # instead of a photo
_LEFT, _PLOT_WIDTH, _PLOT_HEIGHT, _AXIS = 44, 512, 120, 26  # of a plot of channels
_MAX_PLOTS = 6


def notebook_map(attention_map: AttentionMap) -> bytes | None:
    """Return maps as a PNG file: tiles as they lie on the image, or the channels of a gate as bars.

    Args:
        attention_map: One or more maps; of many the first are drawn. None is returned without any.

    Example:
        >>> notebook_map(AttentionMap(torch.eye(2), "layer4", "gradient"))[1:4]
        b'PNG'
    """
    if not attention_map.values.numel():
        return None
    is_channel = attention_map.kind == "channel"
    figure = channel_bars(attention_map).paint() if is_channel else _tiles(attention_map)
    return encode_png(np.asarray(figure))


def _title(attention_map: AttentionMap, shown: int) -> str:
    count = attention_map.values.flatten(0, -3).shape[0] if attention_map.values.ndim > 2 else 1
    number = f"{shown} of {count} maps" if shown < count else ""
    name = method_title(attention_map)
    site = attention_map.site if attention_map.site != name else ""
    return join_notes(name, site, target_line(attention_map), number)


def _tiles(attention_map: AttentionMap) -> Image.Image:
    """Return the maps on gray, on one color scale, with its legend below."""
    values = _placed(attention_map)
    drawn = values[:_MAX_MAPS]
    finite = attention_map.values.detach().float().nan_to_num(0.0, 0.0, 0.0)
    lowest, highest = float(finite.min()), float(finite.max())
    signed = attention_map.info.signed or lowest < 0
    vmin, vmax = attention_map.display_range()
    vmax = max(-lowest, highest) or 1.0 if signed else vmax
    scale = MapScale("global", vmin, vmax, signed, (lowest, highest))
    drawing = DrawOptions(vmin=vmin, vmax=vmax)
    height, width = drawn.shape[1:]
    columns = min(len(drawn), _COLUMNS)
    rows = math.ceil(len(drawn) / _COLUMNS)
    top = _MARGIN + _LINE
    size = (
        max(_MIN_WIDTH, 2 * _MARGIN + columns * (width + _GAP) - _GAP),
        top + rows * (height + _GAP) + LEGEND_HEIGHT - 8,
    )
    page = Canvas(*size)
    gray = np.full((height, width, 3), _GRAY, np.uint8)
    for number, each in enumerate(drawn):
        place = (
            _MARGIN + number % columns * (width + _GAP),
            top + number // columns * (height + _GAP),
        )
        page.paste(drawing.draw(gray, each, signed=signed), place)
    _write_title(page, _title(attention_map, len(drawn)))
    has_nan = bool(np.isnan(drawn).any())
    legend = map_legend(attention_map, scale, drawing, has_nan=has_nan)
    legend.draw(page, (_MARGIN, size[1] - LEGEND_HEIGHT + 12))
    return page.paint()


def _placed(attention_map: AttentionMap) -> Float[np.ndarray, "n y x"]:
    """Return the maps as they lie on the image, or as cells if that is unknown."""
    detached = attention_map.values.detach().float().cpu()
    if attention_map.geometry is not None:
        height, width = attention_map.geometry.image_size
        share = _SIDE / max(height, width)
        size = (max(1, round(height * share)), max(1, round(width * share)))
        placed = attention_map.resize_to_image(size).detach().float().cpu()
        return placed.reshape(-1, *placed.shape[-2:]).numpy()
    cells = detached.reshape(-1, *detached.shape[-2:])
    share = _SIDE / max(cells.shape[-2:])
    rows, columns = (max(1, round(side * share)) for side in cells.shape[-2:])
    return torch.nn.functional.interpolate(cells[None], (rows, columns), mode="nearest-exact")[
        0
    ].numpy()


def _write_title(page: Canvas, title: str) -> None:
    font = load_font(SMALL + 1)
    text = truncate_text(title, font, page.width - 2 * _MARGIN)
    page.text((_MARGIN, _MARGIN - 4), text, TEXT, font)


def channel_bars(attention_map: AttentionMap) -> Canvas:
    """Return the weights of channels as bars from 0 to 1, or to the greatest weight above 1.

    Gates from 0.49 to 0.51 look alike, as they are: nothing is stretched. Where there are more
    channels than pixels, a column of pixels shows the mean of its channels, and in a lighter color
    their maximum.

    Args:
        attention_map: Weights of the kind `channel`; of several rows the first six are drawn.

    Example:
        >>> gates = AttentionMap(torch.tensor([0.49, 0.51, 0.5]), "stage1.se", "channel")
        >>> channel_bars(gates).paint().size
        (580, 184)
    """
    values = attention_map.values.detach().float().cpu()
    rows = values.reshape(-1, values.shape[-1])[:_MAX_PLOTS].nan_to_num(0.0).numpy()
    low, high = min(0.0, float(rows.min())), max(1.0, float(rows.max()))
    width = _LEFT + _PLOT_WIDTH + 2 * _MARGIN
    step = _PLOT_HEIGHT + _AXIS
    page = Canvas(width, _MARGIN + _LINE + len(rows) * step + 4)
    limits = f"{format_end(float(values.min()))} to {format_end(float(values.max()))}"
    mean = f"mean {format_end(float(values.mean()))}"
    count = f"{values.shape[-1]} channels"
    _write_title(page, join_notes(_title(attention_map, 1), count, limits, mean))
    for number, row in enumerate(rows):
        _draw_bars(page, row, _MARGIN + _LINE + number * step, (low, high))
    return page


def _draw_bars(
    page: Canvas, row: Float[np.ndarray, " c"], top: int, limits: tuple[float, float]
) -> None:
    """Draw the weights of one gate with its axes."""
    (low, high), font = limits, load_font(SMALL)
    left, bottom = _MARGIN + _LEFT, top + _PLOT_HEIGHT

    def height_of(value: float) -> float:
        return bottom - _PLOT_HEIGHT * (value - low) / (high - low)

    for tick in sorted({low, 0.0, (low + high) / 2, high}):
        y = height_of(tick)
        page.rectangle((left, y, left + _PLOT_WIDTH, y), TRACK)
        page.text((left - 8, height_of(tick)), format_end(tick), MUTED, font, anchor="rm")
    count = len(row)
    columns = min(count, _PLOT_WIDTH)
    edges = np.linspace(0, count, columns + 1).round().astype(int)
    space = _PLOT_WIDTH / columns
    faint = tuple((2 * light + color) // 3 for light, color in zip(TRACK, ACCENT, strict=True))
    for column, (start, stop) in enumerate(pairwise(edges.tolist())):
        x = left + column * space
        end = max(x, x + space - (1 if space > 3 else 0) - 1)
        for value, color in ((row[start:stop].max(), faint), (row[start:stop].mean(), ACCENT)):
            y = sorted((height_of(float(value)), height_of(0.0)))
            page.rectangle((x, y[0], end, y[1]), color)
    for channel in sorted({0, (count - 1) // 2, count - 1}):
        x = left + (channel + 0.5) / count * _PLOT_WIDTH
        text = f"channel {channel}" if channel == 0 else str(channel)
        page.text((x, bottom + 6), text, MUTED, font, anchor="la" if channel == 0 else "ma")
