"""Table of the functions that show results in notebooks."""

from importlib import import_module
from typing import Any

show = {
    "AttentionMap": "visattn.viz.notebook_maps:notebook_map",
    "Caption": "visattn.viz.html.notebook:notebook_caption",
    "ScanPath": "visattn.viz.scanpaths:notebook_scanpath",
}
"""How notebooks show a result: class names with the `"module:function"` that draws it. Drawing
stands above results and is imported when a notebook asks for it."""


def shown(result: object) -> Any:
    """Return what a notebook shows of a result; None if nothing draws it.

    Example:
        >>> shown(object()) is None
        True
    """
    address = show.get(type(result).__name__)
    if address is None:
        return None
    module, _, name = address.partition(":")
    return getattr(import_module(module), name)(result)
