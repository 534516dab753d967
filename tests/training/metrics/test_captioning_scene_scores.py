"""Scores of a split: shares of captions, means over visual words of true ones."""

import pytest
import torch

from visattn.data.scenes.world import COLORS, SceneObject, World
from visattn.training.metrics.captioning import OF_MAPS, OF_WORDS, SceneScores

CIRCLE = SceneObject("circle", "red", "plain", "medium", 0.2, 0.5, 0.2, 0.0, COLORS["red"])
SQUARE = SceneObject("square", "blue", "plain", "medium", 0.8, 0.5, 0.2, 0.0, COLORS["blue"])
WORLD = World((CIRCLE, SQUARE), ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)), 0)
TRUE, FALSE = "a circle is left of a square", "a square is left of a circle"


def maps(y: int, x: int, count: int = 7) -> torch.Tensor:
    looked = torch.zeros(count, 10, 10)
    looked[:, y, x] = 1
    return looked


def test_scores_by_hand() -> None:
    scores = SceneScores()
    scores.update([TRUE, FALSE], [maps(5, 2), maps(5, 2)], [WORLD, WORLD])
    scores.update(["what"], [maps(5, 2, 1)], [WORLD])
    values = {name: float(scores[name].compute()) for name in (*OF_WORDS, *OF_MAPS)}
    assert values == pytest.approx(
        {
            "truth": 1 / 3,
            "understood": 2 / 3,
            "pointing": 1 / 2,  # "circle" was looked at, "square" was not
            "correctness": 1 / 2,
            "lift": 1 / 2 - 0.16,
        },
        abs=1e-5,
    )


def test_batches_do_not_matter() -> None:
    once, twice = SceneScores(), SceneScores()
    captions, looked = [TRUE, FALSE, TRUE], [maps(5, 2), maps(5, 8), maps(4, 7)]
    once.update(captions, looked, [WORLD] * 3)
    for caption, one in zip(captions, looked, strict=True):
        twice.update([caption], [one], [WORLD])
    for name in (*OF_WORDS, *OF_MAPS):
        torch.testing.assert_close(once[name].compute(), twice[name].compute())


def test_every_caption_has_its_scene() -> None:
    with pytest.raises(ValueError, match="zip"):
        SceneScores().update([TRUE], [maps(5, 2)], [WORLD, WORLD])
