"""Captions and their maps, drawn on the pictures that they are about."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from visattn.data.pictures import read_picture
from visattn.maps import AttentionMap, Geometry
from visattn.seeing.captions import Caption, PictureLike
from visattn.seeing.map_scales import map_scale
from visattn.viz.contours import outlined
from visattn.viz.layouts import tile_size
from visattn.viz.overlays import overlay as draw_overlay
from visattn.viz.panels import caption_panel

MapValues = np.ndarray | torch.Tensor | Sequence[Sequence[float]]


def overlay(
    picture: PictureLike,
    attention_map: AttentionMap | MapValues,
    *,
    geometry: Geometry | None = None,
    high: float | None = None,
    smooth: bool = True,
    outline: float | None = None,
    **options: Any,
) -> Image.Image:
    """Return the picture with a map on it, at the picture's own size.

    Args:
        picture: The original picture.
        attention_map: One map, placed on it; or plain values `[y, x]`, an array, a tensor or a
            list of rows, on any grid. They are laid over the whole picture, from edge to edge,
            unless a geometry says where they lie. Values below zero make the map signed.
        geometry: Where plain values lie on the picture; their grid covers the network's input.
        high: The value that shows in full; by default as `visattn.seeing.map_scales.map_scale`
            chooses it. For words of one caption take the scale of all its maps together.
        smooth: Whether to blend between cells, or to show each as it is.
        outline: Draw a line where attention reaches this share of `high`; None draws none.
        options: `low`, `colours`, `opacity` and more, as `visattn.viz.overlays.overlay`
            takes them.

    Raises:
        ValueError: If the map has no place on a picture, was made for one of another size, or
            holds several maps (index it first), or plain values are not `[y, x]` and finite.

    Example:
        >>> from visattn.maps import Geometry
        >>> blank = np.full((30, 40, 3), 200, np.uint8)
        >>> spot = AttentionMap(torch.eye(2), "gate", "gate", Geometry.identity((30, 40)), {})
        >>> overlay(blank, spot).size, overlay(blank, [[0.0, 1.0], [0.5, 0.0]]).size
        ((40, 30), (40, 30))
    """
    read = read_picture(picture)
    if not isinstance(attention_map, AttentionMap):
        place = geometry or Geometry.identity(read.size)
        attention_map = _plain_map(attention_map, place)
    elif geometry is not None:
        attention_map = attention_map.placed(geometry)
    values = attention_map.values
    if values.ndim != 2:
        raise ValueError(
            f"overlay draws one map, got {tuple(values.shape)}; choose one, as in maps[0]"
        )
    if attention_map.geometry and attention_map.geometry.picture_size != read.size:
        raise ValueError(
            f"the map lies on a picture of {attention_map.geometry.picture_size} (height, width), "
            f"but {read.name} has {read.size}; hand over the original"
        )
    placed = attention_map.on_picture(smooth=smooth).numpy()
    scale = map_scale([attention_map])
    options = {"low": scale.low if high is None else 0.0, "signed": scale.signed, **options}
    high = scale.high if high is None else high
    drawn = draw_overlay(read.pixels, placed, high=high, **options)
    if outline is not None:
        drawn = outlined(drawn, placed, outline * high)
    return Image.fromarray(drawn)


def _plain_map(values: MapValues, geometry: Geometry) -> AttentionMap:
    """Return plain values as a map."""
    if isinstance(values, torch.Tensor):
        found = values.detach().cpu()
    else:
        try:
            found = torch.from_numpy(np.array(values, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise ValueError(f"a map is an array of numbers [y, x], got {error}") from error
    found = found.to(torch.float32)
    if found.ndim != 2 or not found.numel() or not bool(found.isfinite().all()):
        raise ValueError(
            f"a map is an array [y, x] of finite numbers, got shape {list(found.shape)}"
            + (" with NaN or infinity" if found.ndim == 2 and found.numel() else "")
        )
    made = {"signed": bool((found < 0).any())}
    return AttentionMap(found, "array", "gradient", geometry, made)


def panel(
    picture: PictureLike, caption: Caption, *, width: int = 1200, **options: Any
) -> UInt8[np.ndarray, "height width 3"]:
    """Return the picture and one overlay per word as one page, on one colour scale.

    Args:
        picture: The original picture.
        caption: What was said of it.
        width: Of the page, in pixels.
        options: As `visattn.viz.panels.caption_panel` takes them.

    Raises:
        ValueError: If the caption has no word.
    """
    pixels = read_picture(picture).pixels
    options.setdefault("high", caption.maps.scale()[1])
    shown = tile_size(pixels.shape[:2], len(caption.words), width=width)
    return caption_panel(
        pixels,
        caption.words,
        caption.maps.on_picture(shown).numpy(),
        log_probabilities=caption.log_probabilities,
        gates=caption.gates,
        width=width,
        **options,
    )
