"""Overlays of attention maps on images, and figures of captions."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, list_images, read_image
from visattn.images.video import read_clip
from visattn.io.argument_checks import checked_arguments
from visattn.pipelines.draw_maps import draw_target
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.map_boxes import MapBoxes
from visattn.results.scale import map_scale
from visattn.viz.captions.alignment import alignment_image_size, alignment_panel
from visattn.viz.captions.image_panel import image_panel, image_tile_sizes
from visattn.viz.captions.panel import caption_panel
from visattn.viz.html.notebook_caption import caption_element
from visattn.viz.layout.grid import compute_tile_size
from visattn.viz.layout.text import format_time
from visattn.viz.maps.contours import draw_contours
from visattn.viz.maps.heatmap import overlay as draw_overlay

MapValues = np.ndarray | torch.Tensor | Sequence[Sequence[float]]


@checked_arguments(outline=(0, 1))
def overlay(
    image: ImageLike,
    attention_map: AttentionMap | MapValues,
    *,
    geometry: Geometry | None = None,
    vmax: float | None = None,
    smooth: bool = True,
    outline: float | None = None,
    **options: Any,
) -> Image.Image:
    """Return the image overlaid with an attention map, at the size of the image.

    Args:
        image: The original image.
        attention_map: One placed map; or an array, tensor or nested list `[y, x]` on any grid,
            which covers the whole image unless a geometry is passed. Negative values make it
            signed.
        geometry: Geometry of an array: its grid covers the input of the network.
        vmax: Value at the upper end of the colormap; by default that of
            `visattn.results.map_scale`. For words of one caption, use one value for all.
        smooth: Whether to interpolate between cells.
        outline: Draw a contour at this share of `vmax`; None draws none.
        options: `vmin`, `colormap`, `opacity` and others, as for `visattn.viz.overlay`.

    Raises:
        ValueError: If the map has no geometry, belongs to an image of another size, or consists
            of several maps (index it first), or an array is not `[y, x]` and finite.

    Example:
        >>> from visattn.geometry import Geometry
        >>> blank = np.full((30, 40, 3), 200, np.uint8)
        >>> spot = AttentionMap(torch.eye(2), "gate", "gate", Geometry.identity((30, 40)), {})
        >>> overlay(blank, spot).size, overlay(blank, [[0.0, 1.0], [0.5, 0.0]]).size
        ((40, 30), (40, 30))
    """
    original = read_image(image)
    if not isinstance(attention_map, AttentionMap):
        covered = geometry or Geometry.identity(original.size)
        attention_map = _map_from_array(attention_map, covered)
    elif geometry is not None:
        attention_map = attention_map.with_geometry(geometry)
    values = attention_map.values
    if values.ndim != 2:
        raise ValueError(
            f"overlay draws one map, got shape {tuple(values.shape)}; select one: maps[0]"
        )
    if attention_map.geometry and attention_map.geometry.image_size != original.size:
        raise ValueError(
            f"the map lies on an image of {attention_map.geometry.image_size} (height, width), "
            f"but {original.name} has {original.size}; pass the original image"
        )
    placed = attention_map.resize_to_image(smooth=smooth).numpy()
    scale = map_scale([attention_map])
    options = {"vmin": scale.vmin if vmax is None else 0.0, "signed": scale.signed, **options}
    vmax = scale.vmax if vmax is None else vmax
    drawn = draw_overlay(original.pixels, placed, vmax=vmax, **options)
    if outline is not None:
        drawn = draw_contours(drawn, placed, [outline * vmax], [(255, 255, 255)])
    return Image.fromarray(draw_target(drawn, attention_map))


def _map_from_array(values: MapValues, geometry: Geometry) -> AttentionMap:
    """Return an array as an attention map."""
    if isinstance(values, torch.Tensor):
        array = values.detach().cpu()
    else:
        try:
            array = torch.from_numpy(np.array(values, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise ValueError(f"a map must be an array of numbers [y, x]: {error}") from error
    array = array.to(torch.float32)
    if array.ndim != 2 or not array.numel() or not bool(array.isfinite().all()):
        raise ValueError(
            f"a map must be an array [y, x] of finite numbers, got shape {list(array.shape)}"
            + (" with NaN or infinity" if array.ndim == 2 and array.numel() else "")
        )
    metadata = {"signed": bool((array < 0).any())}
    return AttentionMap(array, "array", "gradient", geometry, metadata)


@dataclass(frozen=True, eq=False)
class DrawnImage:
    """A photo of a prompt or a frame of a video, with the maps of the words on it.

    Args:
        pixels: The image.
        label: Name of the photo, or time of the frame.
        maps: Maps of the words.
    """

    pixels: UInt8[np.ndarray, "y x 3"]
    label: str
    maps: AttentionMap


def drawn_images(images: ImageLike | Sequence[ImageLike], caption: Caption) -> list[DrawnImage]:
    """Return the images of a caption with the maps that lie on them.

    Args:
        images: The original image; of several photos in a prompt a list of them, in their order; of
            a video its file, or its frames.
        caption: The caption.

    Raises:
        ValueError: If there is another number of photos or frames than the caption has.

    Example:
        >>> maps = AttentionMap(torch.ones(1, 1, 2), "attend", "words", Geometry.identity((3, 9)))
        >>> result = Caption(("7",), (-0.1,), (1.0,), maps, -0.1, True)
        >>> [image] = drawn_images(np.zeros((3, 9, 3), np.uint8), result)
        >>> image.label, image.maps.values.shape
        ('image', torch.Size([1, 1, 2]))
    """
    placed, metadata = caption.image_maps, caption.maps.metadata
    if caption.is_video and isinstance(images, (str, os.PathLike)):
        clip = read_clip(images, metadata["frames"], max(metadata["frames"]) + 1)
        images = [frame.pixels for frame in clip.frames]
    loaded = [read_image(image) for image in list_images(images)]
    if len(loaded) != len(placed):
        kind = "frames of its video, or the file" if caption.is_video else "photos of its prompt"
        raise ValueError(
            f"the caption has maps on {len(placed)} images, got {len(loaded)}: pass all {kind}"
        )
    labels = (
        [format_time(second) for second in metadata["seconds"]]
        if caption.is_video
        else [Path(image.name).name for image in loaded]
    )
    return [
        DrawnImage(image.pixels, label, maps)
        for image, label, maps in zip(loaded, labels, placed, strict=True)
    ]


def image_shares(caption: Caption) -> Float[np.ndarray, "t p"]:
    """Return the sum of the map of each word on each photo or frame.

    For attention this is the share of the word's attention that lies on it.

    Args:
        caption: A caption.
    """
    sums = [each.values.flatten(1).sum(1) for each in caption.image_maps]
    return torch.stack(sums, 1).numpy()


def caption_figure(
    image: ImageLike | Sequence[ImageLike],
    caption: Caption,
    *,
    boxes: MapBoxes | None = None,
    width: int = 1200,
    **options: Any,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure of the image and one overlay per word, on one color scale.

    Of several photos, or of a video, each word has a row with its maps on all of them.

    Args:
        image: The original image; a list of the photos of a prompt; or a video file or its frames.
        caption: Its caption.
        boxes: Boxes of its maps, from `caption.maps.boxes()`, which are outlined.
        width: Width of the figure in pixels.
        options: Arguments of `visattn.viz.caption_panel`.

    Raises:
        ValueError: If the caption belongs to images of other sizes or number, or boxes are given
            for several.

    Example:
        >>> from visattn.models import SPECIAL_TOKENS, ShowAttendTell, SmallEncoder
        >>> from visattn.pipelines.captioning import caption
        >>> words = (*SPECIAL_TOKENS, "red")
        >>> model = ShowAttendTell(words, SmallEncoder((16, 16), channels=4), hidden_size=8)
        >>> photo = np.zeros((30, 90, 3), np.uint8)
        >>> [said] = caption(model, photo, min_length=2, max_length=2)
        >>> caption_figure(photo, said, width=600).shape[1]
        600
    """
    caption = caption.drawable()
    images = drawn_images(image, caption)
    options.setdefault("vmax", caption.display_range()[1])
    options.setdefault("label", caption.quantity)
    if not caption.is_of_single_photo:
        if boxes is not None:
            raise ValueError("boxes are those of one photo; the caption has several images")
        return _image_figure(images, caption, width=width, **options)
    if boxes is not None:
        options["boxes"] = boxes.per_map()
    pixels = images[0].pixels
    shown = compute_tile_size(pixels.shape[:2], len(caption.words), width=width)
    return caption_panel(
        pixels,
        caption.words,
        caption.maps.resize_to_image(shown, smooth=caption.smooth).numpy(),
        log_probs=caption.log_probs or None,
        gates=caption.gates if caption.has_gates else None,
        gate_symbol=caption.gate_symbol,
        width=width,
        **options,
    )


def _image_figure(
    images: Sequence[DrawnImage], caption: Caption, *, width: int, **options: Any
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with a row per word."""
    sizes = [(each.pixels.shape[0], each.pixels.shape[1]) for each in images]
    drawn = zip(images, image_tile_sizes(sizes, width=width), strict=True)
    return image_panel(
        [each.pixels for each in images],
        [each.label for each in images],
        caption.words,
        [each.maps.resize_to_image(size, smooth=caption.smooth).numpy() for each, size in drawn],
        image_shares(caption),
        log_probs=caption.log_probs,
        gates=caption.gates if caption.has_gates else None,
        gate_symbol=caption.gate_symbol,
        width=width,
        **options,
    )


def check_one_image(caption: Caption, what: str) -> None:
    """Refuse a caption of several photos or of a video where one photo is drawn.

    Args:
        caption: The caption.
        what: What is drawn.

    Raises:
        ValueError: If the caption has maps on several images.
    """
    if not caption.is_of_single_photo:
        raise ValueError(
            f"{what} shows one photo, but the caption has maps on {len(caption.image_maps)} "
            "images: draw a caption_figure or a caption_html"
        )


def alignment_figure(
    image: ImageLike, caption: Caption, *, width: int = 1200, **options: Any
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure of the image above the alignment matrix: words by columns of the image.

    A cell of the matrix has the attention of a column of the grid, all its rows together, and lies
    below the part of the image that this column covers.

    Args:
        image: The original image.
        caption: Its caption.
        width: Width of the figure in pixels.
        options: Arguments of `visattn.viz.alignment_panel`.

    Raises:
        ValueError: If the maps have no geometry.

    Example:
        >>> maps = AttentionMap(torch.tensor([[[0.0, 1.0]]]), "attend", "words")
        >>> maps = maps.with_geometry(Geometry.identity((30, 90)))
        >>> result = Caption(("7",), (-0.1,), (1.0,), maps, -0.1, True)
        >>> alignment_figure(np.zeros((30, 90, 3), np.uint8), result, width=600).shape[1]
        600
    """
    check_one_image(caption, "an alignment matrix")
    original, caption = read_image(image), caption.drawable()
    size = alignment_image_size(original.size, width=width)
    maps = caption.maps
    return alignment_panel(
        original.pixels,
        caption.words,
        _attention_per_column(maps, size),
        maps=maps.resize_to_image(size, smooth=caption.smooth).numpy(),
        log_probs=caption.log_probs or None,
        width=width,
        **options,
    )


def _attention_per_column(maps: AttentionMap, size: tuple[int, int]) -> Float[np.ndarray, "t x"]:
    """Return the attention of the grid column at each pixel column; NaN where nothing was seen."""
    rotated = maps.geometry is not None and maps.geometry.matrix[0][1] != 0
    axis = -1 if rotated else -2  # of the grid, along the height of the image
    sums = maps.values.sum(axis, keepdim=True).expand_as(maps.values)
    placed = replace(maps, values=sums).resize_to_image(size, smooth=False)
    columns = placed.nan_to_num(-1.0).amax(-2)  # equal in all rows that were seen
    return columns.masked_fill(columns < 0, torch.nan).numpy()


def notebook_caption(caption: Caption) -> str | None:
    """Return the photo and the words for notebooks; hovering a word shows its map.

    Args:
        caption: A caption; without its photo or without words nothing is shown.
    """
    if caption.thumbnail is None or not caption.words:
        return None
    maps = caption.maps.resize_to_image(caption.thumbnail.shape[:2], smooth=caption.smooth)
    top = caption.display_range()[1]
    return caption_element(caption.thumbnail, caption.words, maps.numpy(), vmax=top)
