"""Vision attention: train it, see where it looked, put it into networks of your own.

The names below are loaded when they are first used, so that `import visattn` costs next to
nothing and a program pays only for the rooms it enters.

Example:
    >>> import visattn as va
    >>> sorted(va.__all__)[:3]
    ['AttentionMap', 'Geometry', 'Scenes']
"""

import difflib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from visattn.blocks.catalogues import create, info, names, register
    from visattn.blocks.surgery import bake, insert, remove, table
    from visattn.data.pictures import read_picture
    from visattn.data.scenes.datasets import Scenes
    from visattn.maps.attention_maps import AttentionMap
    from visattn.maps.geometries import Geometry
    from visattn.maps.recorders import record
    from visattn.seeing import caption, explain, load, methods_for, overlay, save

    __version__: str

__all__ = [
    "AttentionMap",
    "Geometry",
    "Scenes",
    "bake",
    "caption",
    "create",
    "explain",
    "info",
    "insert",
    "load",
    "methods_for",
    "names",
    "overlay",
    "read_picture",
    "record",
    "register",
    "remove",
    "save",
    "table",
]

# Where each public name lives. The imports above say the same to type checkers; a test compares.
_HOMES = {
    "AttentionMap": "visattn.maps.attention_maps",
    "Geometry": "visattn.maps.geometries",
    "Scenes": "visattn.data.scenes.datasets",
    "bake": "visattn.blocks.surgery",
    "caption": "visattn.seeing",
    "create": "visattn.blocks.catalogues",
    "explain": "visattn.seeing",
    "info": "visattn.blocks.catalogues",
    "insert": "visattn.blocks.surgery",
    "load": "visattn.seeing",
    "methods_for": "visattn.seeing",
    "names": "visattn.blocks.catalogues",
    "overlay": "visattn.seeing",
    "read_picture": "visattn.data.pictures",
    "record": "visattn.maps.recorders",
    "register": "visattn.blocks.catalogues",
    "remove": "visattn.blocks.surgery",
    "save": "visattn.seeing",
    "table": "visattn.blocks.surgery",
}


if not TYPE_CHECKING:  # so that a misspelt name is an error to type checkers too

    def __getattr__(name: str) -> object:
        """Return a public name from its home and remember it."""
        if name == "__version__":
            from importlib.metadata import version

            value: object = version("visattn")
        elif name in _HOMES:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        else:
            message = f"module 'visattn' has no attribute {name!r}"
            if close := difflib.get_close_matches(name, __all__, n=3):
                message += f"; did you mean {' or '.join(map(repr, close))}?"
            raise AttributeError(message)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return what can be asked for, loaded or not."""
    return sorted({*globals(), *__all__, "__version__"})
