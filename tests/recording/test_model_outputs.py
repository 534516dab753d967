"""Class scores are found in all common kinds of model output."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.recording.frozen import frozen
from visattn.recording.outputs import (
    OutputLayout,
    class_scores,
    detect_output_layout,
    read_detections,
    segmentation_logits,
)

SCORES = torch.arange(15.0).view(3, 5)
DENSE = torch.zeros(3, 7, 11, 13)
Pair = namedtuple("Pair", ("features", "prediction"))


@dataclass
class Record:
    pooler_output: Tensor
    logits: Any


OTHER = torch.zeros(3, 7)
FOUND: list[tuple[Any, str]] = [
    (SCORES, ""),
    (SCORES[:, :, None, None], ""),
    ([DENSE, SCORES], "[1]"),
    ({"aux": OTHER, "out": SCORES}, "out"),
    ({"features": OTHER, "shape": SCORES}, "shape"),
    (Record(OTHER, SCORES), "logits"),
    (Pair(OTHER, SCORES), "prediction"),
]
# Output, what is said of it, and the functions that are suggested.
SUGGESTED: list[tuple[Any, str, tuple[str, ...]]] = [
    ((OTHER, SCORES), "several", ("output[0][:, 3]", "output[1][:, 3]")),
    ({"aux": SCORES, "main": SCORES}, "several", ("output['aux'][:, 3]", "output['main'][:, 3]")),
    ([SCORES[:, :2, None, None], SCORES[:, 0]], "several",
     ("output[0][:, 1].mean((1, 2))", "output[1]")),
    (DENSE, "no class", ("output[:, 3].mean((1, 2))",)),
    ({"out": DENSE, "aux": SCORES}, "no class", ("output['out'][:, 3].mean((1, 2))",)),
    ([DENSE, DENSE], "no class", ("output[1][:, 3].mean((1, 2))",)),
    (Record(SCORES, torch.zeros(3, 9, 4)), "no class", ("output.logits[:, 0, 3]",)),
    ({"pooler_output": SCORES}, "no class", ("output['pooler_output'][:, 3]",)),
    ({"counts": SCORES.long()}, "no class", ("output['counts'][:, 3]",)),
]  # fmt: skip


def test_class_scores_are_found_or_a_function_is_suggested() -> None:
    for output, key in FOUND:
        layout = detect_output_layout(output, 3)
        assert (layout.key, layout.num_classes, layout.error) == (key, 5, "")
        assert torch.equal(class_scores(output), SCORES)
    assert torch.equal(class_scores(SCORES[:, 0]), SCORES[:, :1])
    for output, said, functions in SUGGESTED:
        error = detect_output_layout(output, 3).error
        assert error.endswith(", ".join(f"target=lambda output: {each}" for each in functions))
        for function in functions:
            target = eval(f"lambda output: {function}", {"torch": torch})
            assert target(output).shape == (3,)
        with pytest.raises(ValueError, match=f"no class to explain: its output has {said}"):
            class_scores(output)
    # The number of classes decides.
    assert detect_output_layout((OTHER, SCORES), 3, 5).key == "[1]"
    assert detect_output_layout((SCORES, SCORES), 3, 5).error
    assert "output[1]" in detect_output_layout((OTHER, SCORES), 3, 4).error
    detections = [{"boxes": SCORES, "scores": SCORES[:, 0]}] * 3
    assert "target=visattn.BoxTarget(" in detect_output_layout(detections, 3).error
    assert detect_output_layout(None, 3).error


class Heads(nn.Module):
    """A network whose forward pass ends in a function of it, its pooled vector and an embedding."""

    def __init__(self, function: Callable[["Heads", Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.conv = nn.Sequential(nn.Conv2d(3, 11, 4, 4), nn.ReLU())
        self.embed, self.fc, self.aux = nn.Linear(11, 7), nn.Linear(7, 5), nn.Linear(11, 5)
        self.norm, self.joined = nn.BatchNorm1d(7), nn.Linear(18, 5)

    def forward(self, x: Tensor) -> Any:
        pooled = self.conv(x).mean((2, 3))
        return self.function(self, pooled, self.embed(pooled))


def layout_of(model: nn.Module) -> OutputLayout:
    with frozen(model):
        return detect_output_layout(model(torch.randn(1, 3, 23, 29).requires_grad_()), 1)


def test_scores_are_the_last_of_several_outputs_in_the_graph() -> None:
    unit = nn.functional.normalize
    cases: list[tuple[Any, str]] = [
        (lambda m, p, f: (f, m.fc(f)), "[1]"),
        (lambda m, p, f: (m.fc(f), f), "[0]"),
        (lambda m, p, f: {"z": f, "y_hat": m.fc(f)}, "y_hat"),
        (lambda m, p, f: (p, f, m.fc(f)), "[2]"),
        (lambda m, p, f: (f, m.fc(m.norm(f))), "[1]"),
        (lambda m, p, f: (f, p, m.joined(torch.cat([p, f], 1))), "[2]"),
        (lambda m, p, f: (f, nn.functional.linear(unit(f), unit(m.fc.weight)) * 20), "[1]"),
        (lambda m, p, f: (m.fc(f), torch.ones(1)), "[0]"),  # a temperature
        # neither is computed from the other
        (lambda m, p, f: {"aux": m.aux(p), "main": m.fc(f)}, ""),
        (lambda m, p, f: (unit(f), m.fc(f)), ""),
    ]
    for index, (function, key) in enumerate(cases):
        layout = layout_of(Heads(function).eval())
        assert (layout.key, bool(layout.error)) == (key, not key), index
        assert layout.num_classes == (5 if key else None)

    def with_probabilities(model: Heads, _: Tensor, embedding: Tensor) -> Any:
        scores = model.fc(embedding)
        return scores.softmax(1), scores, scores.softmax(1).amax(1)

    assert layout_of(Heads(with_probabilities).eval()).key == "[1]"


def body(*last: nn.Module) -> nn.Module:
    """A small CNN that ends in pooling, and what its last convolution is followed by."""
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(3, 5, 3, 2), nn.ReLU(), nn.Conv2d(5, 7, 1), *last, *pool).eval()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(7, 7, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


class Joined(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.conv(x), self.conv(x.relu())], 1)


def test_features_of_a_network_without_its_classifier_are_no_scores() -> None:
    mlp = nn.Sequential(nn.Flatten(), nn.LazyLinear(7))
    with torch.no_grad():
        mlp(torch.zeros(1, 3, 23, 29))
    cases: list[tuple[nn.Module, str]] = [
        (body(nn.BatchNorm2d(7), nn.ReLU()), "normalization follows its last layer"),
        (body(nn.GroupNorm(7, 7)), "normalization follows its last layer"),
        (body(Residual()), "a sum over several layers"),
        (body(Joined()), "another number of columns"),
        (body(nn.SiLU()), "an activation function follows its last layer"),
        (body(nn.ReLU6()), "an activation function follows its last layer"),
        (nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten()), "another number of columns"),
        (nn.Sequential(mlp, nn.ReLU()), "an activation function follows its last layer"),
        (nn.Sequential(mlp, nn.BatchNorm1d(7)), "normalization follows its last layer"),
    ]
    for model, reason in cases:
        assert reason in layout_of(model.eval()).features
    scores: list[nn.Module] = [
        body(),  # fully convolutional
        body(nn.ReLU()),  # SqueezeNet
        nn.Sequential(body(nn.BatchNorm2d(7), nn.ReLU()), nn.Linear(7, 4)),
        nn.Sequential(mlp, nn.Softmax(1)),
        nn.Sequential(mlp, nn.Sigmoid()),
        nn.Sequential(mlp, nn.Tanh()),
        nn.Sequential(body(nn.ReLU()), nn.Linear(7, 1), nn.ReLU()),  # one number
    ]
    for index, model in enumerate(scores):
        assert layout_of(model.eval()).features == "", index


def test_masks_of_queries_add_up_by_their_classes() -> None:
    """MaskFormer: two queries over one row of two cells, of two classes or none."""
    queries = torch.tensor([[[0.25, 0.5, 0.25], [0.75, 0.125, 0.125]]]).log()
    masks = torch.tensor([[[[0.5, 0.25]], [[0.125, 0.75]]]]).logit()
    output = {"class_queries_logits": queries, "masks_queries_logits": masks}
    expected = torch.tensor([[[[0.21875, 0.625]], [[0.265625, 0.21875]]]])
    torch.testing.assert_close(segmentation_logits(output), expected)


@dataclass
class QueryOutput:
    logits: Tensor
    pred_boxes: Tensor


def test_detections_of_queries_have_a_column_for_each_class_and_perhaps_one_for_none() -> None:
    logits = torch.tensor([[[0.0, 1.0, 2.0], [3.0, 1.0, 0.0]]])
    output = QueryOutput(logits, torch.tensor([[[0.5, 0.5, 0.5, 0.25], [0.25, 0.5, 0.5, 0.5]]]))
    [apart], [with_none] = (read_detections(output, (20, 40), classes) for classes in (3, 2))
    assert apart.boxes.tolist() == [[10, 7.5, 30, 12.5], [0, 5, 20, 15]]
    assert torch.equal(apart.boxes, with_none.boxes)
    torch.testing.assert_close(apart.scores, logits[0].sigmoid())
    torch.testing.assert_close(with_none.scores, logits[0].softmax(1)[:, :2])
    for classes in (1, 4, None):
        with pytest.raises(ValueError, match=r'one more if they have "no object"; they have 3'):
            read_detections(output, (20, 40), classes)
    for other in ("text", [], [{"boxes": torch.zeros(1, 4)}]):
        with pytest.raises(ValueError, match="needs the output of a detector"):
            read_detections(other, (20, 40), 3)
