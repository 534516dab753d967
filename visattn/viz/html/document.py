"""Self-contained HTML pages with a strict content security policy."""

import base64
import hashlib
import html
import io
import json
import threading
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import quote

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageFile

from visattn.viz.html.safe_text import sanitize_text
from visattn.viz.maps.resize import resize_image

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
        ...     texts={"title": "<b>", "count": "1 photo", "search": "Search"},
        ...     markup={"cards": "", "pages": "", "list": ""},
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


def _read(name: str) -> str:
    return (files("visattn.viz.html") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _quoted_json(data: Mapping[str, Any]) -> str:
    """Return JSON that cannot end a script element: <, > and & are escaped."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII: no U+2028 is left
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
