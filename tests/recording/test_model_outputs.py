"""Class scores are found wherever a model returns them, and nowhere else."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from visattn.recording.model_outputs import class_scores, described_output, output_layout

SCORES = torch.arange(15.0).view(3, 5)
DENSE = torch.zeros(3, 7, 11, 13)
Pair = namedtuple("Pair", ("features", "prediction"))


@dataclass
class Record:
    pooler_output: Tensor
    logits: Any


def test_scores_are_found_in_the_usual_places() -> None:
    other = torch.zeros(3, 7)
    cases: list[tuple[Any, str]] = [
        (SCORES, ""),
        (SCORES[:, :, None, None], ""),
        ((SCORES, other), "[0]"),
        ([DENSE, SCORES], "[1]"),
        ({"aux": other, "out": SCORES}, "out"),
        ({"features": other, "shape": SCORES}, "shape"),
        (Record(other, SCORES), "logits"),
        (Pair(other, SCORES), "prediction"),
    ]
    for output, place in cases:
        layout = output_layout(output, 3)
        assert (layout.scores, layout.classes, layout.refusal) == (place, 5, "")
        assert torch.equal(class_scores(output, 3), SCORES)
    single = class_scores(SCORES[:, 0], 3)
    assert torch.equal(single, SCORES[:, :1])


def test_what_holds_no_scores_shows_the_function_to_pass() -> None:
    cases: list[tuple[Any, str]] = [
        (DENSE, "output[:, 3].mean((1, 2))"),
        ({"out": DENSE, "aux": SCORES}, "output['out'][:, 3].mean((1, 2))"),
        ([DENSE, DENSE], "output[1][:, 3].mean((1, 2))"),
        (Record(SCORES, torch.zeros(3, 9, 4)), "output.logits[:, 0, 3]"),
        ([{"boxes": SCORES, "scores": SCORES[:, 0]}] * 3,
         "torch.stack([one['scores'].sum() for one in output])"),
        ({"pooler_output": SCORES}, "output['pooler_output'][:, 3]"),
        ({"counts": SCORES.long()}, "output['counts'][:, 3]"),
    ]  # fmt: skip
    for output, function in cases:
        reason = output_layout(output, 3).refusal
        assert reason.endswith(f"target=lambda output: {function}")
        called = eval(f"lambda output: {function}", {"torch": torch})
        assert called(output).shape == (3,)
        with pytest.raises(ValueError, match="there is no class to explain: it returns no class"):
            class_scores(output, 3)
    assert output_layout(None, 3).refusal
    assert described_output(None) == "a NoneType: empty"
