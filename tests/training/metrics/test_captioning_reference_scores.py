"""Captions of a split are scored together, once each, whichever process had them."""

from typing import Any

import pytest
from torch import distributed

from visattn.data.captions.batch import CaptionSample
from visattn.metrics.captioning.scores import caption_scores
from visattn.training.metrics.captioning import ReferenceScores

TOLD = {
    "a": ("a dog runs on grass", ("a dog runs", "the dog is running on the grass")),
    "b": ("two cars", ("two red cars", "cars on a road")),
    "c": ("a man on a horse", ("a man rides a horse", "somebody on a horse")),
}


def samples(*names: str) -> tuple[list[CaptionSample], list[str]]:
    made = [CaptionSample(name, None, TOLD[name][1], references=TOLD[name][1]) for name in names]
    return made, [TOLD[name][0] for name in names]


def expected() -> dict[str, float]:
    captions = {name: told for name, (told, _) in TOLD.items()}
    return caption_scores(captions, {name: refs for name, (_, refs) in TOLD.items()}).corpus


def test_batches_are_scored_as_one() -> None:
    scores = ReferenceScores()
    scores.update(*samples("c", "a"))
    scores.update(*samples("b"))
    captions, found = scores.compute()
    assert list(captions) == ["a", "b", "c"]
    assert found.corpus == expected()


def test_what_came_twice_counts_once_over_several_processes(
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
        captions, found = rank.compute()
        assert list(captions) == ["a", "b", "c"]
        assert found.corpus == expected()


def test_a_new_epoch_starts_empty() -> None:
    scores = ReferenceScores()
    scores.update(*samples("a"))
    scores.reset()
    assert scores.gathered() == ({}, {})
