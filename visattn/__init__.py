"""Attention for images: blocks for CNNs, attribution maps, captioners, glimpse models, ViTs.

Public names are loaded on first use, so that `import visattn` is fast and a program only imports
the packages that it needs.

Example:
    >>> import visattn as va
    >>> sorted(va.__all__)[:3]
    ['AttentionMap', 'BoxTarget', 'CaptionImages']
"""

from functools import cache

import lazy_loader

_load, _names, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __dir__() -> list[str]:
    """List the public names and `__version__`."""
    return [*_names(), "__version__"]


def __getattr__(name: str) -> object:
    """Return a public name, loaded on first use; `__version__` of the installed package."""
    if name == "__version__":
        from importlib.metadata import version

        return version("visattn")
    try:
        return _load(name)
    except AttributeError:
        if name in __all__:
            raise
        raise AttributeError(_unknown(name)) from None


@cache  # jsonargparse looks up the same names hundreds of times per command
def _unknown(name: str) -> str:
    from visattn.io.messages import did_you_mean

    hint = did_you_mean(name, __all__, otherwise="dir(visattn) lists all")
    return f"module 'visattn' has no attribute {name!r}; {hint}"
