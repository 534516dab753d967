"""Questions about scenes: drawn on the fly, balanced within each type."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import combinations, permutations
from typing import get_args

import numpy as np
import torch
from torch.utils.data import Dataset

from visattn.data.questions.batch import Question, QuestionSample
from visattn.data.questions.scene_grammar import (
    ATTRIBUTES,
    SCENE_QUESTION_GROUPS,
    Attribute,
    Description,
    SceneQuery,
    scene_referents,
    solve_scene_question,
)
from visattn.data.scenes.grammar import CONVERSE, RELATIONS, relation_holds
from visattn.data.scenes.render import draw_world, object_boxes
from visattn.data.scenes.world import (
    COLORS,
    HELD_OUT,
    SceneObject,
    World,
    WorldConfig,
    sample_world,
)
from visattn.results.kinds import Split

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
        if split not in get_args(Split):
            raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
        if num_scenes < 1 or size < 16 or seed < 0 or questions < 1:
            raise ValueError(
                "num_scenes and questions must be at least 1, size at least 16 pixels and seed at "
                f"least 0, got {num_scenes}, {questions}, {size} and {seed}"
            )
        self.config = config or WorldConfig(num_objects=(3, 5))
        if self.config.num_objects[1] < MAX_COUNT:
            raise ValueError(
                f"questions count up to {MAX_COUNT} objects, so max_objects must be at least "
                f"{MAX_COUNT}, got {self.config.num_objects[1]}"
            )
        self.num_scenes, self.size, self.split, self.seed = num_scenes, size, split, seed
        self.num_questions = questions

    def __len__(self) -> int:
        return self.num_scenes

    def __getitem__(self, index: int) -> QuestionSample:
        world, queries = self.scene(index)
        questions = tuple(scene_question(query, world) for query in queries)
        return scene_sample(f"{self.split}-{index}", world, questions, self.size)

    def scene(self, index: int) -> tuple[World, list[SceneQuery]]:
        """Return the ground truth of a scene, and its questions."""
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
    attribute, and the others do not have it.

    Args:
        config: Distribution of worlds.
        rng: Random generator.
        novel: Whether the largest object is a color-shape pair that is held out of training; it
            then has the attribute unless the count is 0.
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
        self.world, self.count, self.rng, self.novel = world, count, rng, novel
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
            kinds = [kind for kind in ATTRIBUTES if kind != without]
            self._names[key] = next(
                (
                    names
                    for length in range(1, len(kinds) + 1)
                    if (names := [*self._unique(index, combinations(kinds, length))])
                ),
                [],
            )
        return self._names[key]

    def _unique(self, index: int, kinds: Iterable[tuple[str, ...]]) -> Iterator[Description]:
        for chosen in kinds:
            name = Description(**{kind: getattr(self.objects[index], kind) for kind in chosen})
            if sum(map(name.matches, self.objects)) == 1:
                yield name

    def _name(self, index: int, without: str = "") -> Description | None:
        names = self.names(index, without)
        return names[int(self.rng.integers(len(names)))] if names else None

    def _query(self, type_: str) -> SceneQuery | None:
        attribute = type_.removeprefix("query_")
        able = [i for i in range(len(self.objects)) if self.names(i, attribute)]
        if attribute == "size":  # larger objects are rarer in scenes
            by_size = [[i for i in able if self.objects[i].size == size] for size in _SIZES]
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
        kinds = [ATTRIBUTES[i] for i in self.rng.permutation(len(ATTRIBUTES))[:length].tolist()]
        true = Description(**{kind: getattr(first, kind) for kind in kinds})
        false = true._replace(**{kinds[0]: getattr(second, kinds[0])})
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
        first, second = self._name(a), self._name(b)
        if first is None or second is None:
            return None
        return SceneQuery("side", first, second, relation=relation)

    def _compare(self) -> SceneQuery | None:
        attribute = ATTRIBUTES[int(self.rng.integers(len(ATTRIBUTES)))]
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
        first, second = self._name(a, attribute), self._name(b, attribute)
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


_SIZES = ("small", "medium", "large")
