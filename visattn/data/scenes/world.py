"""Random scene contents: colored, textured objects of several sizes, without overlap."""

import math
from dataclasses import dataclass

import numpy as np

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
RADII: dict[
    str, tuple[float, float]
] = {  # relative to the image side; the gaps make the size words unambiguous
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
        for name, values, known in (
            ("colors", self.colors, tuple(COLORS)),
            ("shapes", self.shapes, SHAPES),
            ("textures", self.textures, TEXTURES),
        ):
            unknown = [value for value in values if value not in known]
            if unknown or not values:
                raise ValueError(f"{name} must be chosen from {', '.join(known)}, got {values}")
        if not 2 <= self.num_objects[0] <= self.num_objects[1] <= 5:
            raise ValueError(
                f"num_objects must satisfy 2 <= minimum <= maximum <= 5, got {self.num_objects}"
            )

    def color_shape_pairs(self, *, novel: bool) -> list[tuple[str, str]]:
        """Return the color-shape pairs that are held out of training (`novel`), or the others."""
        pairs = [(color, shape) for color in self.colors for shape in self.shapes]
        return [pair for pair in pairs if (pair in HELD_OUT) == novel]


def sample_world(config: WorldConfig, rng: np.random.Generator, *, novel: bool = False) -> World:
    """Return a random world; in a `novel` one, the largest object is a held-out pair.

    Args:
        config: Distribution of worlds.
        rng: Random generator.
        novel: Whether the world shows a color-shape pair that is held out of training.

    Raises:
        ValueError: If the config has no held-out pair although `novel` is set, or only such pairs.

    Example:
        >>> world = sample_world(WorldConfig(), np.random.default_rng(0))
        >>> world.objects[0].color in COLORS
        True
    """
    training_pairs, novel_pairs = (
        config.color_shape_pairs(novel=False),
        config.color_shape_pairs(novel=True),
    )
    if novel and not novel_pairs:
        raise ValueError("these colors and shapes have no held-out pair; allow more of them")
    if not training_pairs:
        raise ValueError("these colors and shapes have only held-out pairs; allow more of them")
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
    """Sample discs until all lie inside the image without overlap; all are resampled each time."""
    names = tuple(RADII)
    while True:
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
