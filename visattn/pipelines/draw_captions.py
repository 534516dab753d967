"""Captions and their maps, drawn on the images that they are about."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from visattn.data.images.reader import read_image
from visattn.geometry.affine import Geometry
from visattn.pipelines.captioning import Caption, ImageLike
from visattn.pipelines.scale import map_scale
from visattn.recording.attention_map import AttentionMap
from visattn.viz.captions.panel import caption_panel
from visattn.viz.layout.grid import tile_size
from visattn.viz.maps.contours import outlined
from visattn.viz.maps.heatmap import overlay as draw_overlay

MapValues = np.ndarray | torch.Tensor | Sequence[Sequence[float]]


def overlay(
    image: ImageLike,
    attention_map: AttentionMap | MapValues,
    *,
    geometry: Geometry | None = None,
    high: float | None = None,
    smooth: bool = True,
    outline: float | None = None,
    **options: Any,
) -> Image.Image:
    """Return the image with a map on it, at the image's own size.

    Args:
        image: The original image.
        attention_map: One map, placed on it; or plain values `[y, x]`, an array, a tensor or a
            list of rows, on any grid. They are laid over the whole image, from edge to edge,
            unless a geometry says where they lie. Values below zero make the map signed.
        geometry: Where plain values lie on the image; their grid covers the network's input.
        high: The value that shows in full; by default as `visattn.pipelines.scale.map_scale`
            chooses it. For words of one caption take the scale of all its maps together.
        smooth: Whether to blend between cells, or to show each as it is.
        outline: Draw a line where attention reaches this share of `high`; None draws none.
        options: `low`, `colors`, `opacity` and more, as `visattn.viz.maps.heatmap.overlay`
            takes them.

    Raises:
        ValueError: If the map has no place on an image, was made for one of another size, or
            holds several maps (index it first), or plain values are not `[y, x]` and finite.

    Example:
        >>> from visattn.geometry import Geometry
        >>> blank = np.full((30, 40, 3), 200, np.uint8)
        >>> spot = AttentionMap(torch.eye(2), "gate", "gate", Geometry.identity((30, 40)), {})
        >>> overlay(blank, spot).size, overlay(blank, [[0.0, 1.0], [0.5, 0.0]]).size
        ((40, 30), (40, 30))
    """
    read = read_image(image)
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
    if attention_map.geometry and attention_map.geometry.image_size != read.size:
        raise ValueError(
            f"the map lies on an image of {attention_map.geometry.image_size} (height, width), "
            f"but {read.name} has {read.size}; hand over the original"
        )
    placed = attention_map.on_image(smooth=smooth).numpy()
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
    image: ImageLike, caption: Caption, *, width: int = 1200, **options: Any
) -> UInt8[np.ndarray, "height width 3"]:
    """Return the image and one overlay per word as one page, on one color scale.

    Args:
        image: The original image.
        caption: What was said of it.
        width: Of the page, in pixels.
        options: As `visattn.viz.captions.panel.caption_panel` takes them.

    Raises:
        ValueError: If the caption has no word.
    """
    pixels = read_image(image).pixels
    options.setdefault("high", caption.maps.scale()[1])
    shown = tile_size(pixels.shape[:2], len(caption.words), width=width)
    return caption_panel(
        pixels,
        caption.words,
        caption.maps.on_image(shown).numpy(),
        log_probabilities=caption.log_probabilities,
        gates=caption.gates,
        width=width,
        **options,
    )
