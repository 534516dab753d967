"""Targets: classes by index, name or prediction, and functions of the output."""

import numpy as np
import pytest
import torch
from small_models import CLASSES, small_cnn
from torch import Tensor, nn

import visattn as va
from visattn.attribution.targets import resolve_target

SCORES = torch.tensor([[1.0, 5.0, 2.0, 0.0], [7.0, 3.0, 4.0, 6.0], [0.0, 1.0, 2.0, 3.0]])


def test_classes_are_given_by_index_name_or_one_for_each_image() -> None:
    subject = small_cnn()
    assert resolve_target(2, subject)(SCORES).tolist() == [2, 4, 2]
    assert resolve_target("dog", subject)(SCORES).tolist() == [5, 3, 1]
    assert resolve_target(["hen", 0, 1], subject)(SCORES).tolist() == [0, 7, 1]
    assert resolve_target((3,), subject)(SCORES).tolist() == [0, 6, 3]
    pair = resolve_target([0, 3], subject)
    assert [pair.describe(image, CLASSES).target for image in (0, 1)] == [0, 3]


def test_the_prediction_of_the_first_call_is_kept() -> None:
    target = resolve_target(None, small_cnn())
    assert target(SCORES).tolist() == [5, 7, 3]
    assert target.class_indices == (1, 0, 3)
    assert target(-SCORES).tolist() == [-5, -7, -3]
    assert target.initial_values == (5, 7, 3)


def test_functions_of_the_output_are_targets() -> None:
    target = resolve_target(lambda scores: scores[:, 0] - scores[:, 1], small_cnn())
    assert target(SCORES).tolist() == [-4, 4, -1]
    assert target.initial_values == (-4, 4, -1)
    assert target.describe(0, ()).more == {"function": "<lambda>"}
    assert resolve_target(target, small_cnn()) is target


@pytest.mark.parametrize("end", [nn.Identity(), nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid()])
def test_a_map_says_the_probability_of_its_class_and_what_its_grid_cannot_say(
    end: nn.Module,
) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(*body, nn.Linear(8, 3), end).eval()
    photo = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    logits: list[Tensor] = []
    hook = model[4].register_forward_hook(lambda *values: logits.append(values[2].detach()))
    [heatmap] = va.Explainer(model, input_size=24, mean=0.5, std=0.5).explain(photo, "gradcam", 1)
    hook.remove()
    scores = logits[-1][0]
    expected = scores.sigmoid()[1] if isinstance(end, nn.Sigmoid) else scores.softmax(0)[1]
    assert heatmap.info.probability == pytest.approx(float(expected), abs=1e-5)
    assert "only 3 \N{MULTIPLICATION SIGN} 3 cells" in heatmap.info.note
