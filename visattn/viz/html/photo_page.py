"""Common part of the HTML pages that show maps on one image."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from visattn.viz.html.document import file_url, image_data_url, render_page
from visattn.viz.html.safe_text import sanitize_text
from visattn.viz.maps.colormap import overlay_palette

LONGEST = 1280
"""Maximum side of the embedded image in pixels, which limits the size of the page."""
_GEOMETRY_KEYS = ("matrix", "input_size", "image_size", "region")


def page_geometry(geometry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a page needs of a geometry, from `Geometry.to_dict`."""
    return {key: geometry[key] for key in _GEOMETRY_KEYS}


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
    colormap: str,
    opacity: float,
    style: str,
    longest: int,
    index: str | None,
) -> str:
    """Return a self-contained HTML page with an image on which a script draws maps.

    Args:
        template: Template file in this folder.
        image: RGB, of any size and proportions.
        geometry: Geometry of the maps, from `Geometry.to_dict`.
        styles: CSS files in this folder.
        scripts: JavaScript files in this folder.
        data: Data for the script besides image size, geometry and drawing options.
        texts: Texts of the template besides the name and size of the image.
        name: Name of the image.
        colormap: See `colormap_lut`.
        opacity: Initial opacity at `vmax`, between 0 and 1.
        style: Initial style, `heat` or `light`.
        longest: Maximum side of the embedded image in pixels.
        index: File name of the index page to link to.

    Raises:
        ValueError: If the geometry belongs to another image, or an option is invalid.
    """
    if tuple(geometry["image_size"]) != image.shape[:2]:
        raise ValueError(
            f"the maps belong to an image of size {tuple(geometry['image_size'])} (height, width), "
            f"got {image.shape[:2]}; pass the original image"
        )
    if not 0 <= opacity <= 1 or style not in ("heat", "light"):
        raise ValueError(
            f"opacity must be between 0 and 1 and style heat or light, got {opacity} and {style!r}"
        )
    address, (height, width) = image_data_url(image, longest=longest)
    back = "" if index is None else _BACK_LINK.format(file_url(index))
    return render_page(
        template,
        styles=styles,
        scripts=scripts,
        data={
            "size": [height, width],
            "geometry": page_geometry(geometry),
            "glow": base64.b64encode(overlay_palette(colormap)).decode(),
            "opacity": opacity,
            "style": style,
            **data,
        },
        css=f":root {{ --ratio: {width / height:.6f}; --natural: {width}px }}",
        texts={
            "name": sanitize_text(name, 200),
            "size": f"{image.shape[1]} \N{MULTIPLICATION SIGN} {image.shape[0]}",
            "photo": address,
            "width": str(width),
            "height": str(height),
            "opacity": str(round(100 * opacity)),
            **texts,
        },
        markup={"back": back},
    )


_BACK_LINK = '<a class="back" href="{}">&lsaquo; All photos</a>'
