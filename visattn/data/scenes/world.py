"""Synthetic scenes: random worlds and their rendering."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, UInt8

from visattn.data.regions.masks import mask_boxes

COLORS: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40),
    "green": (42, 157, 72),
    "blue": (38, 84, 214),
    "yellow": (244, 208, 40),
    "purple": (132, 46, 172),
    "orange": (244, 128, 24),
    "cyan": (44, 196, 214),
    "pink": (246, 132, 186),
}
SHAPES = ("circle", "square", "triangle", "cross", "ring", "star")
TEXTURES = ("plain", "striped", "dotted")
# Relative to the image side; the gaps make the size words unambiguous.
RADII: dict[str, tuple[float, float]] = {
    "small": (0.085, 0.105),
    "medium": (0.135, 0.155),
    "large": (0.185, 0.21),
}
HELD_OUT = (
    ("red", "square"),
    ("green", "triangle"),
    ("blue", "circle"),
    ("yellow", "cross"),
    ("purple", "ring"),
    ("orange", "star"),
)


@dataclass(frozen=True)
class SceneObject:
    """One object of a scene; lengths are relative to the image side, angles in radians.

    The object lies inside the circle of `radius` around (`x`, `y`); `object_boxes` returns the
    bounding box of its pixels.
    """

    shape: str
    color: str
    texture: str
    size: str
    x: float
    y: float
    radius: float
    angle: float
    rgb: tuple[int, int, int]


@dataclass(frozen=True)
class World:
    """A scene before it is rendered: objects, largest first, and the background.

    Captions describe the two largest objects; the others are distractors.
    """

    objects: tuple[SceneObject, ...]
    background: tuple[tuple[float, float, float], tuple[float, float, float]]
    noise_seed: int


@dataclass(frozen=True)
class WorldConfig:
    """Distribution of random worlds.

    Args:
        colors: Names from `COLORS`.
        shapes: Names from `SHAPES`.
        textures: Names from `TEXTURES`.
        num_objects: Minimum and maximum number of objects; those beyond two are distractors.
    """

    colors: tuple[str, ...] = tuple(COLORS)
    shapes: tuple[str, ...] = SHAPES
    textures: tuple[str, ...] = TEXTURES
    num_objects: tuple[int, int] = (2, 4)

    def __post_init__(self) -> None:
        chosen = (self.colors, COLORS), (self.shapes, SHAPES), (self.textures, TEXTURES)
        for names, known in chosen:
            if not names or not {*names} <= {*known}:
                raise ValueError(f"choose from {', '.join(known)}; got {names}")
        if not 2 <= self.num_objects[0] <= self.num_objects[1] <= 5:
            raise ValueError(
                f"num_objects must satisfy 2 <= minimum <= maximum <= 5, got {self.num_objects}"
            )

    def color_shape_pairs(self, *, novel: bool) -> list[tuple[str, str]]:
        """Return the color-shape pairs that are held out of training (`novel`), or the others."""
        pairs = [(color, shape) for color in self.colors for shape in self.shapes]
        return [pair for pair in pairs if (pair in HELD_OUT) == novel]


def sample_world(config: WorldConfig, rng: np.random.Generator, *, novel: bool = False) -> World:
    """Sample a world; if `novel`, its largest object is a color-shape pair held out of training.

    Raises:
        ValueError: If the config has no held-out pair although `novel` is set, or only such pairs.

    Example:
        >>> world = sample_world(WorldConfig(), np.random.default_rng(0))
        >>> world.objects[0].color in COLORS
        True
    """
    training_pairs = config.color_shape_pairs(novel=False)
    novel_pairs = config.color_shape_pairs(novel=True)
    if novel and not novel_pairs:
        raise ValueError("these colors and shapes have no held-out pair; add colors or shapes")
    if not training_pairs:
        raise ValueError("these colors and shapes have only held-out pairs; add colors or shapes")
    count = int(rng.integers(config.num_objects[0], config.num_objects[1] + 1))
    discs = sorted(_place_discs(count, rng), key=lambda disc: -disc[-1])
    objects: list[SceneObject] = []
    for position, (size, x, y, radius) in enumerate(discs):
        choices = novel_pairs if novel and position == 0 else training_pairs
        color, shape = choices[int(rng.integers(len(choices)))]
        objects.append(_sample_object(color, shape, config, size, (x, y, radius), rng))
    return World(tuple(objects), _background(rng), int(rng.integers(2**31)))


def _sample_object(
    color: str,
    shape: str,
    config: WorldConfig,
    size: str,
    disc: tuple[float, float, float],
    rng: np.random.Generator,
) -> SceneObject:
    texture = config.textures[int(rng.integers(len(config.textures)))]
    red, green, blue = (int(v) for v in np.clip(rng.normal(COLORS[color], 8.0), 0, 255))
    angle = float(rng.uniform(-0.25, 0.25))
    return SceneObject(shape, color, texture, size, *disc, angle, (red, green, blue))


def _background(
    rng: np.random.Generator,
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return two muted colors, for the top and the bottom of the image."""
    top, bottom = (
        rng.uniform(60, 230) + rng.normal(0, 7, size=(2, 3)) + rng.uniform(-25, 25, (2, 1))
    )
    return (tuple(map(float, top)), tuple(map(float, bottom)))  # type: ignore[return-value]


def _place_discs(count: int, rng: np.random.Generator) -> list[tuple[str, float, float, float]]:
    """Sample discs that lie inside the image and do not overlap."""
    names = tuple(RADII)
    while True:
        # Resample all: the discs placed so far may leave no room for the next.
        discs: list[tuple[str, float, float, float]] = []
        for _ in range(count):
            size = names[int(rng.integers(len(names)))]
            radius = float(rng.uniform(*RADII[size]))
            for x, y in rng.uniform(radius + 0.01, 0.99 - radius, size=(12, 2)).tolist():
                if all(math.hypot(x - a, y - b) > radius + r + 0.03 for _, a, b, r in discs):
                    discs.append((size, x, y, radius))
                    break
        if len(discs) == count:
            return discs


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
    cos = math.cos(obj.angle)
    sin = math.sin(obj.angle)
    u = cos * dx + sin * dy
    v = cos * dy - sin * dx
    return rows, columns, SIGNED_DISTANCES[obj.shape](u, v) * r, u, v


def _cross(u: Plane, v: Plane) -> Plane:
    a = np.abs(u)
    b = np.abs(v)
    return np.minimum(np.maximum(a - 0.9, b - 0.3), np.maximum(b - 0.9, a - 0.3))


def _star(u: Plane, v: Plane) -> Plane:
    """Signed distance to a five-pointed star, folded by symmetry to one edge."""
    sector = 2 * math.pi / 5
    theta = np.abs((np.arctan2(u, -v) + sector / 2) % sector - sector / 2)
    rho = np.hypot(u, v)
    inner_x = 0.45 * math.cos(sector / 2)
    inner_y = 0.45 * math.sin(sector / 2)
    ex = inner_x - 1.0
    ey = inner_y
    # In one tenth of the star the edge runs from the tip (1, 0) to the inner corner, 0.45 from the
    # middle; the cross product is the distance from that line, negative inside.
    px = rho * np.cos(theta) - 1.0
    py = rho * np.sin(theta)
    return (px * ey - py * ex) / math.hypot(ex, ey)


SIGNED_DISTANCES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "circle": lambda u, v: np.hypot(u, v) - 1.0,
    "square": lambda u, v: np.maximum(np.abs(u), np.abs(v)) - 0.7,
    # Distances from the three edges, 120 degrees apart: (0, 1) and (+-sin 60, -cos 60).
    "triangle": lambda u, v: np.maximum(v, 0.866 * np.abs(u) - 0.5 * v) - 0.5,
    "cross": _cross,
    "ring": lambda u, v: np.abs(np.hypot(u, v) - 0.74) - 0.26,
    "star": _star,
}


def _shading(obj: SceneObject, u: Plane, v: Plane) -> Plane:
    """Return the brightness factor of the texture, in object coordinates."""
    if obj.texture == "striped":
        return np.where(np.sin(9.0 * (u + v)) > 0, 1.0, 0.35).astype(np.float32)
    if obj.texture == "dotted":
        return np.where(np.cos(7.5 * u) * np.cos(7.5 * v) > 0.3, 0.25, 1.0).astype(np.float32)
    return np.ones_like(u)
