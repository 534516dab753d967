"""The method table: names, requirements, supported methods of models."""

from dataclasses import replace

import pytest
import torch
from small_models import CLASSES, images, small_cnn, token_info
from torch import nn

from visattn.attribution.explained_model import analyze_model
from visattn.attribution.methods import METHODS, get_method, supported_methods
from visattn.attribution.targets import class_target, resolve_target
from visattn.models import VisionTransformer
from visattn.recording.frozen import frozen
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import Subject

GRADIENTS = ["input_gradient", "input_x_gradient", "smoothgrad", "integrated_gradients"]
ANY = [*GRADIENTS, "occlusion", "rise", "itti_koch"]
CAMS = ["gradcam", "gradcam++", "layercam", "hirescam", "xgradcam", "eigencam", "eigengradcam"]
CAMS += ["kpcacam", "finercam", "scorecam", "ablationcam"]
ONE_LAYER = ["attention", "gradient_attention"]
ALL_LAYERS = ["rollout", "gradient_rollout", "relevance", "legrad"]


def described(info: ModelInfo) -> Subject:
    """Return a model that computes nothing, with metadata of another."""
    return Subject(nn.Identity(), info, nn.Identity())


def test_supported_methods_follow_from_model_info() -> None:
    assert supported_methods(small_cnn()) == [*CAMS, "fullgrad", *ANY]
    assert set(supported_methods(described(token_info((3, 5), (3, 5))))) == {
        *ONE_LAYER,
        *ALL_LAYERS,
        *ANY,
    }
    assert set(supported_methods(described(token_info((4, 6), (2, 3))))) == {*ONE_LAYER, *ANY}
    assert set(METHODS) == {*ONE_LAYER, *ALL_LAYERS, *CAMS, *ANY, "fullgrad", "gates"}


def test_unsupported_methods_have_a_reason() -> None:
    reason = METHODS["rollout"].supports(described(token_info((4, 6), (2, 3))))
    assert "several token grids (4 x 6, 2 x 3)" in reason
    assert METHODS["attention"].supports(small_cnn()) == "it has no attention among tokens"
    partial = replace(token_info((3, 5), (3, 5)), unsupported_layers=(("neck", "it drops tokens"),))
    assert METHODS["rollout"].supports(described(partial)) == (
        "its layer neck is not supported: it drops tokens"
    )


def test_a_misspelled_method_gets_suggestions() -> None:
    with pytest.raises(ValueError, match=r"got 'rolout'; did you mean .*rollout"):
        get_method("rolout")
    with pytest.raises(ValueError, match="choose from attention, rollout"):
        get_method("zzz")


@pytest.mark.parametrize("name", [*CAMS, *ANY, "fullgrad"])
def test_each_method_gives_one_map_per_image_and_leaves_the_model_as_it_was(name: str) -> None:
    explained, x = small_cnn(), images()
    explained.model.train()
    options = {"rise": {"num_masks": 3}, "smoothgrad": {"num_samples": 2}}.get(name, {})
    result = METHODS[name].function(explained, x, resolve_target(None, explained), **options)
    assert result.shape[0] == 2
    assert result.ndim == 3
    assert not result.requires_grad
    assert bool((result < 0).any()) == METHODS[name].signed
    model = explained.model
    assert all(module.training and not module._forward_hooks for module in model.modules())
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    assert set(options) <= set(METHODS[name].default_kwargs)


@pytest.fixture(scope="module")
def vit() -> Subject:
    torch.manual_seed(3)
    sizes = {"img_size": (9, 12), "patch_size": 3, "embed_dim": 8, "depth": 2, "num_heads": 2}
    return analyze_model(VisionTransformer(CLASSES, **sizes).eval())


@pytest.mark.parametrize(
    "name", [*CAMS, *GRADIENTS, "occlusion", "rise", "fullgrad", *ONE_LAYER, *ALL_LAYERS]
)
def test_a_target_first_sees_the_images_themselves(name: str, vit: Subject) -> None:
    """Prediction and probability are from there, whatever a method shows the model later."""
    explained, x = small_cnn(), images()
    if name in (*ONE_LAYER, *ALL_LAYERS):
        explained, x = vit, torch.rand(2, 3, 9, 12)
    target = class_target()
    options = {"rise": {"num_masks": 3}, "smoothgrad": {"num_samples": 2}}.get(name, {})
    METHODS[name].function(explained, x, target, **options)
    with frozen(explained.model), torch.no_grad():
        scores = explained.scores(x)
    torch.testing.assert_close(target.first_scores, scores, atol=1e-6, rtol=1e-5)
