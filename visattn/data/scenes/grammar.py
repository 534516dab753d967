"""A small grammar: how a world is told, and what each word of the telling points at."""

from dataclasses import dataclass

from visattn.data.scenes.world import RADII, Kinds, SceneObject, World

MARGIN = 0.04  # one thing lies left of another when its center does, by this share of the side
RELATIONS = ("left of", "right of", "above", "below")
PLACES = {  # where the second thing is, seen from the first
    "left of": "on its right",
    "right of": "on its left",
    "above": "below it",
    "below": "above it",
}
CONVERSE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


@dataclass(frozen=True)
class SceneCaption:
    """A caption and, for each of its words, the thing that the word shows (None: not visual)."""

    words: tuple[str, ...]
    shows: tuple[int | None, ...]

    @property
    def text(self) -> str:
        """The caption as one line."""
        return " ".join(self.words)


def holds(relation: str, a: SceneObject, b: SceneObject) -> bool:
    """Return whether `a` stands in the relation to `b`.

    Example:
        >>> from visattn.data.scenes.world import SceneObject
        >>> a = SceneObject("circle", "red", "plain", "small", 0.2, 0.5, 0.1, 0.0, (255, 0, 0))
        >>> b = SceneObject("square", "blue", "plain", "small", 0.8, 0.5, 0.1, 0.0, (0, 0, 255))
        >>> holds("left of", a, b), holds("above", a, b)
        (True, False)
    """
    offsets = {"left of": b.x - a.x, "right of": a.x - b.x, "above": b.y - a.y, "below": a.y - b.y}
    return offsets[relation] > MARGIN


def tell(world: World) -> tuple[SceneCaption, ...]:
    """Return five paraphrases of how the world's two largest things stand to each other.

    Example:
        >>> import numpy as np
        >>> from visattn.data.scenes.world import Kinds, sample_world
        >>> len(tell(sample_world(Kinds(), np.random.default_rng(0))))
        5
    """
    first, second = world.things[:2]
    relation = _clearest(first, second)
    a, b = _phrase(first, 0), _phrase(second, 1)
    return (
        _telling(a, "is", relation, b),
        _telling(b, "is", CONVERSE[relation], a),
        _telling("there is", a, relation, b),
        _telling(relation, b, "is", a),
        _telling(a, "with", b, PLACES[relation]),
    )


def _clearest(a: SceneObject, b: SceneObject) -> str:
    dx, dy = b.x - a.x, b.y - a.y
    if abs(dx) >= abs(dy):
        return "left of" if dx > 0 else "right of"
    return "above" if dy > 0 else "below"


def _phrase(thing: SceneObject, index: int) -> list[tuple[str, int | None]]:
    size = "" if thing.size == "medium" else thing.size
    texture = "" if thing.texture == "plain" else thing.texture
    words = [word for word in (size, texture, thing.color, thing.shape) if word]
    article = "an" if words[0][0] in "aeiou" else "a"
    return [(article, None), *((word, index) for word in words)]


def _telling(*parts: str | list[tuple[str, int | None]]) -> SceneCaption:
    pairs: list[tuple[str, int | None]] = []
    for part in parts:
        pairs += [(word, None) for word in part.split()] if isinstance(part, str) else part
    return SceneCaption(tuple(word for word, _ in pairs), tuple(thing for _, thing in pairs))


def grammar_words(kinds: Kinds) -> list[str]:
    """Return every word that a caption of such a world may use, in alphabetical order.

    Example:
        >>> from visattn.data.scenes.world import Kinds
        >>> "striped" in grammar_words(Kinds(textures=("plain",)))
        False
    """
    said = {"a", "an", "is", "there", "with", *" ".join((*RELATIONS, *PLACES.values())).split()}
    said |= {*kinds.colors, *kinds.shapes, *kinds.textures, *RADII} - {"plain", "medium"}
    return sorted(said)
