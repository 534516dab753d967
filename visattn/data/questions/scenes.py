"""Questions about scenes: their grammar, parser and solver, erasures, and the data set."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import combinations, permutations
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch.utils.data import Dataset

from visattn.data.questions.batch import BatchedSample, Question, QuestionSample
from visattn.data.scenes.language import CONVERSE, RELATIONS, relation_holds
from visattn.data.scenes.world import (
    COLORS,
    HELD_OUT,
    RADII,
    SHAPES,
    TEXTURES,
    SceneObject,
    World,
    WorldConfig,
    draw_world,
    object_boxes,
    sample_world,
)
from visattn.io.argument_checks import LARGEST_SEED, checked_arguments
from visattn.results.kinds import Split

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
    The question must have a definite answer.
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
    """Return all answers to questions about scenes, with counts up to `max_count`."""
    values = (value for name in ATTRIBUTES for value in _VALUES[name])
    return ("yes", "no", *values, *map(str, range(max_count + 1)))


def _only_related(relation: str, anchor: SceneObject, world: World) -> int | None:
    """Return the only object on one side of another; None if there are more, or unclear ones."""
    # All that is not clearly on the other side: an object within the margin may be on this one, and
    # the question has no definite answer then.
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


Erased = Literal["referent", "distractor"]


class Erasure(NamedTuple):
    """A scene without one object, and the question about it that this is a control of."""

    question: int
    """Index of the question among those of the original sample."""
    sample: QuestionSample
    """The scene without the object, with this question and its answer there."""


def erase_objects(
    sample: QuestionSample | BatchedSample, erased: Erased, size: int
) -> list[Erasure]:
    """Return scenes of `size` pixels a side without one object, for each question of a sample.

    Without a `referent` the answer must change: an object that the question is about is left out,
    the question still has an answer, and it is another one. Without a `distractor` it must not: the
    object is none of those, and the answer stays.

    Raises:
        TypeError: If the sample is not a scene.

    Example:
        >>> from visattn.data.questions.scenes import SceneQuestions
        >>> sample = SceneQuestions(3)[0]
        >>> erasures = erase_objects(sample, "referent", size=32)
        >>> first = erasures[0]
        >>> sample.questions[first.question].answer != first.sample.questions[0].answer
        True
    """
    world = sample.world
    if not isinstance(world, World):
        raise TypeError(f"objects can be erased from rendered scenes only, got {sample.id}")
    erasures: list[Erasure] = []
    for number, question in enumerate(sample.questions):
        query = parse_scene_question(question.text)
        about = {index for step in question.referents for index in step}
        others = set(range(len(world.objects))) - about
        for index in sorted(about if erased == "referent" else others):
            objects = world.objects[:index] + world.objects[index + 1 :]
            smaller = replace(world, objects=objects)
            answer = query and solve_scene_question(query, smaller)
            if query and answer and (answer != question.answer) == (erased == "referent"):
                questions = (scene_question(query, smaller),)
                name = f"{sample.id}-without-{index}"
                erasures.append(Erasure(number, scene_sample(name, smaller, questions, size)))
                break
    return erasures


MAX_COUNT = 4
"""Largest number of objects that a question counts."""
_GROUP_OF = {name: group for group, names in SCENE_QUESTION_GROUPS.items() for name in names}
_ATTEMPTS_PER_QUESTION = 6


class SceneQuestions(Dataset[QuestionSample]):
    """Rendered images of colored, textured shapes with questions that a solver can answer.

    Sample i of a split depends on the seed, the split and i alone; indices beyond the length give
    new scenes. The split `novel` shows color-shape pairs of `HELD_OUT`, which no other split
    contains, and all of its questions are about them.

    Questions are balanced within each type, so that the words alone do not give the answer:
    the two answers of `exists`, `side` and `compare` are equally likely for each scene, since a
    question is only taken if its opposite could be had too; each scene is made for one `count`,
    from 0 to 4 with equal probability; sizes are queried where all three could be. A wrong `exists`
    takes one attribute from another object of the scene.

    Args:
        num_scenes: Number of scenes.
        size: Height and width in pixels; the scenes are the same at any size.
        split: `train`, `validation`, `test` or `novel`.
        seed: Seed of scenes and questions.
        questions: Largest number of questions per scene.
        config: Distribution of worlds; at least 4 objects at most.

    Raises:
        ValueError: If the split is unknown, or a number is out of range.

    Example:
        >>> sample = SceneQuestions(3, split="test")[1]
        >>> sample.image.shape, len(sample.boxes) == len(sample.world.objects)
        (torch.Size([3, 64, 64]), True)
    """

    @checked_arguments(
        num_scenes=(1, 10**9), size=(16, 100_000), seed=(0, LARGEST_SEED), questions=(1, 10**6)
    )
    def __init__(
        self,
        num_scenes: int,
        *,
        size: int = 64,
        split: Split = "train",
        seed: int = 0,
        questions: int = 10,
        config: WorldConfig | None = None,
    ) -> None:
        self.config = config or WorldConfig(num_objects=(3, 5))
        if self.config.num_objects[1] < MAX_COUNT:
            raise ValueError(
                f"questions count up to {MAX_COUNT} objects, so max_objects must be at least "
                f"{MAX_COUNT}, got {self.config.num_objects[1]}"
            )
        self.num_scenes = num_scenes
        self.size = size
        self.split = split
        self.seed = seed
        self.num_questions = questions

    def __len__(self) -> int:
        return self.num_scenes

    def __getitem__(self, index: int) -> QuestionSample:
        world, queries = self.scene(index)
        questions = tuple(scene_question(query, world) for query in queries)
        return scene_sample(f"{self.split}-{index}", world, questions, self.size)

    def scene(self, index: int) -> tuple[World, list[SceneQuery]]:
        """Return the ground truth of a scene, and its questions."""
        # 100 + split: not the scenes that `Scenes` draws with the same seed.
        stream = (self.seed, 100 + get_args(Split).index(self.split), index)
        rng = np.random.default_rng(stream)
        novel = self.split == "novel"
        for _ in range(100):
            world, count = planted_world(self.config, rng, novel=novel)
            drawn = _QuestionDraw(world, count, rng, novel=novel).draw(self.num_questions)
            if drawn:
                return world, drawn
        raise RuntimeError("no question fits these worlds; allow more colors, shapes and textures")


def scene_question(query: SceneQuery, world: World) -> Question:
    """Return a question with its answer and referents.

    Raises:
        ValueError: If it has no definite answer in this world.
    """
    answer = solve_scene_question(query, world)
    if answer is None:
        raise ValueError(f"this scene has no definite answer to {query.text!r}")
    group = _GROUP_OF[query.type]
    return Question(query.text, answer, query.type, group, scene_referents(query, world))


def scene_sample(
    name: str, world: World, questions: tuple[Question, ...], size: int
) -> QuestionSample:
    """Return a rendered scene with its questions."""
    pixels = np.ascontiguousarray(draw_world(world, size).transpose(2, 0, 1))
    boxes = torch.from_numpy(object_boxes(world, size)).float()
    return QuestionSample(name, torch.from_numpy(pixels), questions, boxes, world)


def planted_world(
    config: WorldConfig, rng: np.random.Generator, *, novel: bool = False
) -> tuple[World, SceneQuery]:
    """Return a random world, and a question of how many objects have an attribute.

    The count is drawn first, from 0 to 4 with equal probability; then as many objects get the
    attribute, and the others do not have it. In a `novel` world the largest object is a pair of
    color and shape that is held out of training; it has the attribute unless the count is 0.
    """
    count = int(rng.integers(MAX_COUNT + 1))
    low, high = config.num_objects
    total = int(rng.integers(max(low, count), high + 1))
    world = sample_world(replace(config, num_objects=(total, total)), rng, novel=novel)
    kinds: dict[Attribute, tuple[str, ...]] = {
        "color": config.colors, "shape": config.shapes, "texture": config.textures
    }  # fmt: skip
    kind = list(kinds)[int(rng.integers(len(kinds)))]
    values = kinds[kind]
    value = values[int(rng.integers(len(values)))]
    chosen = set(rng.permutation(total)[:count].tolist())
    if novel:  # the first object keeps its held-out pair
        own = getattr(world.objects[0], kind)
        others = [other for other in values if other != own]
        value = own if count else others[int(rng.integers(len(others)))]
        chosen = {0, *(1 + rng.permutation(total - 1)[: count - 1]).tolist()} if count else set()
    objects = list(world.objects)
    for index, thing in enumerate(objects):
        if (getattr(thing, kind) == value) == (index in chosen):
            continue
        options = [value] if index in chosen else [other for other in values if other != value]
        objects[index] = _with_attribute(thing, kind, options, config, rng)
    query = SceneQuery("count", Description(**{kind: value}))
    return replace(world, objects=tuple(objects)), query


def _with_attribute(
    thing: SceneObject,
    kind: Attribute,
    options: list[str],
    config: WorldConfig,
    rng: np.random.Generator,
) -> SceneObject:
    """Return an object with another value of an attribute, and no pair that is held out."""
    changed = replace(thing, **{kind: options[int(rng.integers(len(options)))]})
    # The planted attribute stays, and the other one of the pair is drawn again.
    if kind != "texture" and (changed.color, changed.shape) in HELD_OUT:
        pairs = [
            pair
            for pair in config.color_shape_pairs(novel=False)
            if (pair[0] if kind == "color" else pair[1]) == getattr(changed, kind)
        ]
        color, shape = pairs[int(rng.integers(len(pairs)))]
        changed = replace(changed, color=color, shape=shape)
    if changed.color != thing.color:
        red, green, blue = (int(v) for v in np.clip(rng.normal(COLORS[changed.color], 8.0), 0, 255))
        changed = replace(changed, rgb=(red, green, blue))
    return changed


class _QuestionDraw:
    """Draws questions about one world."""

    def __init__(
        self, world: World, count: SceneQuery, rng: np.random.Generator, *, novel: bool
    ) -> None:
        self.world = world
        self.count = count
        self.rng = rng
        self.novel = novel
        self.objects = world.objects
        self._names: dict[tuple[int, str], list[Description]] = {}

    def draw(self, number: int) -> list[SceneQuery]:
        """Return up to `number` different questions, of types in random order."""
        types = [name for names in SCENE_QUESTION_GROUPS.values() for name in names]
        makers: dict[str, Callable[[], SceneQuery | None]] = {
            "exists": self._exists, "side": self._side, "compare": self._compare,
            "which": self._which, "count": lambda: self.count,
        }  # fmt: skip
        drawn: dict[SceneQuery, None] = {}
        for _ in range(_ATTEMPTS_PER_QUESTION * number):
            if len(drawn) == number:
                break
            name = types[int(self.rng.integers(len(types)))]
            query = makers[name]() if name in makers else self._query(name)
            if query is not None and (not self.novel or self._is_novel(query)):
                drawn[query] = None
        return list(drawn)

    def names(self, index: int, without: str = "") -> list[Description]:
        """Return the shortest descriptions that name an object, without one of its attributes."""
        key = (index, without)
        if key not in self._names:
            attributes = [name for name in ATTRIBUTES if name != without]
            self._names[key] = next(
                (
                    names
                    for length in range(1, len(attributes) + 1)
                    if (names := [*self._unique(index, combinations(attributes, length))])
                ),
                [],
            )
        return self._names[key]

    def _unique(self, index: int, chosen: Iterable[tuple[str, ...]]) -> Iterator[Description]:
        for attributes in chosen:
            name = Description(**{key: getattr(self.objects[index], key) for key in attributes})
            if sum(map(name.matches, self.objects)) == 1:
                yield name

    def _name(self, index: int, without: str = "") -> Description | None:
        names = self.names(index, without)
        return names[int(self.rng.integers(len(names)))] if names else None

    def _query(self, type_: str) -> SceneQuery | None:
        attribute = type_.removeprefix("query_")
        able = [i for i in range(len(self.objects)) if self.names(i, attribute)]
        if attribute == "size":  # larger objects are rarer in scenes
            by_size = [[i for i in able if self.objects[i].size == size] for size in RADII]
            if not all(by_size):
                return None
            able = by_size[int(self.rng.integers(len(by_size)))]
        if not able:
            return None
        name = self._name(able[int(self.rng.integers(len(able)))], attribute)
        return name and SceneQuery(type_, name)

    def _exists(self) -> SceneQuery | None:
        first, second = (
            self.objects[i] for i in self.rng.permutation(len(self.objects))[:2].tolist()
        )
        length = int(self.rng.integers(2, 4))
        order = self.rng.permutation(len(ATTRIBUTES))[:length].tolist()
        attributes = [ATTRIBUTES[i] for i in order]
        true = Description(**{key: getattr(first, key) for key in attributes})
        false = true._replace(**{attributes[0]: getattr(second, attributes[0])})
        held_out = (false.color, false.shape) in HELD_OUT and not self.novel
        if held_out or any(map(false.matches, self.objects)):
            return None
        return SceneQuery("exists", true if self.rng.random() < 0.5 else false)

    def _side(self) -> SceneQuery | None:
        a, b = self.rng.permutation(len(self.objects))[:2].tolist()
        relation = RELATIONS[int(self.rng.integers(len(RELATIONS)))]
        pair = (self.objects[a], self.objects[b])
        if not any(relation_holds(side, *pair) for side in (relation, CONVERSE[relation])):
            return None
        first = self._name(a)
        second = self._name(b)
        if first is None or second is None:
            return None
        return SceneQuery("side", first, second, relation=relation)

    def _compare(self) -> SceneQuery | None:
        attribute = ATTRIBUTES[int(self.rng.integers(len(ATTRIBUTES)))]
        # Objects with a name that does not say what is compared.
        able = [i for i in range(len(self.objects)) if self.names(i, attribute)]
        values = [getattr(thing, attribute) for thing in self.objects]
        pairs = [*permutations(able, 2)]
        same, different = (
            [p for p in pairs if (values[p[0]] == values[p[1]]) == equal] for equal in (True, False)
        )
        if not (same and different):
            return None
        chosen = same if self.rng.random() < 0.5 else different
        a, b = chosen[int(self.rng.integers(len(chosen)))]
        first = self._name(a, attribute)
        second = self._name(b, attribute)
        if first is None or second is None:
            return None
        return SceneQuery("compare", first, second, attribute=attribute)

    def _which(self) -> SceneQuery | None:
        anchor = self._name(int(self.rng.integers(len(self.objects))))
        relation = RELATIONS[int(self.rng.integers(len(RELATIONS)))]
        query = anchor and SceneQuery("which", anchor, relation=relation)
        return query if query and solve_scene_question(query, self.world) else None

    def _is_novel(self, query: SceneQuery) -> bool:
        """Return whether a question is about an object that is held out, or describes one."""
        if (query.first.color, query.first.shape) in HELD_OUT:
            return True
        about = {i for step in scene_referents(query, self.world) for i in step}
        return any((self.objects[i].color, self.objects[i].shape) in HELD_OUT for i in about)
