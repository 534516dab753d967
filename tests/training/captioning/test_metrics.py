"""Metrics of captions of a split: corpus scores with references, and scores of scene captions."""

from typing import Any

import pytest
import torch
from torch import distributed

from visattn.data.captions.batch import CaptionSample
from visattn.data.scenes.world import COLORS, SceneObject, World
from visattn.metrics.captions import caption_scores
from visattn.training.captioning.evaluation import CaptionEvaluation
from visattn.training.captioning.metrics import (
    SCENE_CAPTION_METRICS,
    SCENE_MAP_METRICS,
    ReferenceScores,
    SceneScores,
)

CAPTIONS = {
    "a": ("a dog runs on grass", ("a dog runs", "the dog is running on the grass")),
    "b": ("two cars", ("two red cars", "cars on a road")),
    "c": ("a man on a horse", ("a man rides a horse", "a person on a horse")),
}
CIRCLE = SceneObject("circle", "red", "plain", "medium", 0.2, 0.5, 0.2, 0.0, COLORS["red"])
SQUARE = SceneObject("square", "blue", "plain", "medium", 0.8, 0.5, 0.2, 0.0, COLORS["blue"])
WORLD = World((CIRCLE, SQUARE), ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)), 0)
TRUE, FALSE = "a circle is left of a square", "a square is left of a circle"
SCENE_METRICS = (*SCENE_CAPTION_METRICS, *SCENE_MAP_METRICS)


def samples(*ids: str) -> tuple[list[CaptionSample], list[str]]:
    batch = [CaptionSample(key, None, CAPTIONS[key][1], references=CAPTIONS[key][1]) for key in ids]
    return batch, [CAPTIONS[key][0] for key in ids]


def expected() -> dict[str, float]:
    captions = {key: caption for key, (caption, _) in CAPTIONS.items()}
    return caption_scores(captions, {key: refs for key, (_, refs) in CAPTIONS.items()}).corpus


def test_reference_scores_do_not_depend_on_the_batches() -> None:
    scores = ReferenceScores()
    scores.update(*samples("c", "a"))
    scores.update(*samples("b"))
    captions, results = scores.compute()
    assert list(captions) == ["a", "b", "c"]
    assert results.corpus == expected()


def test_repeated_images_count_once_over_several_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = [ReferenceScores(), ReferenceScores()]
    ranks[0].update(*samples("a", "c"))
    ranks[1].update(*samples("b", "a"))  # samplers repeat some to give each rank as many

    def gather(parts: list[Any], _own: Any) -> None:
        parts[:] = [(rank.captions, rank.references) for rank in ranks]

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_gather_object", gather)
    for rank in ranks:
        captions, results = rank.compute()
        assert list(captions) == ["a", "b", "c"]
        assert results.corpus == expected()


def test_reset_removes_all_captions() -> None:
    scores = ReferenceScores()
    scores.update(*samples("a"))
    scores.reset()
    assert scores.gather() == ({}, {})


def attention(y: int, x: int, count: int = 7) -> torch.Tensor:
    maps = torch.zeros(count, 10, 10)
    maps[:, y, x] = 1
    return maps


def test_scene_scores_match_values_by_hand() -> None:
    scores = SceneScores()
    # Circle and square: 0.9, 0.5; the word of the relation, 0.95, does not count.
    gates = [torch.tensor([0.1, 0.9, 0.2, 0.95, 0.4, 0.1, 0.5])] * 2
    scores.update(
        [TRUE, FALSE], [attention(5, 2), attention(5, 2)], [WORLD, WORLD], gates, size=1000
    )
    scores.update(["what"], [attention(5, 2, 1)], [WORLD], [torch.tensor([0.85])], size=1000)
    values = {name: float(scores[name].compute()) for name in SCENE_METRICS}
    assert values == pytest.approx(
        {
            "caption_accuracy": 1 / 3,
            "parsed": 2 / 3,
            "pointing_game": 1 / 2,  # the attention is on the circle, not on the square
            "correctness": 1 / 2,
            "lift": 1 / 2 - (0.16 + 0.28**2) / 2,
            "gate_auc": 17 / 18,
        },
        abs=1e-5,
    )


def test_scene_scores_do_not_depend_on_the_batches() -> None:
    single, batched = SceneScores(), SceneScores()
    captions, maps = [TRUE, FALSE, TRUE], [attention(5, 2), attention(5, 8), attention(4, 7)]
    gates = [torch.arange(7) / 7, torch.ones(7), torch.zeros(7)]
    batched.update(captions, maps, [WORLD] * 3, gates, size=10)
    for caption, caption_maps, caption_gates in zip(captions, maps, gates, strict=True):
        single.update([caption], [caption_maps], [WORLD], [caption_gates], size=10)
    for name in SCENE_METRICS:
        torch.testing.assert_close(batched[name].compute(), single[name].compute())


def test_numbers_of_captions_and_scenes_must_be_equal() -> None:
    with pytest.raises(ValueError, match="zip"):
        SceneScores().update([TRUE], [attention(5, 2)], [WORLD, WORLD], [torch.ones(7)], size=10)


def test_gate_auc_of_one_kind_of_words_is_nan() -> None:
    scores = SceneScores()
    scores.update([], [], [], [], size=10)
    assert scores["gate_auc"].compute().isnan()
    scores.update(["a a"], [attention(5, 2, 2)], [WORLD], [torch.tensor([0.1, 0.9])], size=10)
    assert scores["gate_auc"].compute().isnan()


def test_validation_says_when_all_images_have_one_caption() -> None:
    evaluation = CaptionEvaluation("val", ())
    evaluation.texts.update(["board sit hat"] * 19 + ["a dog"])
    assert evaluation.notes("val")["chance"] == (
        "val: 19 of 20 images have the caption 'board sit hat'"
    )
    evaluation.texts.update(["a cat"] * 3)
    assert "chance" not in evaluation.notes("val")
