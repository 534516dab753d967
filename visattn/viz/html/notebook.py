"""Results in notebooks: maps as a picture, captions as HTML without scripts."""

import hashlib
from dataclasses import replace

import numpy as np

from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.viz.figures import figure, png
from visattn.viz.heatmap import overlay
from visattn.viz.html.document import escape_text, image_data_url

_MOST = 24  # maximum number of maps in a picture
_STYLE = (
    "#{id}{{font:16px/1.6 Georgia,serif;max-width:640px}}"
    "#{id} div{{position:relative;width:max-content;max-width:100%}}"
    "#{id} img{{display:block;max-width:100%;border-radius:6px}}"
    "#{id} div img+img{{position:absolute;inset:0;visibility:hidden}}"
    "#{id} span{{padding:0 .15em;border-radius:3px;cursor:default}}"
    "#{id} span{{text-decoration:underline dotted}}"
    "#{id} span:hover,#{id} span:focus{{background:#f2849e66}}"
)


def notebook_caption(caption: Caption) -> str | None:
    """Return the photo and the words for notebooks; hovering over a word shows its map.

    Args:
        caption: A caption; the result is empty without its photo or without words.

    Example:
        >>> import torch
        >>> from visattn import AttentionMap, Geometry
        >>> maps = AttentionMap(torch.ones(1, 2, 2), "x", "words", Geometry.identity((4, 6)))
        >>> said = Caption(("dog",), (-0.1,), (1.0,), maps, -0.1, True)
        >>> html = notebook_caption(replace(said, thumbnail=np.zeros((4, 6, 3), np.uint8)))
        >>> html.count("<img"), "<script" in html
        (3, False)
    """
    image, words = caption.thumbnail, caption.words
    if image is None or not words:
        return None
    maps = caption.maps.resize_to_image(image.shape[:2], smooth=caption.smooth).numpy()
    top = caption.maps.display_range()[1]
    name = "va" + hashlib.sha256(image.tobytes() + " ".join(words).encode()).hexdigest()[:12]
    shown = [image, *(overlay(image, values, vmax=top) for values in maps)]
    images = "".join(
        f'<img class="m{index}" src="{image_data_url(pixels, longest=640, quality=80)[0]}" alt="">'
        for index, pixels in enumerate(shown)
    )
    spaces = (False, *(caption.spaces or (True,) * len(words))[1:])
    spans = "".join(
        f'{" " * space}<span class="w{index}" tabindex="0">{escape_text(word)}</span>'
        for index, (space, word) in enumerate(zip(spaces, words, strict=True), 1)
    )
    rules = "".join(
        f"#{name}:has(.w{index}:hover) .m{index},#{name}:has(.w{index}:focus) .m{index}"
        "{visibility:visible!important}"
        for index in range(1, len(words) + 1)
    )
    ramp = np.linspace(0, top, 240)[None].repeat(10, 0)
    bar = overlay(np.full((*ramp.shape, 3), 150, np.uint8), ramp, vmax=top)
    address = image_data_url(bar, longest=240, quality=95)[0]
    scale = (
        f'<p>0 <img src="{address}" alt="colors" style="display:inline"> {top:.2g} '
        f"{caption.quantity}</p>"
    )
    body = f"<div>{images}</div><p>{spans}</p>{scale}"
    return f'<div id="{name}"><style>{_STYLE.format(id=name)}{rules}</style>{body}</div>'


def notebook_map(attention_map: AttentionMap) -> bytes | None:
    """Return maps as a PNG file: tiles of the image, or the channels of a gate as bars.

    Args:
        attention_map: One or more maps, on one color scale; only the first of many are drawn.
            Without maps, None is returned.

    Example:
        >>> import torch
        >>> notebook_map(AttentionMap(torch.eye(2), "layer4", "gradient"))[1:4]
        b'PNG'
    """
    values = attention_map.values.detach().cpu()
    if not values.numel():
        return None
    ndim = 1 if attention_map.kind == "channel" else 2
    flat = values.flatten(0, -ndim - 1) if values.ndim > ndim else values[None]
    labels = attention_map.labels if len(attention_map.labels) == len(flat) else ()
    each = replace(attention_map, values=flat[:_MOST], labels=labels[:_MOST])
    if len(flat) > 1 and not labels:
        names = [
            f"{attention_map.site} {number} of {len(flat)}" for number in range(1, len(each) + 1)
        ]
        return png(figure(dict(zip(names, each, strict=True)), scales="all"))
    return png(figure(list(each), scales="all"))
