"""The method table, and what holds for every method."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import CLASSES, images, small_cnn, token_info
from torch import nn

import visattn as va
from visattn.attribution.methods import METHODS, supported_methods
from visattn.attribution.targets import Score
from visattn.models import VisionTransformer
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import Subject, analyze_model

GRADIENTS = ["input_gradient", "input_x_gradient", "smoothgrad", "integrated_gradients"]
ANY = [*GRADIENTS, "occlusion", "rise", "itti_koch"]
CAMS = ["gradcam", "gradcam++", "layercam", "hirescam", "xgradcam", "eigencam", "eigengradcam"]
CAMS += ["kpcacam", "finercam", "scorecam", "ablationcam"]
ONE_LAYER = ["attention", "gradient_attention"]
ALL_LAYERS = ["rollout", "gradient_rollout", "relevance", "legrad"]
FEW: dict[str, dict[str, Any]] = {
    "rise": {"num_masks": 3}, "smoothgrad": {"num_samples": 3},
    "integrated_gradients": {"n_steps": 3}, "occlusion": {"sliding_window_size": 4},
}  # fmt: skip


def described(info: ModelInfo) -> Subject:
    """Return a model that computes nothing, with metadata of another."""
    return Subject(nn.Identity(), info, nn.Identity())


def test_supported_methods_follow_from_model_info() -> None:
    assert supported_methods(small_cnn()) == [*CAMS, "fullgrad", *ANY]
    one_grid, two_grids = (described(token_info((3, 5), grid)) for grid in ((3, 5), (2, 3)))
    assert {*supported_methods(one_grid)} == {*ONE_LAYER, *ALL_LAYERS, *ANY}
    assert {*supported_methods(two_grids)} == {*ONE_LAYER, *ANY}
    assert {*METHODS} == {*ONE_LAYER, *ALL_LAYERS, *CAMS, *ANY, "fullgrad", "gates"}


def test_unsupported_methods_have_a_reason() -> None:
    info = token_info((3, 5), (3, 5))
    first, second = info.attention_layers
    register = replace(second, prefix_tokens=("register",))
    more = replace(second, prefix_tokens=("register", "class"))
    for changed, reason in (
        (token_info((4, 6), (2, 3)), "its layers have several token grids (4 x 6, 2 x 3)"),
        (replace(info, unsupported_layers=(("neck", "it drops tokens"),)),
         "its layer neck is not supported: it drops tokens"),
        (replace(info, parallel_layers=("a", "b")), "its layers a and b run in parallel"),
        (replace(info, attention_layers=(replace(first, single_query=True), second)),
         "a layer before the last has a single query"),
        (replace(info, attention_layers=(first, register)), "its prefix tokens change from"),
        (replace(info, attention_layers=(first, more)), ""),
        (small_cnn().info, "it has no attention among tokens"),
    ):  # fmt: skip
        for name in ALL_LAYERS:
            assert METHODS[name].supports(described(changed))[: len(reason) or None] == reason
    assert "compares classes" in METHODS["finercam"].supports(small_cnn(), torch.sum)
    assert METHODS["finercam"].supports(small_cnn(), 2) == ""


@pytest.fixture(scope="module")
def vit() -> Subject:
    torch.manual_seed(3)
    sizes: Any = {"img_size": (9, 12), "patch_size": 3, "embed_dim": 8, "depth": 2, "num_heads": 2}
    return analyze_model(VisionTransformer(CLASSES, **sizes).double())


@pytest.mark.parametrize("name", [*CAMS, *ANY, "fullgrad", *ONE_LAYER, *ALL_LAYERS])
def test_a_method_maps_each_image_alone_and_leaves_the_model_as_it_was(
    name: str, vit: Subject
) -> None:
    subject, x = small_cnn(), images(3)
    if name in (*ONE_LAYER, *ALL_LAYERS):
        subject, x = vit, torch.rand(3, 3, 9, 12, dtype=torch.float64)
    method, options, target = METHODS[name], FEW.get(name, {}), Score()
    model, random = subject.model.train(), torch.get_rng_state()
    with torch.no_grad():
        scores = subject.model.eval()(x)
    model.train()
    result = method.function(subject, x, target, **options)
    assert (len(result), result.ndim, result.requires_grad) == (3, 3, False)
    assert bool((result < 0).any()) == method.signed
    if name != "itti_koch":  # prediction and probability are those of the images themselves
        torch.testing.assert_close(target.first_scores, scores)
    for row in range(3):
        single = method.function(subject, x[[row]], Score(), **options)
        torch.testing.assert_close(single[0], result[row])
    for size in (1, 7) if "internal_batch_size" in method.default_kwargs else ():
        parts = method.function(subject, x, Score(), internal_batch_size=size, **options)
        torch.testing.assert_close(parts, result)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(module.training for module in model.modules())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())


def test_the_model_is_returned_as_it_was_whatever_happens_around() -> None:
    """Part of it in evaluation or frozen, without gradients, or after an error."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.5),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3))  # fmt: skip
    model[1].eval()
    model[6].requires_grad_(requires_grad=False)
    x = torch.rand(1, 3, 24, 24)

    def state() -> list[Any]:
        return [
            [module.training for module in model.modules()],
            [weight.requires_grad for weight in model.parameters()],
            [weight.grad for weight in model.parameters()],
            [bool(m._forward_hooks or m._forward_pre_hooks) for m in model.modules()],
            [each.tolist() for each in model.state_dict().values()],
            torch.get_rng_state().tolist(),
        ]

    def fails(output: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError

    before = state()
    [right] = va.explain(model, x, "gradcam", 1)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            [same] = va.explain(model, x, "gradcam", 1)
        assert torch.equal(same.values, right.values)
    with pytest.raises(ArithmeticError):
        va.explain(model, x, "gradcam", fails)
    assert state() == before
