"""Web pages in one file: nothing is loaded from outside, and no text of theirs can become code."""

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

from visattn.viz.html.safe_text import shown_text
from visattn.viz.maps.resize import resized_image

_BYTES_PER_PIXEL = 4  # of a JPEG at most: noise of black and white in full color takes 2.4
_ENCODING = threading.Lock()


def sealed_document(
    template: str,
    *,
    styles: Sequence[str],
    scripts: Sequence[str],
    data: Mapping[str, Any],
    css: str = "",
    texts: Mapping[str, str],
    markup: Mapping[str, str],
) -> str:
    """Return a page that holds all it needs, and whose policy lets it do nothing else.

    The browser runs this script and these styles, by their hashes, shows images that stand in the
    page, and refuses the rest: whatever a text holds, it stays a text.

    Args:
        template: A file of `pages/`, with a `$name` for each of what follows.
        styles: Files of `pages/`, joined in this order.
        scripts: Files of `pages/`, joined in this order into one function.
        data: What the script reads, as JSON holds it.
        css: Rules for this page alone, made of numbers.
        texts: Are escaped.
        markup: Is put in as it is; made by this package only.

    Raises:
        ValueError: If `data` holds a number that JSON has not, as NaN.
        KeyError: If something has no value.

    Example:
        >>> page = sealed_document(
        ...     "index.html", styles=["paper.css"], scripts=["index.js"], data={},
        ...     texts={"title": "<b>", "count": "1 photo"}, markup={"cards": ""},
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
    escaped = {name: escaped_text(text) for name, text in texts.items()}
    return Template(_read(template)).substitute(
        {**escaped, **markup},
        policy=policy,
        style=style,
        script=script,
        data=_quoted_json(data),
    )


def escaped_text(text: str) -> str:
    """Return a text as a page can hold it, between tags and between quotation marks.

    Signs that are hidden, or that would turn the text around them, are replaced.

    Example:
        >>> escaped_text("<b> & 'c'")
        '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return html.escape(shown_text(text), quote=True)


def image_address(
    image: UInt8[np.ndarray, "y x 3"], *, longest: int, quality: int = 88
) -> tuple[str, tuple[int, int]]:
    """Return an image as an address that holds it, and its height and width there.

    Args:
        image: RGB.
        longest: It is made smaller where a side is longer, in pixels; never larger.
        quality: Of the JPEG, 1 to 95.

    Example:
        >>> address, size = image_address(np.zeros((20, 40, 3), np.uint8), longest=10)
        >>> address[:23], size
        ('data:image/jpeg;base64,', (5, 10))
    """
    height, width = image.shape[:2]
    share = min(1.0, longest / max(height, width))
    size = (max(1, round(height * share)), max(1, round(width * share)))
    # Small images are enlarged by the page, and drawn ones have hard edges: all of their color.
    sampling = 2 if share < 1 or max(size) > 640 else 0
    content = _jpeg(Image.fromarray(resized_image(image, size)), quality, sampling)
    return "data:image/jpeg;base64," + base64.b64encode(content).decode(), size


def file_address(name: str) -> str:
    """Return the address of a file in the page's folder, as an attribute can hold it.

    Nothing in a name is taken for a folder, a scheme or a fragment.

    Example:
        >>> file_address("50 % #1.html")
        './50%20%25%20%231.html'
    """
    return escaped_text("./" + quote(name, safe="", errors="replace"))


def _jpeg(image: Image.Image, quality: int, sampling: int) -> bytes:
    """Return an image as JPEG, with tables made for it.

    For these the whole file must fit into a buffer, in which Pillow reckons with a byte for each
    pixel; noise in full color takes more. The size of the buffer changes no byte of the file.
    """
    buffer = io.BytesIO()
    with _ENCODING:  # what a module knows is everybody's
        usual = ImageFile.MAXBLOCK
        ImageFile.MAXBLOCK = max(usual, _BYTES_PER_PIXEL * image.width * image.height)
        try:
            image.save(buffer, "jpeg", quality=quality, optimize=True, subsampling=sampling)
        finally:
            ImageFile.MAXBLOCK = usual
    return buffer.getvalue()


def _read(name: str) -> str:
    return (files("visattn.viz.html") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _quoted_json(data: Mapping[str, Any]) -> str:
    """Return JSON in which no tag begins or ends, and no line either."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII: no U+2028 is left
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
