"""Attention maps as notebooks show them, without a photo."""

from dataclasses import replace

from visattn.results.attention_map import AttentionMap
from visattn.viz.figures import figure, png

_MOST = 24  # maps


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
