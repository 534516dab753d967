"""Common part of the HTML pages that show maps on one image."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

import numpy as np
from jaxtyping import UInt8

from visattn.viz.html.document import escape_text, file_url, image_data_url, render_page
from visattn.viz.html.safe_text import sanitize_text
from visattn.viz.maps.colormap import overlay_palette

LONGEST = 1280
"""Maximum side of the embedded image in pixels, which limits the size of the page."""
_MANY, _LONGEST_OF_TWO, _LONGEST_OF_MANY = 4, 960, 480
_GEOMETRY_KEYS = ("matrix", "input_size", "image_size", "region")


_FIGURE = """\
<figure>
<div class="frame" id="frame">
<img id="photo" src="$photo" width="$width" height="$height" alt="$caption" draggable="false">
<canvas id="overlay" hidden aria-hidden="true"></canvas>
<svg id="boxes" aria-hidden="true"></svg>
</div>
</figure>"""
_STRIP_IMAGE = """\
<figure>
<div class="frame">
<img src="$photo" width="$width" height="$height" alt="$label" draggable="false">
<canvas hidden aria-hidden="true"></canvas>
<svg class="boxes" aria-hidden="true"></svg>
</div>
<figcaption><span class="name" lang="" dir="auto">$label</span>\
<span class="bar"><i></i></span><span class="number"></span></figcaption>
</figure>
"""


@dataclass(frozen=True, eq=False)
class PageImage:
    """One of several images of a page: a photo of a prompt, or a frame of a video.

    Args:
        image: RGB, of any size and proportions.
        label: Name of the photo, or time of the frame.
        grid: Rows and columns of the maps on it.
        geometry: Geometry of these maps, from `Geometry.to_dict`.
    """

    image: UInt8[np.ndarray, "y x 3"]
    label: str
    grid: tuple[int, int]
    geometry: Mapping[str, Any]


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
    images: Sequence["PageImage"] = (),
    markup: Mapping[str, str] | None = None,
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
        images: Images that the page shows side by side instead of the image alone, the image
            first.
        markup: Markup of the template; trusted.

    Raises:
        ValueError: If the geometry belongs to another image, or an option is invalid.
    """
    for size, place in [(image.shape[:2], geometry)] + [
        (each.image.shape[:2], each.geometry) for each in images
    ]:
        if tuple(place["image_size"]) != size:
            raise ValueError(
                f"the maps belong to an image of size {tuple(place['image_size'])} (height, "
                f"width), got {size}; pass the original image"
            )
    if not 0 <= opacity <= 1 or style not in ("heat", "light"):
        raise ValueError(
            f"opacity must be between 0 and 1 and style heat or light, got {opacity} and {style!r}"
        )
    address, (height, width) = image_data_url(image, longest=longest)
    back = "" if index is None else _BACK_LINK.format(file_url(index))
    figures, css, shown = _FIGURE, "", list[dict[str, Any]]()
    if images:
        figures, css, shown = _strip(images, longest)
    figures = Template(figures).safe_substitute(
        photo=address, width=width, height=height,
        caption=escape_text(texts.get("caption", "")),
    )  # fmt: skip
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
            **({"images": shown} if images else {}),
        },
        css=f":root {{ --ratio: {width / height:.6f}; --natural: {width}px }}{css}",
        texts={
            "name": sanitize_text(name, 200),
            "size": _sizes([each.image for each in images] or [image]),
            "photo": address,
            "width": str(width),
            "height": str(height),
            "opacity": str(round(100 * opacity)),
            **texts,
        },
        markup={"back": back, "figures": figures, **(markup or {})},
    )


def _sizes(images: Sequence[UInt8[np.ndarray, "_y _x 3"]]) -> str:
    """Return width and height of the images, if these are the same for all."""
    sizes = {(image.shape[1], image.shape[0]) for image in images}
    size = "{} \N{MULTIPLICATION SIGN} {}".format(*min(sizes)) if len(sizes) == 1 else ""
    count = f"{len(images)} images" if len(images) > 1 else ""
    return ", ".join(filter(None, (count, size)))


def _strip(images: Sequence["PageImage"], longest: int) -> tuple[str, str, list[dict[str, Any]]]:
    """Return images side by side as HTML, its styles, and the data of each image."""
    most = min(longest, _LONGEST_OF_TWO if len(images) <= _MANY else _LONGEST_OF_MANY)
    figures, data = list[str](), list[dict[str, Any]]()
    css = f"\n.strip {{ --high: {'15rem' if len(images) <= _MANY else '8rem'} }}"
    for number, each in enumerate(images, start=1):
        address, (height, width) = image_data_url(each.image, longest=most)
        label = escape_text(sanitize_text(each.label, 200))
        values = {"photo": address, "width": width, "height": height, "label": label}
        figures.append(Template(_STRIP_IMAGE).substitute(values))
        data.append({"size": [height, width], "grid": list(each.grid),
                     "geometry": page_geometry(each.geometry)})  # fmt: skip
        css += f"\n.strip figure:nth-child({number}) {{ --ratio: {width / height:.6f}; "
        css += f"--natural: {width}px }}"
    return f'<div class="strip">\n{"".join(figures)}</div>', css, data


_BACK_LINK = '<a class="back" href="{}">&lsaquo; All photos</a>'
