"""Common part of the HTML pages that show maps on one image."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Template
from typing import Any

import numpy as np
from jaxtyping import UInt8

from visattn.geometry.affine import Geometry
from visattn.viz.captions.images import DrawnImage
from visattn.viz.html.document import escape_text, image_data_url, path_url, render_page
from visattn.viz.html.safe_text import sanitize_text
from visattn.viz.maps.colormap import overlay_palette
from visattn.viz.maps.options import DrawOptions

_LONGEST = 1280  # side of the embedded image in pixels, which limits the size of the page
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


@dataclass(frozen=True)
class PageOptions(DrawOptions):
    """Options of all pages of a photo: those of figures, of which a page uses some at first.

    Args:
        name: Name on the page; by default the file name of the image.
        index: File name of the index page to link to.
    """

    name: str | None = None
    index: str | None = None


@dataclass(frozen=True, eq=False)
class PageParts:
    """What a page has besides the photo.

    Args:
        template: Template file in this folder.
        styles: CSS files in this folder.
        scripts: JavaScript files in this folder.
        data: Data for the script besides image size, geometry and drawing options.
        texts: Texts of the template besides the name and size of the image.
        markup: Markup of the template; trusted.
    """

    template: str
    styles: Sequence[str]
    scripts: Sequence[str]
    data: Mapping[str, Any]
    texts: Mapping[str, str]
    markup: Mapping[str, str] = field(default_factory=dict)


def page_geometry(geometry: Geometry) -> dict[str, Any]:
    """Return what a page needs of a geometry."""
    plain = geometry.to_dict()
    return {key: plain[key] for key in _GEOMETRY_KEYS}


def photo_page(
    image: UInt8[np.ndarray, "y x 3"],
    geometry: Geometry,
    parts: PageParts,
    options: PageOptions,
    images: Sequence[DrawnImage] = (),
) -> str:
    """Return a self-contained HTML page with an image on which a script draws maps.

    Args:
        image: RGB, of any size and proportions.
        geometry: Geometry of the maps.
        parts: Template, scripts and data.
        options: Name of the image, and how maps are drawn at first.
        images: Images that the page shows side by side instead of the image alone, the image
            first.

    Raises:
        ValueError: If the geometry belongs to another image, or an option is invalid.
    """
    places = [(image, geometry), *((each.pixels, _geometry_of(each)) for each in images)]
    for pixels, place in places:
        if place.image_size != pixels.shape[:2]:
            raise ValueError(
                f"the maps belong to an image of size {place.image_size} (height, "
                f"width), got {pixels.shape[:2]}; pass the original image"
            )
    if not 0 <= options.opacity <= 1 or options.style not in ("heat", "light"):
        raise ValueError(
            "opacity must be between 0 and 1 and style heat or light, got "
            f"{options.opacity} and {options.style!r}"
        )
    address, (height, width) = image_data_url(image, longest=_LONGEST)
    back = "" if options.index is None else _BACK_LINK.format(path_url(options.index))
    figures, css, shown = _FIGURE, "", list[dict[str, Any]]()
    if images:
        figures, css, shown = _strip(images)
    figures = Template(figures).safe_substitute(
        photo=address, width=width, height=height,
        caption=escape_text(parts.texts.get("caption", "")),
    )  # fmt: skip
    return render_page(
        parts.template,
        styles=parts.styles,
        scripts=parts.scripts,
        data={
            "size": [height, width],
            "geometry": page_geometry(geometry),
            "glow": base64.b64encode(overlay_palette(options.colormap)).decode(),
            "opacity": options.opacity,
            "style": options.style,
            **parts.data,
            **({"images": shown} if images else {}),
        },
        css=f":root {{ --ratio: {width / height:.6f}; --natural: {width}px }}{css}",
        texts={
            "name": sanitize_text(options.name or "", 200),
            "size": _sizes([each.pixels for each in images] or [image]),
            "photo": address,
            "width": str(width),
            "height": str(height),
            "opacity": str(round(100 * options.opacity)),
            **parts.texts,
        },
        markup={"back": back, "figures": figures, **parts.markup},
    )


def _sizes(images: Sequence[UInt8[np.ndarray, "_y _x 3"]]) -> str:
    """Return width and height of the images, if these are the same for all."""
    sizes = {(image.shape[1], image.shape[0]) for image in images}
    size = "{} \N{MULTIPLICATION SIGN} {}".format(*min(sizes)) if len(sizes) == 1 else ""
    count = f"{len(images)} images" if len(images) > 1 else ""
    return ", ".join(filter(None, (count, size)))


def _geometry_of(image: DrawnImage) -> Geometry:
    geometry = image.maps.geometry
    if geometry is None:
        raise ValueError(f"the maps on {image.label} have no geometry")
    return geometry


def _strip(images: Sequence[DrawnImage]) -> tuple[str, str, list[dict[str, Any]]]:
    """Return images side by side as HTML, its styles, and the data of each image."""
    most = _LONGEST_OF_TWO if len(images) <= _MANY else _LONGEST_OF_MANY
    figures, data = list[str](), list[dict[str, Any]]()
    css = f"\n.strip {{ --high: {'15rem' if len(images) <= _MANY else '8rem'} }}"
    for number, each in enumerate(images, start=1):
        address, (height, width) = image_data_url(each.pixels, longest=most)
        label = escape_text(sanitize_text(each.label, 200))
        values = {"photo": address, "width": width, "height": height, "label": label}
        figures.append(Template(_STRIP_IMAGE).substitute(values))
        data.append({"size": [height, width], "grid": list(each.maps.values.shape[1:]),
                     "geometry": page_geometry(_geometry_of(each))})  # fmt: skip
        css += f"\n.strip figure:nth-child({number}) {{ --ratio: {width / height:.6f}; "
        css += f"--natural: {width}px }}"
    return f'<div class="strip">\n{"".join(figures)}</div>', css, data


_BACK_LINK = '<a class="back" href="{}">&lsaquo; All photos</a>'
