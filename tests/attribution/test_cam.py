"""Class activation maps: layer, gradients, and no side effects."""

import gc

import pytest
import torch
from small_models import images, small_cnn
from torch import Tensor, nn

from visattn.attribution.cam import (
    grad_cam,
    grad_cam_plus_plus,
    gradcam,
    gradcam_plus_plus,
    layer_cam,
    layercam,
)
from visattn.attribution.layer_outputs import activations_and_gradients
from visattn.attribution.targets import resolve_target
from visattn.recording.model_info import FeatureLayer, ModelInfo
from visattn.recording.subject import Subject


def split(explained: Subject, x: Tensor, target: list[int], index: int) -> tuple[Tensor, Tensor]:
    """Return features of a layer and their gradients, by running the two halves separately."""
    layers = list(explained.model.eval())  # pyright: ignore[reportArgumentType]
    features = nn.Sequential(*layers[:index])(x).detach().requires_grad_()
    scores = nn.Sequential(*layers[index:])(features.clone())
    total = sum(scores[row, class_index] for row, class_index in enumerate(target))
    assert isinstance(total, Tensor)
    [gradients] = torch.autograd.grad(total, [features])
    return features.detach(), gradients


@pytest.mark.parametrize(("layer", "index"), [(-1, 3), ("2", 3), (0, 1)])
def test_features_and_gradients_equal_those_of_the_two_halves(layer: int | str, index: int) -> None:
    explained, x = small_cnn(), images()
    halves = split(explained, x, [1, 3], index)
    target = resolve_target([1, 3], explained)
    for method, cam_function in (
        (gradcam, grad_cam),
        (gradcam_plus_plus, grad_cam_plus_plus),
        (layercam, layer_cam),
    ):
        result = method(explained, x, target, layer=layer)
        torch.testing.assert_close(result, cam_function(*halves))
        assert result.shape == (2, 7, 9)


def test_the_backward_pass_stops_at_the_layer() -> None:
    explained, x = small_cnn(), images()
    model = explained.model.train()
    model[7].bias.grad = torch.ones(4, dtype=torch.float64)  # pyright: ignore[reportIndexIssue]
    reached: list[bool] = []
    hook = model[0].register_full_backward_hook(lambda *_: reached.append(True))  # pyright: ignore[reportIndexIssue]
    gradcam(explained, x, resolve_target(2, explained))
    hook.remove()
    assert reached == []
    grads = [weight.grad for weight in model.parameters()]
    assert [grad is not None for grad in grads] == [False] * 5 + [True]
    assert torch.equal(grads[-1], torch.ones(4, dtype=torch.float64))  # pyright: ignore[reportArgumentType]
    assert all(weight.requires_grad for weight in model.parameters())
    assert all(module.training for module in model.modules())


def test_a_hundred_calls_do_not_leak_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # which takes most of the time
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(6, 2))
    layer = FeatureLayer("0", "b c y x", (2, 3))
    info = ModelInfo("tiny", "other", (2, 3), (0.5,), (0.5,), "none", feature_layers=(layer,))
    explained, x = Subject(model, info, model), torch.rand(1, 1, 2, 3)
    alive: list[int] = []
    for call in range(100):
        gradcam(explained, x, resolve_target(0, explained))
        if call in (9, 99):
            gc.collect()
            alive.append(sum(issubclass(type(item), Tensor) for item in gc.get_objects()))
    assert alive[0] == alive[1]
    assert sum(len(module._forward_hooks) for module in model.modules()) == 0


@pytest.mark.parametrize("layout", ["b n c", "b y x c"])
def test_channels_last_layouts_are_supported(layout: str) -> None:
    class ChannelsLast(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.movedim(1, -1) if layout == "b y x c" else x.flatten(2).mT

    class Scores(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * torch.arange(x[0].numel()).view_as(x[0])).flatten(1)[:, :35] / 100

    model = nn.Sequential(ChannelsLast(), Scores())
    info = small_cnn().info
    explained = Subject(model, info, model)
    layer = FeatureLayer("0", layout, (13, 17))  # pyright: ignore[reportArgumentType]
    x = images()
    [(activations, gradients)] = activations_and_gradients(
        explained, x, resolve_target(4, explained), layer
    )
    assert torch.equal(activations, x)
    assert gradients.shape == x.shape
    assert gradients[0].nonzero().tolist() == [
        [1, 0, 1]
    ]  # channels last: index 4 is the 2nd position


def test_prefix_tokens_are_excluded() -> None:
    model = nn.Sequential(nn.Identity(), nn.Flatten())
    layer = FeatureLayer("0", "b n c", (2, 3), num_prefix_tokens=2)
    explained = Subject(model, small_cnn().info, lambda x: model(x[:, 0]))
    x = torch.rand(2, 1, 8, 5)
    [(activations, _)] = activations_and_gradients(
        explained, x, resolve_target(4, explained), layer
    )
    assert activations.shape == (2, 5, 2, 3)
    assert torch.equal(activations[:, :, 0, 0], x[:, 0, 2])
    wrong = FeatureLayer("0", "b n c", (2, 3), num_prefix_tokens=1)
    with pytest.raises(ValueError, match="2 x 3 after 1 prefix tokens, got"):
        activations_and_gradients(explained, x, resolve_target(4, explained), wrong)


def test_unsuitable_layers_raise_an_error() -> None:
    explained, x = small_cnn(), images()
    target = resolve_target(0, explained)
    with pytest.raises(
        ValueError, match="must name a module of small, got 'head'; choose from 0, 1"
    ):
        gradcam(explained, x, target, layer="head")
    with pytest.raises(ValueError, match=r"feature layers of small, 2 \(0, 2\); got 2"):
        gradcam(explained, x, target, layer=2)
    ignores_layer = Subject(
        explained.model, explained.info, lambda x: (explained.model(x), x.mean((2, 3)))[1]
    )
    with pytest.raises(ValueError, match="target must depend on the layer"):
        gradcam(ignores_layer, x, target)
    with pytest.raises(ValueError, match=r"a call of the module, 2#1 to 2#1; got 2#2"):
        gradcam(explained, x, target, layer="2#2")
    assert sum(len(module._forward_hooks) for module in explained.model.modules()) == 0
