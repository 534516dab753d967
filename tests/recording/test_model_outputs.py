"""Class scores are found in all common kinds of model output."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from visattn.recording.model_outputs import class_scores, describe_output, detect_output_layout

SCORES = torch.arange(15.0).view(3, 5)
DENSE = torch.zeros(3, 7, 11, 13)
Pair = namedtuple("Pair", ("features", "prediction"))


@dataclass
class Record:
    pooler_output: Tensor
    logits: Any


def test_class_scores_are_found_in_common_outputs() -> None:
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
    for output, key in cases:
        layout = detect_output_layout(output, 3)
        assert (layout.key, layout.num_classes, layout.error) == (key, 5, "")
        assert torch.equal(class_scores(output, 3), SCORES)
    single = class_scores(SCORES[:, 0], 3)
    assert torch.equal(single, SCORES[:, :1])


def test_outputs_without_scores_suggest_a_target_function() -> None:
    cases: list[tuple[Any, str]] = [
        (DENSE, "output[:, 3].mean((1, 2))"),
        ({"out": DENSE, "aux": SCORES}, "output['out'][:, 3].mean((1, 2))"),
        ([DENSE, DENSE], "output[1][:, 3].mean((1, 2))"),
        (Record(SCORES, torch.zeros(3, 9, 4)), "output.logits[:, 0, 3]"),
        ([{"boxes": SCORES, "scores": SCORES[:, 0]}] * 3,
         "torch.stack([image['scores'].sum() for image in output])"),
        ({"pooler_output": SCORES}, "output['pooler_output'][:, 3]"),
        ({"counts": SCORES.long()}, "output['counts'][:, 3]"),
    ]  # fmt: skip
    for output, function in cases:
        error = detect_output_layout(output, 3).error
        assert error.endswith(f"target=lambda output: {function}")
        target = eval(f"lambda output: {function}", {"torch": torch})
        assert target(output).shape == (3,)
        with pytest.raises(
            ValueError, match="the model has no class to explain: its output has no class"
        ):
            class_scores(output, 3)
    assert detect_output_layout(None, 3).error
    assert describe_output(None) == "a NoneType: empty"
