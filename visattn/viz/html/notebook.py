"""What notebooks show of results: maps as a picture, a caption as HTML without scripts."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float, UInt8

from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.viz.figures import figure, png
from visattn.viz.heatmap import overlay
from visattn.viz.html.document import escape_text, image_data_url

_MOST = 24  # maps in a picture
_STYLE = (
    "#{id}{{font:16px/1.6 Georgia,serif;max-width:640px}}"
    "#{id} div{{position:relative;width:max-content;max-width:100%}}"
    "#{id} img{{display:block;max-width:100%;border-radius:6px}}"
    "#{id} div img+img{{position:absolute;inset:0;visibility:hidden}}"
    "#{id} span{{padding:0 .15em;border-radius:3px;cursor:default}}"
    "#{id} span{{text-decoration:underline dotted}}"
    "#{id} span:hover,#{id} span:focus{{background:#f2849e66}}"
)


def caption_element(
    image: UInt8[np.ndarray, "y x 3"],
    words: Sequence[str],
    maps: Float[np.ndarray, "t y x"],
    *,
    vmax: float,
    quantity: str = "attention",
    spaces: Sequence[bool] = (),
) -> str:
    """Return a caption as an HTML element; its map appears while the mouse is over a word.

    Args:
        image: RGB, as large as it is shown.
        words: Words of the caption.
        maps: The map of each word, on the pixels of the image; NaN outside of the input.
        vmax: Value at the upper end of the color scale.
        quantity: What the values are, written beside the color scale below the words.
        spaces: Whether a space stands before each word; () if one does before all.

    Example:
        >>> photo = np.zeros((4, 6, 3), np.uint8)
        >>> html = caption_element(photo, ["dog"], np.ones((1, 4, 6)), vmax=1)
        >>> html.count("<img"), "<script" in html
        (3, False)
    """
    name = "va" + hashlib.sha256(image.tobytes() + " ".join(words).encode()).hexdigest()[:12]
    shown = [image, *(overlay(image, values, vmax=vmax) for values in maps)]
    images = "".join(
        f'<img class="m{index}" src="{image_data_url(pixels, longest=640, quality=80)[0]}" alt="">'
        for index, pixels in enumerate(shown)
    )
    spans = "".join(
        f'{" " * space}<span class="w{index}" tabindex="0">{escape_text(word)}</span>'
        for index, (space, word) in enumerate(
            zip((False, *(spaces or (True,) * len(words))[1:]), words, strict=True), 1
        )
    )
    rules = "".join(
        f"#{name}:has(.w{index}:hover) .m{index},#{name}:has(.w{index}:focus) .m{index}"
        "{visibility:visible!important}"
        for index in range(1, len(words) + 1)
    )
    style = _STYLE.format(id=name)
    ramp = np.linspace(0, vmax, 240)[None].repeat(10, 0)
    bar = overlay(np.full((*ramp.shape, 3), 150, np.uint8), ramp, vmax=vmax)
    address = image_data_url(bar, longest=240, quality=95)[0]
    scale = (
        f'<p>0 <img src="{address}" alt="colors" style="display:inline"> {vmax:.2g} {quantity}</p>'
    )
    body = f"<div>{images}</div><p>{spans}</p>{scale}"
    return f'<div id="{name}"><style>{style}{rules}</style>{body}</div>'


def notebook_caption(caption: Caption) -> str | None:
    """Return the photo and the words for notebooks; hovering a word shows its map.

    Args:
        caption: A caption; without its photo or without words nothing is shown.
    """
    if caption.thumbnail is None or not caption.words:
        return None
    maps = caption.maps.resize_to_image(caption.thumbnail.shape[:2], smooth=caption.smooth)
    top = caption.maps.display_range()[1]
    return caption_element(
        caption.thumbnail, caption.words, maps.numpy(), vmax=top, quantity=caption.quantity,
        spaces=caption.spaces,
    )  # fmt: skip


def notebook_map(attention_map: AttentionMap) -> bytes | None:
    """Return maps as a PNG file: tiles as they lie on the image, or the channels of a gate as bars.

    Args:
        attention_map: One or more maps, on one color scale; of many the first are drawn. None is
            returned without any.

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
