"""Self-contained HTML pages with a strict content security policy, and pages of one photo."""

import base64
import hashlib
import html
import io
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import quote

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageFile

from visattn.geometry.affine import Geometry
from visattn.viz.heatmap import PAGE_STYLES, DrawOptions, page_tables, resize_image
from visattn.viz.text import join_notes, sanitize_text

_BYTES_PER_PIXEL = 4  # upper bound for a JPEG; black-and-white noise takes 2.4
_ENCODING = threading.Lock()


def render_page(
    template: str,
    *,
    styles: Sequence[str],
    scripts: Sequence[str],
    data: Mapping[str, Any],
    css: str = "",
    texts: Mapping[str, str],
    markup: Mapping[str, str],
) -> str:
    """Return a self-contained page whose content security policy blocks everything else.

    The policy allows this script and these styles by their hashes, and images as data URLs. Texts
    are escaped and cannot become markup or code.

    Args:
        template: Template file in this folder from the title on, with `$name` placeholders; what
            stands before the title is the same in all pages.
        styles: CSS files in this folder, concatenated.
        scripts: JavaScript files in this folder, concatenated into one function.
        data: Data for the script, serializable as JSON.
        css: Additional CSS rules; trusted.
        texts: Values of placeholders, which are escaped.
        markup: Values of placeholders, inserted without escaping; trusted.

    Raises:
        ValueError: If `data` contains NaN or infinity.
        KeyError: If a placeholder has no value.

    Example:
        >>> page = render_page(
        ...     "index.html", styles=["paper.css"], scripts=["index.js"], data={},
        ...     texts={"title": "<b>", "count": "1 photo", "search": "Search", "about": ""},
        ...     markup={"cards": ""},
        ... )
        >>> "<title>&lt;b&gt;</title>" in page, "default-src 'none'" in page
        (True, True)
    """
    style = "\n".join([*map(_read, styles), css])
    script = "(() => {\n" + "\n".join(map(_read, scripts)) + "})();\n"
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    escaped = {name: escape_text(text) for name, text in texts.items()}
    return Template(_read("head.html") + _read(template)).substitute(
        {**escaped, **markup},
        policy=policy,
        style=style,
        script=script,
        data=_quoted_json(data),
    )


def escape_text(text: str) -> str:
    """Return a text sanitized and escaped for HTML content and attributes.

    Example:
        >>> escape_text("<b> & 'c'")
        '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return html.escape(sanitize_text(text), quote=True)


def image_data_url(
    image: UInt8[np.ndarray, "y x 3"], *, longest: int, quality: int = 88
) -> tuple[str, tuple[int, int]]:
    """Return an image as a JPEG data URL, and the height and width of the JPEG.

    Args:
        image: RGB.
        longest: Maximum side in pixels; larger images are downscaled.
        quality: JPEG quality, 1 to 95.

    Example:
        >>> address, size = image_data_url(np.zeros((20, 40, 3), np.uint8), longest=10)
        >>> address[:23], size
        ('data:image/jpeg;base64,', (5, 10))
    """
    height, width = image.shape[:2]
    share = min(1.0, longest / max(height, width))
    size = (max(1, round(height * share)), max(1, round(width * share)))
    # No chroma subsampling for small images, which the page enlarges.
    sampling = 2 if share < 1 or max(size) > 640 else 0
    content = _jpeg(Image.fromarray(resize_image(image, size)), quality, sampling)
    return jpeg_data_url(content), size


def jpeg_data_url(content: bytes) -> str:
    """Return a JPEG file as a data URL.

    Example:
        >>> jpeg_data_url(b"")
        'data:image/jpeg;base64,'
    """
    return "data:image/jpeg;base64," + base64.b64encode(content).decode()


def file_url(name: str) -> str:
    """Return the relative URL of a file in the folder of the page, escaped for an attribute.

    Path separators, schemes and fragments in the name are quoted.

    Example:
        >>> file_url("50 % #1.html")
        './50%20%25%20%231.html'
    """
    return escape_text("./" + quote(name, safe="", errors="replace"))


def path_url(path: str) -> str:
    """Return the relative URL of a path of our own making, whose parts are joined by `/`.

    Args:
        path: A path from the folder of the page; it may begin with `../`.

    Example:
        >>> path_url("sub #1/50 %.html"), path_url("../index.html")
        ('./sub%20%231/50%20%25.html', './../index.html')
    """
    return "./" + "/".join(file_url(part)[2:] for part in path.split("/"))


def _jpeg(image: Image.Image, quality: int, sampling: int) -> bytes:
    """Return an image as a JPEG with optimized Huffman tables.

    These need a buffer for the whole file. Pillow allocates one byte per pixel, which is too small
    for noise, so the buffer size is raised meanwhile; it does not affect the output.
    """
    buffer = io.BytesIO()
    with _ENCODING:  # MAXBLOCK is a global of Pillow
        default = ImageFile.MAXBLOCK
        ImageFile.MAXBLOCK = max(default, _BYTES_PER_PIXEL * image.width * image.height)
        try:
            image.save(buffer, "jpeg", quality=quality, optimize=True, subsampling=sampling)
        finally:
            ImageFile.MAXBLOCK = default
    return buffer.getvalue()


@cache
def _read(name: str) -> str:
    return (files("visattn.viz.html") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _quoted_json(data: Mapping[str, Any]) -> str:
    """Return JSON that cannot end a script element: <, > and & are escaped."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII: no U+2028 is left
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


_LONGEST = 1280  # side of the embedded image in pixels, which limits the size of the page
_GEOMETRY_KEYS = ("matrix", "input_size", "image_size", "region")


_STYLES = ("paper.css", "viewer.css")
_SCRIPTS = ("overlays.js", "photo.js", "widgets.js", "desk.js")


@dataclass(frozen=True)
class PageOptions(DrawOptions):
    """Options of all pages of a photo: those of figures, of which a page uses some at first.

    Args:
        name: Name on the page; by default the file name of the image.
        index: File name of the index page to link to.
        panel: File name of a figure of the same maps, to which the page links without scripts.
    """

    name: str | None = None
    index: str | None = None
    panel: str | None = None


@dataclass(frozen=True, eq=False)
class PageParts:
    """What a page has besides the photo.

    Args:
        template: Template file in this folder.
        scripts: JavaScript files in this folder, after those of all pages of a photo.
        data: Data for the script besides image size, geometry and drawing options.
        texts: Texts of the template besides the name and size of the image.
        markup: Markup of the template; trusted.
        styles: CSS files in this folder, after those of all pages of a photo.
        model: Name of the model; "" if it is unknown.
        switches: Markup of further drawing options; trusted.
        scales: Markup of options of the scale; trusted.
    """

    template: str
    scripts: Sequence[str]
    data: Mapping[str, Any]
    texts: Mapping[str, str]
    markup: Mapping[str, str] = field(default_factory=dict)
    styles: Sequence[str] = ()
    model: str = ""
    switches: str = ""
    scales: str = ""


def page_geometry(geometry: Geometry) -> dict[str, Any]:
    """Return what a page needs of a geometry."""
    return {key: getattr(geometry, key) for key in _GEOMETRY_KEYS}


def own_geometry(geometry: Geometry | None, base: Geometry) -> dict[str, Any]:
    """Return a geometry for the page; nothing if it is that of the page."""
    if geometry is None or (geometry.matrix, geometry.region) == (base.matrix, base.region):
        return {}
    return {"geometry": page_geometry(geometry)}


def photo_page(
    image: UInt8[np.ndarray, "y x 3"],
    geometry: Geometry,
    parts: PageParts,
    options: PageOptions,
) -> str:
    """Return a self-contained HTML page with an image on which a script draws maps.

    Args:
        image: RGB, of any size and proportions.
        geometry: Geometry of the maps.
        parts: Template, scripts and data.
        options: Name of the image, and how maps are drawn at first.

    Raises:
        ValueError: If the geometry belongs to another image, or an option is invalid.
    """
    if geometry.image_size != image.shape[:2]:
        raise ValueError(
            f"the maps belong to an image of size {geometry.image_size} (height, width), got "
            f"{image.shape[:2]}; pass the original image"
        )
    _check_drawing(options)
    address, (height, width) = image_data_url(image, longest=_LONGEST)
    back = "" if options.index is None else _BACK_LINK.format(path_url(options.index))
    figures = _fragment(
        # Without scripts the images below are shown.
        "photo.html", photo=address, width=str(width), height=str(height),
        caption=parts.texts.get("caption", options.name or ""),
    )  # fmt: skip
    name = sanitize_text(options.name or "", 200)
    return render_page(
        parts.template,
        styles=[*_STYLES, *parts.styles],
        scripts=[*_SCRIPTS, *parts.scripts],
        data={
            "size": [height, width],
            "geometry": page_geometry(geometry),
            "tables": page_tables(options.colormap),
            "opacity": options.opacity,
            "style": options.style,
            "name": name,
            "model": sanitize_text(parts.model, 200),
            **parts.data,
        },
        css=f":root {{ --ratio: {width / height:.6f}; --natural: {width}px }}",
        texts={
            "name": name,
            "model": sanitize_text(parts.model, 200),
            "size": join_notes(
                f"{image.shape[1]} \N{MULTIPLICATION SIGN} {image.shape[0]}",
                geometry.seen_text,
            ),
            **parts.texts,
        },
        markup={
            "back": back,
            "figures": figures,
            "desk": _fragment(
                "desk.html",
                {"switches": parts.switches, "scales": parts.scales},
                opacity=str(round(100 * options.opacity)),
            ),
            "noscript": _without_scripts(options.panel),
            **parts.markup,
        },
    )


def _check_drawing(options: PageOptions) -> None:
    """Refuse what pages cannot draw."""
    if not 0 <= options.opacity <= 1 or options.style not in PAGE_STYLES:
        raise ValueError(
            "opacity must be between 0 and 1 and style heat or light, got "
            f"{options.opacity} and {options.style!r}"
        )


def _fragment(name: str, markup: Mapping[str, str] | None = None, /, **texts: str) -> str:
    """Return a file of this folder that several templates contain, with its texts escaped."""
    escaped = {key: escape_text(text) for key, text in texts.items()}
    return Template(_read(name)).substitute({**escaped, **(markup or {})}).strip()


def _without_scripts(panel: str | None) -> str:
    """Return what a page says where scripts are off, with a link to a figure of its maps."""
    link = "" if panel is None else _PANEL_LINK.format(path_url(panel), escape_text(panel))
    return f'<noscript><p class="plain">{_NO_SCRIPTS}{link}</p></noscript>'


_NO_SCRIPTS = "The attention maps are drawn by a script in this page, but scripts are off."
_PANEL_LINK = ' <a href="{}">{}</a> shows them as a figure.'
_BACK_LINK = '<a class="back" href="{}">&lsaquo; All photos</a>'
