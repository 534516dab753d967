"""Lookup tables of colormaps."""

from functools import cache

import numpy as np
from jaxtyping import UInt8

from visattn.io.messages import did_you_mean


@cache
def colormap_lut(name: str = "magma") -> UInt8[np.ndarray, "256 3"]:
    """Return the 256 colors of a matplotlib colormap, from the lowest value to the highest.

    Args:
        name: Name of the colormap. `magma`, `inferno`, `viridis` and `cividis` are perceptually
            uniform and readable in grayscale and by color-blind viewers.

    Returns:
        RGB, read-only.

    Raises:
        ValueError: If matplotlib has no such colormap.

    Example:
        >>> colormap_lut("gray")[[0, 128, 255], 0]
        array([  0, 128, 255], dtype=uint8)
    """
    from matplotlib import colormaps

    if name not in colormaps:
        raise ValueError(f"unknown colormap {name!r}; {did_you_mean(name, colormaps)}")
    lut = colormaps[name](np.linspace(0.0, 1.0, 256), bytes=True)[:, :3].copy()
    lut.flags.writeable = False
    return lut


@cache
def overlay_palette(name: str) -> bytes:
    """Return a colormap without its lowest fifth, stretched to 256 levels.

    The lowest fifth of most colormaps is nearly black and would look like shadow on a photo.

    Args:
        name: See `colormap_lut`.

    Returns:
        Red, green and blue of 256 levels, interleaved, as `PIL.Image.putpalette` takes them.

    Example:
        >>> list(overlay_palette("gray")[:3])
        [51, 51, 51]
    """
    return colormap_lut(name)[np.linspace(51, 255, 256).round().astype(int)].tobytes()


@cache
def negative_palette(name: str) -> bytes:
    """Return the overlay palette with red and blue swapped, for negative values.

    Args:
        name: See `colormap_lut`.

    Example:
        >>> list(negative_palette("magma")[-3:]) == list(overlay_palette("magma")[-3:])[::-1]
        True
    """
    lut = np.frombuffer(overlay_palette(name), np.uint8).reshape(256, 3)
    return lut[:, ::-1].tobytes()
