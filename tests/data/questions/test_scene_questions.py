"""Questions about scenes: answers by plain loops, parse round trip, balance, erased objects."""

from collections import Counter
from typing import Any

import pytest
import torch

from visattn.data.questions.scenes import (
    Description,
    SceneQuery,
    SceneQuestions,
    erase_objects,
    parse_scene_question,
    scene_answers,
    scene_question,
    scene_question_words,
    scene_sample,
    solve_scene_question,
)
from visattn.data.regions.masks import mask_boxes
from visattn.data.scenes.world import HELD_OUT, SceneObject, World, WorldConfig, object_masks

COUNT = 250
PLURALS = {"crosses": "cross", **{f"{s}s": s for s in ("circle", "square", "triangle", "ring")}}
PLURALS |= {"stars": "star", "objects": "object"}


@pytest.fixture(scope="module")
def scenes() -> list[tuple[World, list[SceneQuery]]]:
    data = SceneQuestions(COUNT)
    return [data.scene(index) for index in range(COUNT)]


def fitting(words: list[str], world: World) -> list[int]:
    """Return the objects that have all attributes among some words."""
    words = [PLURALS.get(word, word) for word in words]
    return [
        index
        for index, thing in enumerate(world.objects)
        if {*words} - {"object"} <= {thing.size, thing.texture, thing.color, thing.shape}
    ]


def expected(text: str, world: World) -> tuple[str, list[list[int]]]:
    """Answer a question by its words alone; return the objects of each step too."""
    words = text.removesuffix(" ?").split()
    if words[0] == "how":
        chosen = fitting(words[2:-2], world)
        return str(len(chosen)), [chosen] if chosen else []
    if words[:2] == ["is", "there"]:
        chosen = fitting(words[3:], world)
        return ("yes", [chosen]) if chosen else ("no", [])
    axis = {"left": ("x", 1), "right": ("x", -1), "above": ("y", 1), "below": ("y", -1)}
    side = next((word for word in words if word in axis), "")
    if words[0] == "what" and not side:
        (index,) = fitting(words[4:], world)
        return str(getattr(world.objects[index], words[1])), [[index]]
    if words[0] == "what":
        (index,) = fitting(words[words.index("the") + 1 :], world)
        name, sign = axis[side]
        place = getattr(world.objects[index], name)
        offsets = [sign * (place - getattr(thing, name)) for thing in world.objects]
        (other,) = [i for i, offset in enumerate(offsets) if offset > 0.04]
        return world.objects[other].shape, [[index], [other]]
    cut = words.index(side) if side else words.index("same") - 1
    (first,) = fitting(words[2:cut], world)
    last = len(words) - 1 - words[::-1].index("the")
    (second,) = fitting(words[last + 1 :], world)
    a, b = world.objects[first], world.objects[second]
    if side:
        name, sign = axis[side]
        offset = sign * (getattr(b, name) - getattr(a, name))
        assert abs(offset) > 0.04
        return "yes" if offset > 0 else "no", [[first], [second]]
    attribute = words[words.index("same") + 1]
    equal = getattr(a, attribute) == getattr(b, attribute)
    return "yes" if equal else "no", [[first], [second]]


def test_answers_and_referents_by_plain_loops(scenes: list[Any]) -> None:
    for world, queries in scenes:
        for query in queries:
            question = scene_question(query, world)
            answer, steps = expected(question.text, world)
            assert question.answer == answer, question
            assert [list(step) for step in question.referents] == steps, question


def test_questions_survive_parsing_and_use_known_words(scenes: list[Any]) -> None:
    words, answers = set(scene_question_words()), scene_answers()
    for world, queries in scenes:
        for query in queries:
            assert parse_scene_question(query.text) == query
            assert set(query.text.split()) - {"?"} <= words
            assert solve_scene_question(query, world) in answers


def test_descriptions_are_as_short_as_can_be(scenes: list[Any]) -> None:
    """No attribute of "the ..." could be left out, by trying each."""
    for world, queries in scenes:
        for query in queries:
            if query.type in ("exists", "count"):
                continue
            for name in (query.first, query.second):
                if name is None or sum(map(bool, name)) < 2:
                    continue
                for kind in Description._fields:
                    shorter = name._replace(**{kind: ""})
                    assert sum(map(shorter.matches, world.objects)) > 1 or not getattr(name, kind)


def test_answers_are_balanced_within_each_type(scenes: list[Any]) -> None:
    counts: dict[str, Counter[str]] = {}
    for world, queries in scenes:
        for query in queries:
            answer = solve_scene_question(query, world)
            assert answer is not None
            counts.setdefault(query.type, Counter())[answer] += 1
    assert len(counts) == 9
    sizes = {"exists": 2, "side": 2, "compare": 2, "count": 5, "query_size": 3, "query_texture": 3}
    sizes |= {"query_shape": 6, "which": 6, "query_color": 8}
    for name, number in sizes.items():
        total, most = counts[name].total(), counts[name].most_common(1)[0][1]
        assert most / total < 1 / number + 3 * (1 / number / total) ** 0.5 + 0.03, name


def test_held_out_pairs_are_shown_and_named_in_novel_scenes_only() -> None:
    for split, novel in (("train", False), ("novel", True)):
        data = SceneQuestions(30, split=split)  # type: ignore[arg-type]
        for index in range(30):
            world, queries = data.scene(index)
            pairs = {(thing.color, thing.shape) for thing in world.objects}
            assert bool(pairs & set(HELD_OUT)) or not novel
            for query in queries:
                about = {i for step in scene_question(query, world).referents for i in step}
                shown = {(world.objects[i].color, world.objects[i].shape) for i in about}
                held_out = shown | {(query.first.color, query.first.shape)}
                assert bool(held_out & set(HELD_OUT)) == novel, query


def test_boxes_bound_the_pixels_of_objects() -> None:
    sample = SceneQuestions(2, size=48)[1]
    assert isinstance(sample.world, World)
    boxes = torch.from_numpy(mask_boxes(object_masks(sample.world, 48))).float()
    assert sample.boxes is not None
    assert torch.equal(sample.boxes, boxes)


def test_erased_referents_change_answers_and_distractors_do_not() -> None:
    data = SceneQuestions(10, size=32)
    kinds: Counter[str] = Counter()
    for index in range(10):
        sample = data[index]
        assert isinstance(sample.world, World)
        for kind in ("referent", "distractor"):
            for erasure in erase_objects(sample, kind, 32):  # type: ignore[arg-type]
                question = sample.questions[erasure.question]
                (other,) = erasure.sample.questions
                assert other.text == question.text
                assert (other.answer == question.answer) == (kind == "distractor")
                smaller = erasure.sample.world
                assert isinstance(smaller, World)
                (gone,) = set(sample.world.objects) - set(smaller.objects)
                about = {i for step in question.referents for i in step}
                assert (sample.world.objects.index(gone) in about) == (kind == "referent")
                assert not torch.equal(erasure.sample.image, sample.image)
                kinds[kind] += 1
    assert kinds["referent"] > 10
    assert kinds["distractor"] > 30
    with pytest.raises(TypeError, match="rendered scenes only"):
        erase_objects(data[0]._replace(world=None), "referent", 32)


def two_stars() -> World:
    """A red star below the middle, and a blue one a little to its right at the top."""
    a = SceneObject("star", "red", "plain", "small", 0.50, 0.5, 0.1, 0.0, (255, 0, 0))
    b = SceneObject("star", "blue", "plain", "small", 0.52, 0.2, 0.1, 0.0, (0, 0, 255))
    return World((a, b), ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)), 0)


def test_one_of_two_referents_is_not_erased_if_the_answer_stays() -> None:
    world = two_stars()
    texts = ("is there a star ?", "is there a red star ?", "how many stars are there ?")
    queries = [query for text in texts if (query := parse_scene_question(text))]
    questions = tuple(scene_question(query, world) for query in queries)
    sample = scene_sample("a", world, questions, 32)
    changed = [
        (erasure.question, erasure.sample.questions[0].answer)
        for erasure in erase_objects(sample, "referent", 32)
    ]
    assert changed == [(1, "no"), (2, "1")]
    assert [erasure.question for erasure in erase_objects(sample, "distractor", 32)] == [1]


def test_questions_without_a_definite_answer_have_none() -> None:
    world = two_stars()
    for text, answer in (
        ("what color is the star ?", None),  # there are two
        ("what color is the ring ?", None),
        ("is the red star left of the blue star ?", None),  # within the margin
        ("is the red star left of the small object ?", None),
        ("what shape is left of the blue star ?", None),
        ("what shape is above the red star ?", "star"),
        ("is the red star below the blue object ?", "yes"),
        ("is the red star above the blue object ?", "no"),
        ("is the red object the same shape as the blue object ?", "yes"),
        ("how many stars are there ?", "2"),
        ("is there an orange star ?", "no"),
        ("how many crosses are there ?", "0"),
    ):
        query = parse_scene_question(text)
        assert query is not None
        assert query.text == text
        assert solve_scene_question(query, world) == answer, text
    query = parse_scene_question("what color is the star ?")
    assert query is not None
    with pytest.raises(ValueError, match="no definite answer to 'what color is the star"):
        scene_question(query, world)


def test_what_the_grammar_does_not_cover_is_not_parsed() -> None:
    for text in ("", "where is it ?", "what color is the dog ?", "is there a red red star ?"):
        assert parse_scene_question(text) is None


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="max_objects must be at least 4"):
        SceneQuestions(1, config=WorldConfig(num_objects=(2, 3)))
    with pytest.raises(ValueError, match="split must be one of"):
        SceneQuestions(1, split="dev")  # type: ignore[arg-type]
