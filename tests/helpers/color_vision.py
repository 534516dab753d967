"""CIELAB, CIEDE2000 and simulated color-vision deficiencies, written from their papers."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_TO_XYZ = np.array([
    [0.4124564, 0.3575761, 0.1804375],
    [0.2126729, 0.7151522, 0.0721750],
    [0.0193339, 0.1191920, 0.9503041],
])  # fmt: skip
_WHITE = _TO_XYZ.sum(1)  # D65

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency" (2009), severity 1.0; they apply to linear RGB.
DEFICIENCIES: dict[str, Floats] = {
    "deuteranopia": np.array([
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]),
    "protanopia": np.array([
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]),
    "tritanopia": np.array([
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ]),
}  # fmt: skip


def linear(rgb: ArrayLike) -> Floats:
    """Return linear RGB in [0, 1] of sRGB in 0 to 255."""
    share = np.asarray(rgb, np.float64) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def _lab(light: Floats) -> Floats:
    ratio = light @ _TO_XYZ.T / _WHITE
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


def lab(rgb: ArrayLike, deficiency: str = "") -> Floats:
    """Return L*, a* and b* of sRGB in 0 to 255, as a viewer with a deficiency sees it."""
    light = linear(rgb)
    if deficiency:
        light = np.clip(light @ DEFICIENCIES[deficiency].T, 0, 1)
    return _lab(light)


def _hue(a: Floats, b: Floats) -> Floats:
    return np.degrees(np.arctan2(b, a)) % 360


def ciede2000(first: ArrayLike, second: ArrayLike) -> Floats:
    """Return the CIEDE2000 difference of CIELAB colors.

    Source: Sharma, Wu and Dalal, "The CIEDE2000 Color-Difference Formula" (2005), equations 2 to 22
    """
    (l1, a1, b1), (l2, a2, b2) = (np.moveaxis(np.asarray(c, float), -1, 0) for c in (first, second))
    mean_c = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    g = 0.5 * (1 - np.sqrt(mean_c**7 / (mean_c**7 + 25.0**7)))
    a1, a2 = (1 + g) * a1, (1 + g) * a2
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = _hue(a1, b1), _hue(a2, b2)
    gray = c1 * c2 == 0
    step = (h2 - h1 + 180) % 360 - 180
    step = np.where(np.abs(h2 - h1) == 180, h2 - h1, step)
    d_h = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(np.where(gray, 0, step)) / 2)
    far = np.abs(h1 - h2) > 180
    h = np.where(far, (h1 + h2 + np.where(h1 + h2 < 360, 360, -360)) / 2, (h1 + h2) / 2)
    h = np.where(gray, h1 + h2, h)
    light, c = (l1 + l2) / 2, (c1 + c2) / 2
    t = (
        1 - 0.17 * np.cos(np.radians(h - 30)) + 0.24 * np.cos(np.radians(2 * h))
        + 0.32 * np.cos(np.radians(3 * h + 6)) - 0.20 * np.cos(np.radians(4 * h - 63))
    )  # fmt: skip
    s_l = 1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2)
    s_c, s_h = 1 + 0.045 * c, 1 + 0.015 * c * t
    turn = np.radians(60 * np.exp(-(((h - 275) / 25) ** 2)))
    r_t = -np.sin(turn) * 2 * np.sqrt(c**7 / (c**7 + 25.0**7))
    x, y, z = (l2 - l1) / s_l, (c2 - c1) / s_c, d_h / s_h
    return np.sqrt(x**2 + y**2 + z**2 + r_t * y * z)
