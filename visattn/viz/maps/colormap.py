"""Color tables: the color of a value, fixed once and for all."""

import difflib
from functools import cache

import numpy as np
from jaxtyping import UInt8


@cache
def color_table(name: str = "magma") -> UInt8[np.ndarray, "256 3"]:
    """Return the 256 colors of a table, from the lowest value to the highest.

    Args:
        name: A color map of matplotlib. `magma`, `inferno`, `viridis` and `cividis` grow lighter
            evenly, and can be read in gray and by the color-blind.

    Returns:
        RGB, read-only.

    Raises:
        ValueError: If there is no such table.

    Example:
        >>> color_table("gray")[[0, 128, 255], 0]
        array([  0, 128, 255], dtype=uint8)
    """
    from matplotlib import colormaps

    if name not in colormaps:
        close = difflib.get_close_matches(name, colormaps, n=3) or ["magma", "inferno", "viridis"]
        raise ValueError(f"no color table {name!r}; did you mean {', '.join(close)}?")
    table = colormaps[name](np.linspace(0.0, 1.0, 256), bytes=True)[:, :3].copy()
    table.flags.writeable = False
    return table
