"""Verification of scene captions: parsing, truth, and scores of their maps."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from visattn.data.scenes.language import (
    CONVERSE,
    RELATIONS,
    describe_world,
    grammar_words,
    parse_claim,
    relation_holds,
    score_caption,
    verify_caption,
)
from visattn.data.scenes.world import COLORS, SceneObject, World, WorldConfig, sample_world


def thing(words: str, x: float, y: float) -> SceneObject:
    color, shape = words.split()
    return SceneObject(shape, color, "plain", "medium", x, y, 0.1, 0.0, COLORS[color])


GROUND = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
TWO = World((thing("red circle", 0.2, 0.5), thing("blue square", 0.8, 0.55)), GROUND, 0)
BETWEEN = set("a an is there with left right of above below on its it".split())  # noqa: SIM905


@given(seed=st.integers(0, 10**9))
def test_generated_captions_are_true_and_their_words_refer_to_their_objects(seed: int) -> None:
    world = sample_world(WorldConfig(), np.random.default_rng(seed))
    appearances = [(t.color, t.shape) for t in world.objects]
    content = describe_world(world)
    assert len({item.text for item in content}) == 5
    assert {word for item in content for word in item.words} <= set(grammar_words(WorldConfig()))
    for item in content:
        verdict = verify_caption(item.text, world)
        assert verdict.true
        for word, found, shown in zip(item.words, verdict.objects, item.objects, strict=True):
            if shown is None:  # articles and connecting words refer to no object
                assert word in BETWEEN
                assert found == ()
            else:
                about = world.objects[shown]
                assert word in (about.color, about.shape, about.texture, about.size)
                # otherwise a caption may be ambiguous
                assert found == (shown,) or len(set(appearances)) < len(appearances)


def test_grammar_has_no_unused_words() -> None:
    few = WorldConfig(("red", "cyan"), ("circle",), ("plain", "dotted"), (2, 2))
    for config, count, unused in ((WorldConfig(), 250, set()), (few, 60, {"an"})):
        worlds = (sample_world(config, np.random.default_rng(seed)) for seed in range(count))
        said = {w for world in worlds for item in describe_world(world) for w in item.words}
        assert said <= set(grammar_words(config))
        assert set(grammar_words(config)) - said <= unused


@pytest.mark.parametrize(
    ("caption", "true"),
    [
        ("a red circle is left of a blue square", True),
        ("a blue square is right of a red circle", True),
        ("a circle is left of a square", True),
        ("there is a circle left of a blue square", True),
        ("left of a square is a red circle", True),
        ("a red circle with a blue square on its right", True),
        ("a red circle is right of a blue square", False),
        ("a red circle with a blue square on its left", False),
        ("a red circle is above a blue square", True),  # by 0.05: more than the margin
        ("a red circle is below a blue square", False),
        ("a blue circle is left of a red square", False),
        ("a red circle is left of a red circle", False),  # there is only one
        ("a small red circle is left of a blue square", False),
        ("a striped red circle is left of a blue square", False),
    ],
)
def test_captions_by_hand(caption: str, *, true: bool) -> None:
    assert verify_caption(caption, TWO).parsed
    assert verify_caption(caption, TWO).true == true


@pytest.mark.parametrize(
    ("relation", "dx", "dy"),
    [("left of", 0.3, 0.0), ("right of", -0.3, 0.0), ("above", 0.0, 0.3), ("below", 0.0, -0.3)],
)
def test_relations_by_hand(relation: str, dx: float, dy: float) -> None:
    item, other = thing("red circle", 0.5, 0.5), thing("blue square", 0.5 + dx, 0.5 + dy)
    assert [name for name in RELATIONS if relation_holds(name, item, other)] == [relation]
    assert [name for name in RELATIONS if relation_holds(name, other, item)] == [CONVERSE[relation]]
    near = thing("blue square", 0.5 + dx / 10, 0.5 + dy / 10)
    assert not any(relation_holds(name, item, near) for name in RELATIONS)


RUBBISH = (
    "", "a", "red circle", "a red circle", "a red circle is left of",
    "a circle red is left of a blue square", "a red circle is left a blue square",
    "a red circle is left of a blue square .", "A red circle is left of a blue square",
    " a red circle is left of a blue square", "a red circle is left of a blue square and a ring",
    "a red red circle is left of a blue square", "a mauve circle is left of a blue square",
    "a medium circle is left of a blue square", "a red circle with a blue square left of",
    "there is a red circle with a blue square on its left",
    "a  red circle is left of a blue square",
    "a red circle is on its left a blue square", "a red circle is left of a blue square\n",
)  # fmt: skip


def test_invalid_sentences_do_not_parse() -> None:
    for rubbish in RUBBISH:
        assert parse_claim(rubbish) is None
        verdict = verify_caption(rubbish, TWO)
        assert (verdict.parsed, verdict.true) == (False, False)
        assert verdict.objects == ((),) * len(rubbish.split())


def test_ambiguous_caption_refers_to_all_matching_objects() -> None:
    places = (("red circle", 0.1), ("red circle", 0.4), ("blue square", 0.7), ("red circle", 0.95))
    world = World(tuple(thing(words, x, 0.5) for words, x in places), GROUND, 0)
    shown = verify_caption("a red circle is left of a blue square", world).objects
    assert shown == ((), (0, 1), (0, 1), (), (), (), (), (2,), (2,))
    shown = verify_caption("a red circle with a circle on its left", world).objects
    assert shown == ((), (1, 3), (1, 3), (), (), (0, 1), (), (), ())


# On a grid of 10 × 10: the circle covers columns 0-3 of rows 3-6; the square, whose side is 1.4
# times its radius, columns 6.6-9.4 of rows 3.6-6.4.
CIRCLE = SceneObject("circle", "red", "plain", "medium", 0.2, 0.5, 0.2, 0.0, COLORS["red"])
SQUARE = SceneObject("square", "blue", "plain", "medium", 0.8, 0.5, 0.2, 0.0, COLORS["blue"])
WORLD = World((CIRCLE, SQUARE), ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)), 0)
CAPTION = "a red circle is left of a blue square"  # words 1, 2 and 7, 8 are visual
EVEN = torch.full((9, 10, 10), 0.01)


def one_hot(*cells: tuple[int, int]) -> torch.Tensor:
    maps = torch.zeros(len(cells), 10, 10)
    for item, (y, x) in zip(maps, cells, strict=True):
        item[y, x] = 1
    return maps


def test_scores_by_hand() -> None:
    elsewhere = one_hot((0, 0), (5, 8), (5, 8), *[(0, 0)] * 4, (5, 2), (5, 2))
    judged = score_caption(CAPTION, elsewhere, WORLD, size=1000)
    assert (judged.num_visual_words, judged.hits) == (4, 0)  # each on the other object
    assert judged.correctness == pytest.approx(0, abs=1e-6)
    maps = one_hot(*[(0, 0)] * 9)
    maps[1] = 0
    maps[1, 5, 1], maps[1, 9, 9] = 0.75, 0.25
    judged = score_caption(CAPTION, maps, WORLD, size=1000)
    assert judged.hits == 1
    assert judged.correctness == pytest.approx(0.75, abs=1e-5)


def test_false_captions_have_no_scored_words_and_words_need_maps() -> None:
    for caption in ("a red circle is right of a blue square", "a a a", ""):
        judged = score_caption(caption, EVEN, WORLD, size=1000)
        assert judged == (len(caption) > 9, False, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="each of 9 words needs a map, got 8 maps"):
        score_caption(CAPTION, EVEN[:8], WORLD, size=1000)


def test_ambiguous_words_are_scored_on_all_their_objects() -> None:
    upper = SceneObject("circle", "red", "plain", "small", 0.2, 0.1, 0.1, 0.0, COLORS["red"])
    world = World((CIRCLE, SQUARE, upper), WORLD.background, 0)
    maps = one_hot((0, 0), (0, 1), (5, 2), *[(0, 0)] * 4, (5, 8), (5, 8))
    judged = score_caption(CAPTION, maps, world, size=1000)
    assert judged.hits == 4
    assert judged.correctness == pytest.approx(4, abs=1e-5)
    assert judged.baseline == pytest.approx(2 * (0.16 + 0.04) + 2 * 0.28**2, abs=1e-5)
