"""Captions and maps held against a scene, by hand."""

import pytest
import torch

from visattn.data.scenes.verify import score_caption
from visattn.data.scenes.world import COLORS, SceneObject, World

# On a grid of 10 × 10: the circle covers columns 0-3 of rows 3-6, the square columns 6-9.
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


def test_attention_on_the_described_object_scores_one() -> None:
    maps = one_hot(*[(0, 0)] * 1, (3, 1), (6, 3), *[(9, 9)] * 4, (5, 6), (4, 9))
    judged = score_caption(CAPTION, maps, WORLD)
    assert judged.parsed
    assert judged.true
    assert judged.num_visual_words == judged.hits == 4
    assert judged.correctness == pytest.approx(4, abs=1e-5)
    assert judged.baseline == pytest.approx(4 * 0.16, abs=1e-5)


def test_attention_on_another_object_scores_zero() -> None:
    maps = one_hot((0, 0), (5, 8), (5, 8), *[(0, 0)] * 4, (5, 2), (5, 2))
    judged = score_caption(CAPTION, maps, WORLD)
    assert judged.num_visual_words == 4
    assert judged.hits == 0
    assert judged.correctness == pytest.approx(0, abs=1e-6)


def test_uniform_attention_has_no_lift() -> None:
    judged = score_caption(CAPTION, EVEN, WORLD)
    assert judged.correctness == pytest.approx(judged.baseline, abs=1e-5)
    assert judged.hits == 0  # the first of equal cells lies in a corner


def test_attention_half_inside_scores_half() -> None:
    maps = one_hot(*[(0, 0)] * 9)
    maps[1] = 0
    maps[1, 5, 1], maps[1, 9, 9] = 0.75, 0.25
    judged = score_caption(CAPTION, maps, WORLD)
    assert judged.hits == 1
    assert judged.correctness == pytest.approx(0.75, abs=1e-5)


@pytest.mark.parametrize(
    ("caption", "understood"),
    [
        ("a red circle is right of a blue square", True),
        ("a green circle is left of a blue square", True),
        ("a a a", False),
        ("", False),
    ],
)
def test_false_captions_have_no_scored_words(caption: str, *, understood: bool) -> None:
    judged = score_caption(caption, EVEN, WORLD)
    assert (judged.parsed, judged.true) == (understood, False)
    assert (judged.num_visual_words, judged.hits, judged.correctness, judged.baseline) == (
        0,
        0,
        0,
        0,
    )


def test_ambiguous_words_are_scored_on_all_their_objects() -> None:
    upper = SceneObject("circle", "red", "plain", "small", 0.2, 0.1, 0.1, 0.0, COLORS["red"])
    world = World((CIRCLE, SQUARE, upper), WORLD.background, 0)
    maps = one_hot((0, 0), (0, 1), (5, 2), *[(0, 0)] * 4, (5, 8), (5, 8))
    judged = score_caption(CAPTION, maps, world)
    assert judged.hits == 4
    assert judged.correctness == pytest.approx(4, abs=1e-5)
    assert judged.baseline == pytest.approx(2 * (0.16 + 0.04) + 2 * 0.16, abs=1e-5)


def test_every_word_requires_a_map() -> None:
    with pytest.raises(ValueError, match="9 words need a map each, got 8 maps"):
        score_caption(CAPTION, EVEN[:8], WORLD)
