"""Pages about one photo and maps on it: what the captions' page and the explorer share."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from visattn.viz.html.document import file_address, image_address, sealed_document
from visattn.viz.html.safe_text import shown_text
from visattn.viz.maps.heatmap import glowing_colors

LONGEST = 1280
"""Of a photo in its page, in pixels: a page is to stay small enough to be sent."""
_PLACE = ("matrix", "input_size", "image_size", "region")


def photo_page(
    template: str,
    image: UInt8[np.ndarray, "y x 3"],
    geometry: Mapping[str, Any],
    *,
    styles: Sequence[str],
    scripts: Sequence[str],
    data: Mapping[str, Any],
    texts: Mapping[str, str],
    name: str,
    colors: str,
    opacity: float,
    style: str,
    longest: int,
    index: str | None,
) -> str:
    """Return a page of HTML, whole in itself, with a photo on which a script draws maps.

    Args:
        template: A file of `pages/`.
        image: RGB, of any size and proportions.
        geometry: How the maps lie on the image, as `Geometry.to_dict` writes it.
        styles: Files of `pages/`.
        scripts: Files of `pages/`.
        data: What the script reads besides the photo's size, the geometry and how maps are drawn.
        texts: What the template says besides the photo's name and size.
        name: Of the photo; stands on the page.
        colors: The table of `heat`, see `visattn.viz.maps.colormap.color_table`.
        opacity: How far attention in full covers the image at first, between 0 and 1.
        style: `heat` or `light`, at first.
        longest: Of the photo in the page, in pixels.
        index: Name of a page to go back to.

    Raises:
        ValueError: If the geometry is of another image, or there is no such opacity, style or
            color table.
    """
    if tuple(geometry["image_size"]) != image.shape[:2]:
        raise ValueError(
            f"the maps lie on an image of {tuple(geometry['image_size'])} (height, width), "
            f"but this one has {image.shape[:2]}; hand over the original"
        )
    if not 0 <= opacity <= 1 or style not in ("heat", "light"):
        raise ValueError(
            f"opacity must lie between 0 and 1 and style be heat or light, got {opacity}, {style!r}"
        )
    address, (height, width) = image_address(image, longest=longest)
    back = "" if index is None else _BACK.format(file_address(index))
    return sealed_document(
        template,
        styles=styles,
        scripts=scripts,
        data={
            "size": [height, width],
            "geometry": {key: geometry[key] for key in _PLACE},
            "glow": base64.b64encode(glowing_colors(colors)).decode(),
            "opacity": opacity,
            "style": style,
            **data,
        },
        css=f":root {{ --ratio: {width / height:.6f}; --natural: {width}px }}",
        texts={
            "name": shown_text(name, 200),
            "size": f"{image.shape[1]} \N{MULTIPLICATION SIGN} {image.shape[0]}",
            "photo": address,
            "width": str(width),
            "height": str(height),
            "opacity": str(round(100 * opacity)),
            **texts,
        },
        markup={"back": back},
    )


_BACK = '<a class="back" href="{}">&lsaquo; All photos</a>'
