"""What a scene holds: colored, textured things of several sizes, placed without overlap."""

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
] = {  # shares of the image's side; the gaps make the words clear
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
    """One thing of a scene; lengths are shares of the image's side, angles are radians."""

    shape: str
    color: str
    texture: str
    size: str
    x: float
    y: float
    radius: float
    angle: float
    shade: tuple[int, int, int]

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom as shares of the image; no pixel of the thing lies outside."""
        r = self.radius
        return (self.x - r, self.y - r, self.x + r, self.y + r)


@dataclass(frozen=True)
class World:
    """A scene before it is drawn: things, largest first, and what they lie on.

    Captions speak of the two largest things; the others are distractors.
    """

    things: tuple[SceneObject, ...]
    background: tuple[tuple[float, float, float], tuple[float, float, float]]
    noise_seed: int


@dataclass(frozen=True)
class Kinds:
    """Which kinds of things a world may hold.

    Args:
        colors: Names from `COLORS`.
        shapes: Names from `SHAPES`.
        textures: Names from `TEXTURES`.
        count: Fewest and most things in a world; those beyond two are distractors.
    """

    colors: tuple[str, ...] = tuple(COLORS)
    shapes: tuple[str, ...] = SHAPES
    textures: tuple[str, ...] = TEXTURES
    count: tuple[int, int] = (2, 4)

    def __post_init__(self) -> None:
        for name, given, known in (
            ("colors", self.colors, tuple(COLORS)),
            ("shapes", self.shapes, SHAPES),
            ("textures", self.textures, TEXTURES),
        ):
            wrong = [word for word in given if word not in known]
            if wrong or not given:
                raise ValueError(f"{name} must be chosen from {', '.join(known)}, got {given}")
        if not 2 <= self.count[0] <= self.count[1] <= 5:
            raise ValueError(f"count must be 2 <= fewest <= most <= 5, got {self.count}")

    def pairs(self, *, novel: bool) -> list[tuple[str, str]]:
        """Color-shape pairs that are held out of training (`novel`) or may stand in it."""
        every = [(color, shape) for color in self.colors for shape in self.shapes]
        return [pair for pair in every if (pair in HELD_OUT) == novel]


def sample_world(kinds: Kinds, rng: np.random.Generator, *, novel: bool = False) -> World:
    """Return a random world; in a `novel` one, the largest thing is a held-out pair.

    Args:
        kinds: What may appear.
        rng: The only source of randomness.
        novel: Whether the world shows a color-shape pair that training never shows.

    Raises:
        ValueError: If the kinds leave no held-out pair although `novel` asks for one, or no other.

    Example:
        >>> world = sample_world(Kinds(), np.random.default_rng(0))
        >>> world.things[0].color in COLORS
        True
    """
    seen, unseen = kinds.pairs(novel=False), kinds.pairs(novel=True)
    if novel and not unseen:
        raise ValueError("these colors and shapes hold no held-out pair; allow more of them")
    if not seen:
        raise ValueError("these colors and shapes hold held-out pairs alone; allow more of them")
    count = int(rng.integers(kinds.count[0], kinds.count[1] + 1))
    discs = sorted(_place(count, rng), key=lambda disc: -disc[-1])
    things: list[SceneObject] = []
    for position, (size, x, y, radius) in enumerate(discs):
        choices = unseen if novel and position == 0 else seen
        color, shape = choices[int(rng.integers(len(choices)))]
        things.append(_thing(color, shape, kinds, size, (x, y, radius), rng))
    return World(tuple(things), _background(rng), int(rng.integers(2**31)))


def _thing(
    color: str,
    shape: str,
    kinds: Kinds,
    size: str,
    disc: tuple[float, float, float],
    rng: np.random.Generator,
) -> SceneObject:
    texture = kinds.textures[int(rng.integers(len(kinds.textures)))]
    red, green, blue = (int(v) for v in np.clip(rng.normal(COLORS[color], 8.0), 0, 255))
    angle = float(rng.uniform(-0.25, 0.25))
    return SceneObject(shape, color, texture, size, *disc, angle, (red, green, blue))


def _background(
    rng: np.random.Generator,
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Two dull colors, for the top and the bottom of the image."""
    top, bottom = (
        rng.uniform(60, 230) + rng.normal(0, 7, size=(2, 3)) + rng.uniform(-25, 25, (2, 1))
    )
    return (tuple(map(float, top)), tuple(map(float, bottom)))  # type: ignore[return-value]


def _place(count: int, rng: np.random.Generator) -> list[tuple[str, float, float, float]]:
    """Throw discs until all lie inside the image and apart; sizes are thrown anew each round."""
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
