"""Rendering of scenes: pixels and object masks."""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, UInt8

from visattn.data.regions.masks import mask_boxes
from visattn.data.scenes.world import SceneObject, World

Plane = Float[np.ndarray, "y x"]


def draw_world(world: World, size: int) -> UInt8[np.ndarray, "{size} {size} 3"]:
    """Render a world as an antialiased RGB image.

    Args:
        world: Objects and background.
        size: Height and width in pixels.

    Example:
        >>> from visattn.data.scenes.world import WorldConfig, sample_world
        >>> draw_world(sample_world(WorldConfig(), np.random.default_rng(0)), 48).shape
        (48, 48, 3)
    """
    canvas = _render_background(world, size)
    for obj in world.objects:
        rows, columns, distance, u, v = _local_coordinates(obj, size)
        alpha = np.clip(0.5 - distance, 0.0, 1.0)[..., None]
        shade = np.asarray(obj.rgb, np.float32) * _shading(obj, u, v)[..., None]
        patch = canvas[rows, columns]
        canvas[rows, columns] = patch + alpha * (shade - patch)
    return np.clip(canvas, 0, 255).astype(np.uint8)


def object_masks(world: World, size: int) -> Bool[np.ndarray, "objects {size} {size}"]:
    """Return, for each object, the pixels whose centers it covers."""
    covered = np.zeros((len(world.objects), size, size), dtype=bool)
    for layer, obj in zip(covered, world.objects, strict=True):
        rows, columns, distance, *_ = _local_coordinates(obj, size)
        layer[rows, columns] = distance < 0
    return covered


def object_boxes(world: World, size: int) -> Float[np.ndarray, "objects 4"]:
    """Return the bounding box of the pixels of each object at a rendering size.

    Args:
        world: Objects and background.
        size: Height and width in pixels.

    Returns:
        Left, top, right, bottom in pixels; zeros for an object without pixels.

    Example:
        >>> from visattn.data.scenes.world import WorldConfig, sample_world
        >>> object_boxes(sample_world(WorldConfig(), np.random.default_rng(0)), 48)[0]
        array([30., 13., 45., 27.])
    """
    return mask_boxes(object_masks(world, size))


def _render_background(world: World, size: int) -> Float[np.ndarray, "y x 3"]:
    top, bottom = (np.asarray(color, np.float32) for color in world.background)
    fade = np.linspace(0, 1, size, dtype=np.float32)[:, None, None]
    grain = np.random.default_rng(world.noise_seed).normal(0, 5, (size, size, 1))
    return (top + fade * (bottom - top) + grain.astype(np.float32)).astype(np.float32)


def _local_coordinates(obj: SceneObject, size: int) -> tuple[slice, slice, Plane, Plane, Plane]:
    """Return rows, columns, signed distance to the edge in pixels, and object coordinates."""
    r = obj.radius * size
    rows, columns = (
        slice(
            max(0, math.floor((center - obj.radius) * size) - 1),
            min(size, math.ceil((center + obj.radius) * size) + 1),
        )
        for center in (obj.y, obj.x)
    )
    dy = ((np.arange(rows.start, rows.stop, dtype=np.float32) + 0.5) - obj.y * size)[:, None] / r
    dx = ((np.arange(columns.start, columns.stop, dtype=np.float32) + 0.5) - obj.x * size) / r
    cos, sin = math.cos(obj.angle), math.sin(obj.angle)
    u, v = cos * dx + sin * dy, cos * dy - sin * dx
    return rows, columns, SIGNED_DISTANCES[obj.shape](u, v) * r, u, v


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
    """Signed distance to a five-pointed star, folded by symmetry to one edge."""
    sector = 2 * math.pi / 5
    theta = np.abs((np.arctan2(u, -v) + sector / 2) % sector - sector / 2)
    rho = np.hypot(u, v)
    inner_x, inner_y = 0.45 * math.cos(sector / 2), 0.45 * math.sin(sector / 2)
    ex, ey = inner_x - 1.0, inner_y
    px, py = rho * np.cos(theta) - 1.0, rho * np.sin(theta)
    return (px * ey - py * ex) / math.hypot(ex, ey)


SIGNED_DISTANCES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "ring": _ring,
    "star": _star,
}


def _shading(obj: SceneObject, u: Plane, v: Plane) -> Plane:
    """Return the brightness factor of the texture, in object coordinates."""
    if obj.texture == "striped":
        return np.where(np.sin(9.0 * (u + v)) > 0, 1.0, 0.35).astype(np.float32)
    if obj.texture == "dotted":
        return np.where(np.cos(7.5 * u) * np.cos(7.5 * v) > 0.3, 0.25, 1.0).astype(np.float32)
    return np.ones_like(u)
