"""Caption grammar of scenes, with the object that each word refers to."""

from dataclasses import dataclass

from visattn.data.scenes.world import (
    COLORS,
    RADII,
    SHAPES,
    TEXTURES,
    SceneObject,
    World,
    WorldConfig,
)

MARGIN = 0.04  # minimum offset of centers for a relation, relative to the image side
RELATIONS = ("left of", "right of", "above", "below")
PLACES = {  # position of the second object relative to the first
    "left of": "on its right",
    "right of": "on its left",
    "above": "below it",
    "below": "above it",
}
CONVERSE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


@dataclass(frozen=True)
class SceneCaption:
    """A caption and, for each word, the index of the object it refers to (None: not visual)."""

    words: tuple[str, ...]
    objects: tuple[int | None, ...]

    @property
    def text(self) -> str:
        """The caption as one line."""
        return " ".join(self.words)


def relation_holds(relation: str, a: SceneObject, b: SceneObject) -> bool:
    """Return whether a spatial relation holds between `a` and `b`.

    Example:
        >>> from visattn.data.scenes.world import SceneObject
        >>> a = SceneObject("circle", "red", "plain", "small", 0.2, 0.5, 0.1, 0.0, (255, 0, 0))
        >>> b = SceneObject("square", "blue", "plain", "small", 0.8, 0.5, 0.1, 0.0, (0, 0, 255))
        >>> relation_holds("left of", a, b), relation_holds("above", a, b)
        (True, False)
    """
    offsets = {"left of": b.x - a.x, "right of": a.x - b.x, "above": b.y - a.y, "below": a.y - b.y}
    return offsets[relation] > MARGIN


def describe_world(world: World) -> tuple[SceneCaption, ...]:
    """Return five captions that describe the relation of the two largest objects of a world.

    Example:
        >>> import numpy as np
        >>> from visattn.data.scenes.world import WorldConfig, sample_world
        >>> len(describe_world(sample_world(WorldConfig(), np.random.default_rng(0))))
        5
    """
    first, second = world.objects[:2]
    relation = _dominant_relation(first, second)
    a, b = _object_phrase(first, 0), _object_phrase(second, 1)
    return (
        _build_caption(a, "is", relation, b),
        _build_caption(b, "is", CONVERSE[relation], a),
        _build_caption("there is", a, relation, b),
        _build_caption(relation, b, "is", a),
        _build_caption(a, "with", b, PLACES[relation]),
    )


def _dominant_relation(a: SceneObject, b: SceneObject) -> str:
    dx, dy = b.x - a.x, b.y - a.y
    if abs(dx) >= abs(dy):
        return "left of" if dx > 0 else "right of"
    return "above" if dy > 0 else "below"


def _object_phrase(obj: SceneObject, index: int) -> list[tuple[str, int | None]]:
    size = "" if obj.size == "medium" else obj.size
    texture = "" if obj.texture == "plain" else obj.texture
    words = [word for word in (size, texture, obj.color, obj.shape) if word]
    article = "an" if words[0][0] in "aeiou" else "a"
    return [(article, None), *((word, index) for word in words)]


def _build_caption(*parts: str | list[tuple[str, int | None]]) -> SceneCaption:
    pairs: list[tuple[str, int | None]] = []
    for part in parts:
        pairs += [(word, None) for word in part.split()] if isinstance(part, str) else part
    return SceneCaption(tuple(word for word, _ in pairs), tuple(obj for _, obj in pairs))


def is_visual_word(word: str) -> bool:
    """Return whether a word of the captions describes an object: its size, texture, color, shape.

    All other words, articles and spatial relations included, are not visual.

    Example:
        >>> [is_visual_word(word) for word in ("striped", "circle", "left", "a")]
        [True, True, False, False]
    """
    return word in {*COLORS, *SHAPES, *TEXTURES, *RADII} - {"plain", "medium"}


def grammar_words(config: WorldConfig) -> list[str]:
    """Return all words of the captions of such worlds, in alphabetical order.

    Example:
        >>> from visattn.data.scenes.world import WorldConfig
        >>> "striped" in grammar_words(WorldConfig(textures=("plain",)))
        False
    """
    words = {"a", "an", "is", "there", "with", *" ".join((*RELATIONS, *PLACES.values())).split()}
    words |= {*config.colors, *config.shapes, *config.textures, *RADII} - {"plain", "medium"}
    return sorted(words)
