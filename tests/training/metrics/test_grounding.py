"""Scores of a split: means over phrases, however captions come in."""

import math

import pytest
import torch
from torch import Tensor

from visattn.data.phrases.phrases import Phrase
from visattn.metrics.maps.grounding import paper_correctness
from visattn.training.metrics.grounding import OF_PHRASES, PhraseScores

LEFT = Phrase(0, 2, ((0.0, 0.0, 0.5, 1.0),), (), "a dog")
CORNER = Phrase(2, 1, ((0.5, 0.5, 1.0, 1.0),), (), "grass")
ALL = Phrase(0, 1, ((0.0, 0.0, 1.0, 1.0),), (), "snow")


def maps(*cells: list[float]) -> Tensor:
    return torch.tensor(cells).view(-1, 2, 2)


FIRST = maps([0.7, 0.1, 0.1, 0.1], [0.1, 0.4, 0.1, 0.4], [0.0, 0.0, 0.25, 0.75])
SECOND = maps([0.1, 0.3, 0.2, 0.4])


def values(scores: PhraseScores) -> dict[str, float]:
    return {name: float(scores[name].compute()) for name in OF_PHRASES}


def test_scores_by_hand() -> None:
    scores = PhraseScores()
    scores.update([FIRST, SECOND], [[LEFT, CORNER], []])
    scores.update([SECOND], [[ALL]])
    found = values(scores)
    paper, paper_baseline = found.pop("paper_correctness"), found.pop("paper_baseline")
    baseline = (0.5 + 0.25 + 1) / 3
    mean, strongest, last = (0.5 + 0.75 + 1) / 3, (0.8 + 0.75 + 1) / 3, (0.2 + 0.75 + 1) / 3
    assert found == pytest.approx(
        {
            "correctness": mean,
            "lift": mean - baseline,
            "ratio": mean / baseline,
            "strongest_correctness": strongest,
            "strongest_lift": strongest - baseline,
            "last_correctness": last,
            "last_lift": last - baseline,
            "baseline": baseline,
            "pointing": 1,  # the maps of "a dog", added up, are strongest in the first cell
            "phrases": 3,
        },
        abs=1e-6,
    )
    # The whole image, 1, counts in neither; pixel 112 of 1 to 224 begins the corner.
    assert paper_baseline == pytest.approx((0.5 + (113 / 224) ** 2) / 2)
    strongest = (
        float(paper_correctness(looked, torch.tensor(said.boxes))[0].max())
        for looked, said in ((FIRST[:2], LEFT), (FIRST[2:], CORNER))
    )
    assert paper == pytest.approx(sum(strongest) / 2)


def test_batches_do_not_matter() -> None:
    once, twice = PhraseScores(), PhraseScores()
    once.update([FIRST, SECOND, FIRST], [[LEFT], [ALL], [CORNER, LEFT]])
    for looked, said in ((FIRST, [LEFT]), (SECOND, [ALL]), (FIRST, [CORNER, LEFT])):
        twice.update([looked], [said])
    assert values(twice) == pytest.approx(values(once))


def test_no_phrase_is_no_score() -> None:
    scores = PhraseScores()
    scores.update([SECOND], [[]])
    found = values(scores)
    assert found.pop("phrases") == 0
    assert all(math.isnan(score) for score in found.values())


def test_every_caption_has_its_phrases() -> None:
    with pytest.raises(ValueError, match="zip"):
        PhraseScores().update([SECOND], [[], []])
