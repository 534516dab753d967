"""Self-contained HTML pages with a strict content security policy, and pages of one photo."""

import base64
import hashlib
import html
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import quote

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from visattn.geometry.affine import Geometry
from visattn.viz.heatmap import PAGE_STYLES, DrawOptions, page_tables, resize_image
from visattn.viz.text import join_notes, sanitize_text


def render_page(
    template: str,
    *,
    styles: Sequence[str],
    scripts: Sequence[str],
    data: Mapping[str, Any],
    css: str = "",
    kind: str = "",
    heading: str,
    texts: Mapping[str, str],
    markup: Mapping[str, str],
) -> str:
    """Return a self-contained page whose content security policy blocks everything else.

    The policy allows this script and these styles by their hashes, and images as data URLs. Texts
    are escaped and cannot become markup or code.

    Args:
        template: Template file in this folder for the content of the body, with `$name`
            placeholders.
        styles: CSS files in this folder, concatenated.
        scripts: JavaScript files in this folder, concatenated into one function.
        data: Data for the script, serializable as JSON.
        css: Additional CSS rules; trusted.
        kind: Kind of page, for CSS selectors.
        heading: Title of the window, which is escaped.
        texts: Values of placeholders, which are escaped.
        markup: Values of placeholders, inserted without escaping; trusted.

    Raises:
        ValueError: If `data` contains NaN or infinity.
        KeyError: If a placeholder has no value.

    Example:
        >>> page = render_page(
        ...     "index.html", styles=["paper.css"], scripts=["index.js"], data={}, heading="<b>",
        ...     texts={"title": "<b>", "count": "1 photo", "about": ""},
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
    return Template(_read("frame.html")).substitute(
        body=Template(_read(template)).substitute({**escaped, **markup}).strip(),
        heading=escape_text(heading),
        kind=kind,
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
    content, shown = io.BytesIO(), Image.fromarray(resize_image(image, size))
    shown.save(content, "jpeg", quality=quality, subsampling=sampling)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode(), size


def path_url(path: str) -> str:
    """Return the relative URL of a path that visattn made, with parts joined by `/`.

    Schemes and fragments in names are quoted.

    Args:
        path: A path from the folder of the page; it may begin with `../`.

    Example:
        >>> path_url("sub #1/50 %.html"), path_url("../index.html")
        ('./sub%20%231/50%20%25.html', './../index.html')
    """
    return "./" + quote(path, errors="replace")


@cache
def _read(name: str) -> str:
    return (files("visattn.viz.html") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _quoted_json(data: Mapping[str, Any]) -> str:
    """Return JSON that cannot end a script element: <, > and & are escaped."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII, so there is no U+2028
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


_LONGEST = 1280  # side of the embedded image in pixels, which limits the size of the page
_NAME, _TEXT, _LABEL = 200, 1_000, 60  # characters
_GEOMETRY_KEYS = ("matrix", "input_size", "image_size", "region")
_SCRIPTS = ("overlays.js", "photo.js", "controls.js", "heads.js", "page.js")
SOFTWARE = """\
@software{visattn,
  author = {{The visattn authors}},
  title = {visattn: attention for images},
  year = {2026},
}"""
"""This software as BibTeX."""
_NO_SCRIPTS = "The attention maps are drawn by a script in this page, but scripts are disabled."


@dataclass(frozen=True)
class PageOptions(DrawOptions):
    """Options of pages of a photo; the drawing options set the initial state of the page.

    Args:
        name: Name on the page; by default the file name of the image.
        index: File name of the index page to link to.
        panel: File name of a figure of the same maps, linked if scripts are disabled.
    """

    name: str | None = None
    index: str | None = None
    panel: str | None = None


def fact(
    name: str, text: str, share: float | None = None, *, mark: float | None = None, kind: str = ""
) -> dict[str, Any]:
    """Return a row of a readout, for the script.

    Args:
        name: Label.
        text: Its value.
        share: Length of its bar, 0 to 1; None for no bar.
        mark: Position of a mark on the bar.
        kind: `chance` or `gate` for values that are also drawn below the word.
    """
    return {"name": name, "text": text, "share": share, "mark": mark, "kind": kind}


def map_view(
    values: Float[np.ndarray, "y x"], label: str, scale: Sequence[float], **more: Any
) -> dict[str, Any]:
    """Return a selectable map of a page, for the script.

    Args:
        values: The map, one value per grid cell.
        label: Text of its button.
        scale: Values at both ends of the color scale.
        more: `title` and `which` one it is in words; `geometry` where it is not that of the page;
            `range` of all maps on the scale; `unit`; `even`, the value of a map without
            preference; `signed`; `cells` that stay sharp; `facts`, and `details` that are folded;
            `about`, the title and facts of its phrase; `note`; known `boxes` and `outlines` of the
            map, as fractions of the image size; `weights` of the words of the question.
    """
    known = {
        "title": label, "which": "", "range": scale, "unit": "attention per cell", "even": None,
        "signed": False, "cells": False, "facts": (), "details": (), "about": None, "note": "",
        "boxes": (), "outlines": (), "weights": (),
    }  # fmt: skip
    label = sanitize_text(label, _LABEL)
    return {**known, **more, "values": values, "grid": values.shape, "label": label, "scale": scale}


def map_row(views: Sequence[dict[str, Any]], title: str, **more: Any) -> dict[str, Any]:
    """Return a row of selectable maps, such as those of the words of a caption, for the script.

    Args:
        views: Maps, from `map_view`.
        title: Title of the row: a caption, a question, a class.
        more: `name` of the row; `mean`, a map of all; `line` and `score` of the button where one
            row of several is chosen; `answer` with its `facts`; `tokens`, the words of a question,
            with those that are `unknown` and the `most` that one of them weighs; `notes`.
    """
    known = {"name": "", "mean": None, "line": [(title, False)], "score": "", "answer": "",
             "facts": (), "tokens": None, "notes": ()}  # fmt: skip
    return {**known, **more, "views": views, "title": title}


def own_geometry(geometry: Geometry | None, base: Geometry) -> dict[str, Any]:
    """Return a geometry for the script; empty if it is that of the page."""
    if geometry is None or (geometry.matrix, geometry.region) == (base.matrix, base.region):
        return {}
    return {"geometry": _page_geometry(geometry)}


def photo_page(
    image: UInt8[np.ndarray, "y x 3"],
    geometry: Geometry,
    rows: Sequence[dict[str, Any]],
    options: PageOptions,
    *,
    kind: str,
    model: str = "",
    others: str = "",
    bibtex: str = SOFTWARE,
    **data: Any,
) -> str:
    """Return a self-contained HTML page of an image, on which a script draws maps.

    Args:
        image: RGB, of any size and aspect ratio.
        geometry: Geometry of the maps.
        rows: Selectable maps, from `map_row`; the first is shown initially.
        options: Name of the image, and initial drawing options.
        kind: Kind of maps: `words`, `hops` or `methods`.
        model: Name of the model; "" if it is unknown.
        others: Heading of the list of rows.
        bibtex: Citations.
        data: Further data for the script: `together` for rows that are all shown, `first` map,
            meaning of a `gate`, `layers` with their heads, the query that is `read` first, and
            whether queries are `pooled`.

    Raises:
        ValueError: If the geometry belongs to another image, or an option is invalid.
    """
    if geometry.image_size != image.shape[:2]:
        raise ValueError(
            f"the maps belong to an image of size {geometry.image_size} (height, width), got "
            f"{image.shape[:2]}; pass the original image"
        )
    address, (height, width) = image_data_url(image, longest=_LONGEST)
    size = f"{image.shape[1]} \N{MULTIPLICATION SIGN} {image.shape[0]}"
    name = sanitize_text(options.name or "", _NAME)
    title = sanitize_text(rows[0]["title"], _TEXT)
    link = '<a class="back" href="{}">&lsaquo; All photos</a>'
    back = "" if options.index is None else link.format(path_url(options.index))
    return render_page(
        "photo.html",
        styles=["paper.css", "photo.css"],
        scripts=_SCRIPTS,
        data=_plain(
            {
                "size": (height, width),
                "geometry": _page_geometry(geometry),
                "tables": page_tables(options.colormap),
                "opacity": options.opacity,
                "style": options.style if options.style in PAGE_STYLES else PAGE_STYLES[0],
                "smooth": options.smooth,
                "rows": rows,
                "together": False,
                "first": 0,
                "gate": "",
                "layers": (),
                "read": "",
                "pooled": "",
                **data,
            }
        ),
        css=f":root {{ --ratio: {width / height:.6f}; --natural: {width}px }}",
        kind=kind,
        heading=f"{name}: {title}",
        texts={
            "name": name,
            "model": sanitize_text(model, _NAME),
            "size": join_notes(size, geometry.seen_text),
            "title": title,
            "width": str(width),
            "height": str(height),
            "others": others,
            "bibtex": bibtex,
        },
        markup={"photo": address, "back": back, "noscript": _without_scripts(options.panel)},
    )


def _page_geometry(geometry: Geometry) -> dict[str, Any]:
    return {key: getattr(geometry, key) for key in _GEOMETRY_KEYS}


def _plain(data: Any) -> Any:
    """Return data for JSON, with arrays as base64 of bytes or of little-endian float32."""
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(each) for each in data]
    if isinstance(data, np.ndarray):
        kind = "u1" if data.dtype == np.uint8 else "f4"
        return {kind: base64.b64encode(data.astype(f"<{kind}").tobytes()).decode()}
    return sanitize_text(data, _TEXT) if isinstance(data, str) else data


def _without_scripts(panel: str | None) -> str:
    """Return the text for browsers without scripts, with a link to a figure of the maps."""
    link = ' <a href="{}">{}</a> shows them as a figure.'
    shown = "" if panel is None else link.format(path_url(panel), escape_text(panel))
    return f'<noscript><p class="plain">{_NO_SCRIPTS}{shown}</p></noscript>'
