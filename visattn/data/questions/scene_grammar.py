"""Grammar of questions about scenes, their parser, and a solver that answers them symbolically."""

import re
from typing import Literal, NamedTuple, get_args

from visattn.data.scenes.grammar import CONVERSE, RELATIONS, relation_holds
from visattn.data.scenes.world import COLORS, RADII, SHAPES, TEXTURES, SceneObject, World

Attribute = Literal["size", "texture", "color", "shape"]
ATTRIBUTES: tuple[Attribute, ...] = get_args(Attribute)
"""Attributes in the order of their words in a description."""
SCENE_QUESTION_GROUPS = {
    "query": ("query_color", "query_shape", "query_size", "query_texture"),
    "set": ("exists", "count"),
    "pair": ("side", "compare", "which"),
}
"""Types of questions by group: about one object, about all that fit, and about two."""
_VALUES = {"size": tuple(RADII), "texture": TEXTURES, "color": tuple(COLORS), "shape": SHAPES}
_PLURALS = {shape: "crosses" if shape == "cross" else f"{shape}s" for shape in SHAPES}
_SINGULARS = {plural: shape for shape, plural in _PLURALS.items()}


class Description(NamedTuple):
    """A description of objects; empty strings are unspecified.

    Example:
        >>> Description(texture="striped", shape="star").words()
        'striped star'
    """

    size: str = ""
    texture: str = ""
    color: str = ""
    shape: str = ""

    def matches(self, thing: SceneObject) -> bool:
        """Return whether the description is true of an object."""
        values = (thing.size, thing.texture, thing.color, thing.shape)
        return all(not word or word == fact for word, fact in zip(self, values, strict=True))

    def words(self, *, plural: bool = False) -> str:
        """Return the words of the description; without a shape, the noun is "object"."""
        noun = self.shape or "object"
        noun = (_PLURALS.get(noun) or "objects") if plural else noun
        return " ".join((*(word for word in self[:3] if word), noun))


class SceneQuery(NamedTuple):
    """The meaning of a question about a scene."""

    type: str
    first: Description
    second: Description | None = None
    """The other object of `side` and `compare`."""
    attribute: str = ""
    """The attribute that `compare` is about."""
    relation: str = ""
    """The relation of `side` and `which`."""

    @property
    def text(self) -> str:
        """The question in words.

        Example:
            >>> SceneQuery("query_color", Description(shape="star")).text
            'what color is the star ?'
        """
        first = self.first.words()
        second = self.second.words() if self.second else ""
        if self.type.startswith("query_"):
            return f"what {self.type.removeprefix('query_')} is the {first} ?"
        return {
            "exists": f"is there {'an' if first[0] in 'aeiou' else 'a'} {first} ?",
            "count": f"how many {self.first.words(plural=True)} are there ?",
            "side": f"is the {first} {self.relation} the {second} ?",
            "compare": f"is the {first} the same {self.attribute} as the {second} ?",
            "which": f"what shape is {self.relation} the {first} ?",
        }[self.type]


_RELATION = f"(?P<relation>{'|'.join(RELATIONS)})"
_ATTRIBUTE = f"(?P<attribute>{'|'.join(ATTRIBUTES)})"
_FORMS = {
    "which": rf"what shape is {_RELATION} the (?P<first>.+)",
    "query": rf"what {_ATTRIBUTE} is the (?P<first>.+)",
    "exists": r"is there an? (?P<first>.+)",
    "count": r"how many (?P<first>.+) are there",
    "side": rf"is the (?P<first>.+) {_RELATION} the (?P<second>.+)",
    "compare": rf"is the (?P<first>.+) the same {_ATTRIBUTE} as the (?P<second>.+)",
}


def parse_scene_question(text: str) -> SceneQuery | None:
    """Parse a question into its meaning; None if the grammar does not cover it.

    Example:
        >>> parse_scene_question("is the red star left of the small object ?").relation
        'left of'
        >>> parse_scene_question("where is the star ?")
    """
    plain = text.lower().removesuffix("?").strip()
    for type_, form in _FORMS.items():
        if not (match := re.fullmatch(form, plain)):
            continue
        parts = match.groupdict()
        first, second = (
            _parse_description(parts[name]) if parts.get(name) else None
            for name in ("first", "second")
        )
        if first is None or (parts.get("second") and second is None):
            continue
        if type_ == "query":
            return SceneQuery(f"query_{parts['attribute']}", first)
        return SceneQuery(
            type_, first, second, parts.get("attribute") or "", parts.get("relation") or ""
        )
    return None


def solve_scene_question(query: SceneQuery, world: World) -> str | None:
    """Return the answer to a question about a world; None if it has no definite one.

    An object that "the" names must be the only one that fits, relations must hold by the margin of
    `relation_holds`, and exactly one object may be on the side that `which` names.

    Example:
        >>> import numpy as np
        >>> from visattn.data.scenes.world import WorldConfig, sample_world
        >>> world = sample_world(WorldConfig(), np.random.default_rng(0))
        >>> thing = world.objects[0]
        >>> solve_scene_question(SceneQuery("exists", Description(shape=thing.shape)), world)
        'yes'
    """
    fitting = [thing for thing in world.objects if query.first.matches(thing)]
    if query.type == "exists":
        return "yes" if fitting else "no"
    if query.type == "count":
        return str(len(fitting))
    if len(fitting) != 1:
        return None
    if query.type.startswith("query_"):
        return str(getattr(fitting[0], query.type.removeprefix("query_")))
    if query.type == "which":
        index = _only_related(query.relation, fitting[0], world)
        return None if index is None else world.objects[index].shape
    others = [thing for thing in world.objects if query.second and query.second.matches(thing)]
    if len(others) != 1 or others[0] is fitting[0]:
        return None
    if query.type == "compare":
        first, second = (getattr(thing, query.attribute) for thing in (fitting[0], others[0]))
        return "yes" if first == second else "no"
    if relation_holds(query.relation, fitting[0], others[0]):
        return "yes"
    return "no" if relation_holds(CONVERSE[query.relation], fitting[0], others[0]) else None


def scene_referents(query: SceneQuery, world: World) -> tuple[tuple[int, ...], ...]:
    """Return the indices of the objects that a question is about, for each step of reasoning.

    Steps: the object of `query`; all objects that fit for `exists` and `count`, none if nothing
    fits; the two objects of `side` and `compare`; the named object and then the answer of `which`.

    Args:
        query: A question that has a definite answer.
        world: Objects of the scene.
    """
    fitting = tuple(i for i, thing in enumerate(world.objects) if query.first.matches(thing))
    if query.second is not None:
        others = (i for i, thing in enumerate(world.objects) if query.second.matches(thing))
        return (fitting, tuple(others))
    if query.type == "which":
        index = _only_related(query.relation, world.objects[fitting[0]], world)
        return (fitting,) if index is None else (fitting, (index,))
    return (fitting,) if fitting else ()


def scene_question_words() -> list[str]:
    """Return all words of questions about scenes, in alphabetical order."""
    forms = "what is the there a an how many are same as object objects"
    values = [value for values in _VALUES.values() for value in values]
    return sorted(
        {*forms.split(), *ATTRIBUTES, *" ".join(RELATIONS).split(), *values, *_PLURALS.values()}
    )


def scene_answers(*, max_count: int = 4) -> tuple[str, ...]:
    """Return all answers to questions about scenes.

    Args:
        max_count: Largest number of objects that questions count.
    """
    values = (value for name in ATTRIBUTES for value in _VALUES[name])
    return ("yes", "no", *values, *map(str, range(max_count + 1)))


def _only_related(relation: str, anchor: SceneObject, world: World) -> int | None:
    """Return the only object on one side of another; None if there are more, or unclear ones."""
    sides = [
        (index, thing)
        for index, thing in enumerate(world.objects)
        if thing is not anchor and not relation_holds(CONVERSE[relation], thing, anchor)
    ]
    if len(sides) == 1 and relation_holds(relation, sides[0][1], anchor):
        return sides[0][0]
    return None


def _parse_description(words: str) -> Description | None:
    """Parse the words of a description; None if the grammar does not cover them."""
    *rest, noun = words.split()
    values: dict[str, str] = {}
    if noun not in ("object", "objects"):
        values["shape"] = _SINGULARS.get(noun, noun)
        if values["shape"] not in SHAPES:
            return None
    for word in rest:
        kind = next((name for name in ATTRIBUTES[:3] if word in _VALUES[name]), None)
        if kind is None or kind in values:
            return None
        values[kind] = word
    return Description(**values)
