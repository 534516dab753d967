"""Chance level: confidence interval, verdicts and the report of a run."""

import numpy as np
import pytest
import torch

from visattn.training.metrics import chance_level, wilson_interval


def test_wilson_interval_solves_its_equation() -> None:
    """Each end is a true rate at a distance of 1.96 standard errors from the observed rate."""
    for rate, count in ((1 / 6, 797), (0.5, 13), (0.02, 101)):
        for end in wilson_interval(rate, count):
            distance = abs(rate - end) / np.sqrt(end * (1 - end) / count)
            assert distance == pytest.approx(1.959964, rel=1e-6)
    assert wilson_interval(0.0, 7)[0] == 0.0
    assert wilson_interval(1.0, 7)[1] == 1.0


def test_guesses_are_at_chance_and_informed_answers_are_above() -> None:
    random = np.random.default_rng(7)
    labels = random.choice(5, p=[0.4, 0.3, 0.1, 0.1, 0.1], size=(1009, 211))
    counts = [torch.tensor(np.bincount(row, minlength=5)) for row in labels]
    levels = [chance_level(row, "abcde") for row in counts]
    for guesses in (np.zeros_like(labels), random.integers(5, size=labels.shape)):
        accuracy = (guesses == labels).mean(1)
        verdicts = [level.verdict(value) for level, value in zip(levels, accuracy, strict=True)]
        assert verdicts.count("at chance") > 0.96 * len(levels)
    informed = np.where(random.random(labels.shape) < 0.4, labels, 0)
    accuracy = (informed == labels).mean(1)
    verdicts = [level.verdict(value) for level, value in zip(levels, accuracy, strict=True)]
    assert verdicts.count("above chance") == len(levels)
    assert levels[0].verdict(0.01) == "below chance"


def test_report_of_error_rates() -> None:
    level = chance_level(torch.tensor([100, 100, 103]), ("circle", "square", "ring"))
    report = level.report({"test/error": 0.65, "test/error_random": 0.1}, errors=True)
    assert report == {
        "test/error_verdict": "at chance",
        "test/error_random_verdict": "above chance",
        "test/error_majority_baseline": pytest.approx(200 / 303, abs=1e-6),
        "chance": (
            "test/error is at chance: guessing gives 0.6667, 0.6601 by always answering 'ring'; "
            "over 303 images 0.6050 to 0.7174 with 95 % confidence"
        ),
    }
    balanced = chance_level(torch.tensor([7, 7]), ("cat", "dog")).report({"test/accuracy": 1.0})
    assert balanced["chance"].startswith("test/accuracy is above chance: guessing gives 0.5000; ")
