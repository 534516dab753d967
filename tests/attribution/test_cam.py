"""Class activation maps of models: the right layer, its own gradient, and no trace afterwards."""

import gc

import pytest
import torch
from small_subjects import images, small_cnn
from torch import Tensor, nn

from visattn.attribution.cam import (
    activations_and_gradients,
    gradcam,
    gradcam_plus_plus,
    layercam,
)
from visattn.attribution.targets import target_of
from visattn.functional.attribution.cam import grad_cam, grad_cam_plus_plus, layer_cam
from visattn.recording.model_info import ExplainedModel, FeatureSite, ModelInfo


def split(subject: ExplainedModel, x: Tensor, target: list[int], at: int) -> tuple[Tensor, Tensor]:
    """Return features behind a layer and their gradients, by running the two halves apart."""
    layers = list(subject.model.eval())  # pyright: ignore[reportArgumentType]
    features = nn.Sequential(*layers[:at])(x).detach().requires_grad_()
    scores = nn.Sequential(*layers[at:])(features.clone())
    total = sum(scores[row, number] for row, number in enumerate(target))
    assert isinstance(total, Tensor)
    [gradients] = torch.autograd.grad(total, [features])
    return features.detach(), gradients


@pytest.mark.parametrize(("layer", "at"), [(-1, 3), ("2", 3), (0, 1)])
def test_features_and_gradients_are_those_of_the_two_halves(layer: int | str, at: int) -> None:
    subject, x = small_cnn(), images()
    halves = split(subject, x, [1, 3], at)
    target = target_of([1, 3], subject)
    for method, arithmetic in (
        (gradcam, grad_cam),
        (gradcam_plus_plus, grad_cam_plus_plus),
        (layercam, layer_cam),
    ):
        found = method(subject, x, target, layer=layer)
        torch.testing.assert_close(found, arithmetic(*halves))
        assert found.shape == (2, 7, 9)


def test_only_what_lies_above_is_gone_back_through() -> None:
    subject, x = small_cnn(), images()
    model = subject.model.train()
    model[7].bias.grad = torch.ones(4, dtype=torch.float64)  # pyright: ignore[reportIndexIssue]
    reached: list[bool] = []
    hook = model[0].register_full_backward_hook(lambda *_: reached.append(True))  # pyright: ignore[reportIndexIssue]
    gradcam(subject, x, target_of(2, subject))
    hook.remove()
    assert reached == []
    grads = [weight.grad for weight in model.parameters()]
    assert [grad is not None for grad in grads] == [False] * 5 + [True]
    assert torch.equal(grads[-1], torch.ones(4, dtype=torch.float64))  # pyright: ignore[reportArgumentType]
    assert all(weight.requires_grad for weight in model.parameters())
    assert all(module.training for module in model.modules())


def test_nothing_grows_in_a_hundred_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # which takes most of the time
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(6, 2))
    site = FeatureSite("0", "b c y x", (2, 3))
    card = ModelInfo("tiny", "other", (2, 3), (0.5,), (0.5,), "none", features=(site,))
    subject, x = ExplainedModel(model, card, model), torch.rand(1, 1, 2, 3)
    alive: list[int] = []
    for call in range(100):
        gradcam(subject, x, target_of(0, subject))
        if call in (9, 99):
            gc.collect()
            alive.append(sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()))
    assert alive[0] == alive[1]
    assert sum(len(module._forward_hooks) for module in model.modules()) == 0


@pytest.mark.parametrize("layout", ["b n c", "b y x c"])
def test_channels_may_come_last(layout: str) -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.movedim(1, -1) if layout == "b y x c" else x.flatten(2).mT

    class Scored(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * torch.arange(x[0].numel()).view_as(x[0])).flatten(1)[:, :35] / 100

    model = nn.Sequential(Turned(), Scored())
    card = small_cnn().card
    subject = ExplainedModel(model, card, model)
    site = FeatureSite("0", layout, (13, 17))  # pyright: ignore[reportArgumentType]
    x = images()
    activations, gradients = activations_and_gradients(subject, x, target_of(4, subject), site)
    assert torch.equal(activations, x)
    assert gradients.shape == x.shape
    assert gradients[0].nonzero().tolist() == [[1, 0, 1]]  # channels last: 4 is the 2nd place


def test_tokens_before_the_grid_are_left_out() -> None:
    model = nn.Sequential(nn.Identity(), nn.Flatten())
    site = FeatureSite("0", "b n c", (2, 3), before=2)
    subject = ExplainedModel(model, small_cnn().card, lambda x: model(x[:, 0]))
    x = torch.rand(2, 1, 8, 5)
    activations, _ = activations_and_gradients(subject, x, target_of(4, subject), site)
    assert activations.shape == (2, 5, 2, 3)
    assert torch.equal(activations[:, :, 0, 0], x[:, 0, 2])
    wrong = FeatureSite("0", "b n c", (2, 3), before=1)
    with pytest.raises(ValueError, match="2 x 3 places after 1 tokens, got"):
        activations_and_gradients(subject, x, target_of(4, subject), wrong)


def test_layers_that_cannot_be_explained_are_refused() -> None:
    subject, x = small_cnn(), images()
    target = target_of(0, subject)
    with pytest.raises(ValueError, match="no features at layer 'head'; its modules are 0, 1"):
        gradcam(subject, x, target, layer="head")
    with pytest.raises(ValueError, match="no features at layer 2; there are 2: 0, 2"):
        gradcam(subject, x, target, layer=2)
    beside = ExplainedModel(
        subject.model, subject.card, lambda x: (subject.model(x), x.mean((2, 3)))[1]
    )
    with pytest.raises(ValueError, match="no score rests on it"):
        gradcam(beside, x, target)
    with pytest.raises(ValueError, match=r"its 1 runs, counted from 1: 2#1 to 2#1"):
        gradcam(subject, x, target, layer="2#2")
    assert sum(len(module._forward_hooks) for module in subject.model.modules()) == 0
