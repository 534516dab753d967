"""A world drawn in pixels, with the mask of every thing."""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, UInt8

from visattn.data.scenes.world import SceneObject, World

Plane = Float[np.ndarray, "y x"]


def draw(world: World, size: int) -> UInt8[np.ndarray, "{size} {size} 3"]:
    """Return the world as an RGB image, edges smoothed over one pixel.

    Args:
        world: What to draw.
        size: Height and width in pixels; the same world can be drawn at any size.

    Example:
        >>> from visattn.data.scenes.world import Kinds, sample_world
        >>> draw(sample_world(Kinds(), np.random.default_rng(0)), 48).shape
        (48, 48, 3)
    """
    canvas = _backdrop(world, size)
    for thing in world.things:
        rows, columns, distance, u, v = _window(thing, size)
        alpha = np.clip(0.5 - distance, 0.0, 1.0)[..., None]
        shade = np.asarray(thing.shade, np.float32) * _shading(thing, u, v)[..., None]
        patch = canvas[rows, columns]
        canvas[rows, columns] = patch + alpha * (shade - patch)
    return np.clip(canvas, 0, 255).astype(np.uint8)


def masks(world: World, size: int) -> Bool[np.ndarray, "things {size} {size}"]:
    """Return, for each thing, the pixels whose centers it covers."""
    covered = np.zeros((len(world.things), size, size), dtype=bool)
    for layer, thing in zip(covered, world.things, strict=True):
        rows, columns, distance, *_ = _window(thing, size)
        layer[rows, columns] = distance < 0
    return covered


def _backdrop(world: World, size: int) -> Float[np.ndarray, "y x 3"]:
    top, bottom = (np.asarray(color, np.float32) for color in world.background)
    fade = np.linspace(0, 1, size, dtype=np.float32)[:, None, None]
    grain = np.random.default_rng(world.noise_seed).normal(0, 5, (size, size, 1))
    return (top + fade * (bottom - top) + grain.astype(np.float32)).astype(np.float32)


def _window(thing: SceneObject, size: int) -> tuple[slice, slice, Plane, Plane, Plane]:
    """Rows and columns around a thing, signed distance to its edge in pixels, its own axes."""
    r = thing.radius * size
    left, top, right, bottom = (side * size for side in thing.box)
    rows = slice(max(0, math.floor(top) - 1), min(size, math.ceil(bottom) + 1))
    columns = slice(max(0, math.floor(left) - 1), min(size, math.ceil(right) + 1))
    dy = ((np.arange(rows.start, rows.stop, dtype=np.float32) + 0.5) - thing.y * size)[:, None] / r
    dx = ((np.arange(columns.start, columns.stop, dtype=np.float32) + 0.5) - thing.x * size) / r
    cos, sin = math.cos(thing.angle), math.sin(thing.angle)
    u, v = cos * dx + sin * dy, cos * dy - sin * dx
    return rows, columns, OUTLINES[thing.shape](u, v) * r, u, v


def _circle(u: Plane, v: Plane) -> Plane:
    return np.hypot(u, v) - 1.0


def _square(u: Plane, v: Plane) -> Plane:
    return np.maximum(np.abs(u), np.abs(v)) - 0.7


def _triangle(u: Plane, v: Plane) -> Plane:
    return np.maximum(v, 0.866 * np.abs(u) - 0.5 * v) - 0.5


def _cross(u: Plane, v: Plane) -> Plane:
    a, b = np.abs(u), np.abs(v)
    return np.minimum(np.maximum(a - 0.9, b - 0.3), np.maximum(b - 0.9, a - 0.3))


def _ring(u: Plane, v: Plane) -> Plane:
    return np.abs(np.hypot(u, v) - 0.74) - 0.26


def _star(u: Plane, v: Plane) -> Plane:
    """Fold the plane into one tenth of a five-pointed star and measure to its single edge."""
    sector = 2 * math.pi / 5
    theta = np.abs((np.arctan2(u, -v) + sector / 2) % sector - sector / 2)
    rho = np.hypot(u, v)
    inner_x, inner_y = 0.45 * math.cos(sector / 2), 0.45 * math.sin(sector / 2)
    ex, ey = inner_x - 1.0, inner_y
    px, py = rho * np.cos(theta) - 1.0, rho * np.sin(theta)
    return (px * ey - py * ex) / math.hypot(ex, ey)


OUTLINES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "ring": _ring,
    "star": _star,
}


def _shading(thing: SceneObject, u: Plane, v: Plane) -> Plane:
    """How bright the thing is at each pixel, by its texture; period and dots scale with it."""
    if thing.texture == "striped":
        return np.where(np.sin(9.0 * (u + v)) > 0, 1.0, 0.35).astype(np.float32)
    if thing.texture == "dotted":
        return np.where(np.cos(7.5 * u) * np.cos(7.5 * v) > 0.3, 0.25, 1.0).astype(np.float32)
    return np.ones_like(u)
