"""Metrics of attention against the boxes of phrases."""

import math

import pytest
import torch
from torch import Tensor

from visattn.metrics.grounding import paper_correctness
from visattn.results.captions import Phrase
from visattn.training.captioning.metrics import PHRASE_METRICS, PhraseScores

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


def test_scores_do_not_depend_on_the_batches() -> None:
    batched, single = PhraseScores(), PhraseScores()
    batched.update([FIRST, SECOND, FIRST], [[LEFT], [ALL], [CORNER, LEFT]])
    for caption_maps, phrases in ((FIRST, [LEFT]), (SECOND, [ALL]), (FIRST, [CORNER, LEFT])):
        single.update([caption_maps], [phrases])
    assert values(single) == pytest.approx(values(batched))


def test_scores_are_nan_without_phrases() -> None:
    scores = PhraseScores()
    scores.update([SECOND], [[]])
    results = values(scores)
    assert results.pop("num_phrases") == 0
    assert all(math.isnan(score) for score in results.values())


def test_numbers_of_captions_and_phrase_lists_must_be_equal() -> None:
    with pytest.raises(ValueError, match="zip"):
        PhraseScores().update([SECOND], [[], []])
