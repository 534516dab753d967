"""Metrics of captions of a split: with references, of scenes, and of the boxes of phrases."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from visattn.data.captions.batch import CaptionSample
from visattn.data.scenes.world import COLORS, SceneObject, World
from visattn.metrics.captions import caption_scores
from visattn.metrics.grounding import paper_correctness
from visattn.results.captions import Phrase
from visattn.training.captioning.evaluation import CaptionEvaluation
from visattn.training.captioning.metrics import (
    PHRASE_METRICS,
    SCENE_CAPTION_METRICS,
    SCENE_MAP_METRICS,
    PhraseScores,
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


def test_repeated_images_count_once_over_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [ReferenceScores(), ReferenceScores()]
    ranks[0].update(*samples("a", "c"))
    ranks[1].update(*samples("b", "a"))  # samplers repeat some to give each rank as many

    def gather(parts: list[Any], _own: Any) -> None:
        parts[:] = [(rank.captions, rank.references) for rank in ranks]

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_gather_object", gather)
    said = {key: caption for key, (caption, _) in CAPTIONS.items()}
    expected = caption_scores(said, {key: known for key, (_, known) in CAPTIONS.items()})
    for rank in ranks:
        captions, results = rank.compute()
        assert list(captions) == ["a", "b", "c"]
        assert results.corpus == expected.corpus
    ranks[0].reset()
    assert (ranks[0].captions, ranks[0].references) == ({}, {})


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


# ---------------------------------------------------------------- phrases with boxes

LEFT = Phrase(0, 2, ((0.0, 0.0, 0.5, 1.0),), (), "a dog")
CORNER = Phrase(2, 1, ((0.5, 0.5, 1.0, 1.0),), (), "grass")
ALL = Phrase(0, 1, ((0.0, 0.0, 1.0, 1.0),), (), "snow")


def maps(*cells: list[float]) -> Tensor:
    return torch.tensor(cells).view(-1, 2, 2)


FIRST = maps([0.7, 0.1, 0.1, 0.1], [0.1, 0.4, 0.1, 0.4], [0.0, 0.0, 0.25, 0.75])
SECOND = maps([0.1, 0.3, 0.2, 0.4])


def values(scores: PhraseScores) -> dict[str, float]:
    return {name: float(scores[name].compute()) for name in PHRASE_METRICS}


def test_scores_match_values_by_hand() -> None:
    scores = PhraseScores()
    scores.update([FIRST, SECOND], [[LEFT, CORNER], []])
    scores.update([SECOND], [[ALL]])
    results = values(scores)
    paper, paper_baseline = results.pop("paper_correctness"), results.pop("paper_baseline")
    baseline = (0.5 + 0.25 + 1) / 3
    mean, greatest, last = (0.5 + 0.75 + 1) / 3, (0.8 + 0.75 + 1) / 3, (0.2 + 0.75 + 1) / 3
    assert results == pytest.approx(
        {
            "correctness": mean,
            "lift": mean - baseline,
            "enrichment": mean / baseline,
            "max_correctness": greatest,
            "max_lift": greatest - baseline,
            "last_word_correctness": last,
            "last_word_lift": last - baseline,
            "uniform_baseline": baseline,
            "pointing_game": 1,  # the sum of the maps of "a dog" is greatest in the first cell
            "num_phrases": 3,
        },
        abs=1e-6,
    )
    # The whole image, 1, counts in neither; the corner begins at pixel 112 of 1 to 224.
    assert paper_baseline == pytest.approx((0.5 + (113 / 224) ** 2) / 2)
    greatest = (
        float(paper_correctness(word_maps, torch.tensor(phrase.boxes))[0].max())
        for word_maps, phrase in ((FIRST[:2], LEFT), (FIRST[2:], CORNER))
    )
    assert paper == pytest.approx(sum(greatest) / 2)


def test_scores_are_nan_without_phrases() -> None:
    scores = PhraseScores()
    scores.update([SECOND], [[]])
    results = values(scores)
    assert results.pop("num_phrases") == 0
    assert all(math.isnan(score) for score in results.values())
