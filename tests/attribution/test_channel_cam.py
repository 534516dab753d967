"""Score-CAM and Ablation-CAM against plain loops, and closed forms of linear models."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from small_models import images, small_cnn
from torch import Tensor, nn

from visattn.attribution.channel_cam import ablation_cam, ablationcam, scorecam
from visattn.attribution.targets import resolve_target
from visattn.recording.model_info import FeatureLayer, ModelInfo
from visattn.recording.outputs import OutputLayout
from visattn.recording.subject import Subject


def halves(explained: Subject, index: int) -> tuple[nn.Module, nn.Module]:
    layers = list(explained.model.eval())  # pyright: ignore[reportArgumentType]
    return nn.Sequential(*layers[:index]), nn.Sequential(*layers[index:])


@pytest.mark.parametrize(("layer", "index"), [(-1, 3), (0, 1)])
def test_scorecam_equals_a_plain_loop(layer: int, index: int) -> None:
    explained, x = small_cnn(), images()
    features, _ = halves(explained, index)
    with torch.no_grad():
        activations = features(x)
        for row, class_index in enumerate((1, 3)):
            scores, large = (
                [],
                nn.functional.interpolate(activations[row : row + 1], (13, 17), mode="bilinear")[0],
            )
            for channel in large:
                mask = (channel - channel.min()) / (channel.max() - channel.min())
                scores.append(explained.model(x[row : row + 1] * mask)[0, class_index])
            weights = torch.stack(scores).softmax(0)
            expected = (weights[:, None, None] * activations[row]).sum(0).relu()
            target = resolve_target([1, 3], explained)
            for chunk in (1, 32):
                result = scorecam(explained, x, target, layer=layer, internal_batch_size=chunk)
                torch.testing.assert_close(result[row], expected)


@pytest.mark.parametrize(("layer", "index"), [(-1, 3), (0, 1)])
def test_ablationcam_equals_a_plain_loop(layer: int, index: int) -> None:
    explained, x = small_cnn(), images()
    features, rest = halves(explained, index)
    target = resolve_target([1, 3], explained)
    result = ablationcam(explained, x, target, layer=layer, internal_batch_size=4)
    with torch.no_grad():
        for row, class_index in enumerate((1, 3)):
            activations = features(x[row : row + 1])
            score = rest(activations.clone())[0, class_index]
            total = torch.zeros_like(activations[0, 0])
            for channel in range(activations.shape[1]):
                without = activations.clone()
                without[:, channel] = 0
                drop = score - rest(without)[0, class_index]
                total += drop / score.abs() * activations[0, channel]
            torch.testing.assert_close(result[row], total.relu())


class Head(nn.Module):
    """Scores of pooled features; with `shortcut` they also depend on what came before."""

    def __init__(self, *, shortcut: bool) -> None:
        super().__init__()
        self.shortcut = shortcut
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        features = self.act(x)
        if self.shortcut:  # a skip connection that cannot be broadcast
            features = torch.cat((features, x), 1)
        return features.mean((2, 3)) @ torch.arange(1.0, 1 + features.shape[1])[:, None]


def head(*, shortcut: bool) -> Subject:
    layer = FeatureLayer("act", "b c y x", (2, 3))
    info = ModelInfo("head", "other", (2, 3), (0.5,) * 3, (0.5,) * 3, "none", (), (layer,))
    model = Head(shortcut=shortcut)
    return Subject(model, info, model)


@pytest.mark.parametrize("shortcut", [False, True])
def test_ablationcam_of_a_linear_head_is_its_class_activation_map(shortcut: bool) -> None:
    explained = head(shortcut=shortcut)
    x = torch.rand(2, 3, 2, 3, generator=torch.Generator().manual_seed(3))
    x[1, 2] = -1  # a channel that is off
    activations, weights = x.relu(), torch.arange(1.0, 4.0)
    result = ablationcam(explained, x, resolve_target(0, explained))
    drops = activations.mean((2, 3)) * weights / explained.model(x).abs()
    torch.testing.assert_close(result, torch.einsum("bc,bcyx->byx", drops, activations))


def test_a_function_of_named_outputs_is_ablated_channel_by_channel() -> None:
    class Named(Head):
        def forward(self, x: Tensor) -> dict[str, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
            return {"logits": super().forward(x)}

    plain, x = head(shortcut=False), torch.rand(1, 3, 2, 3)
    model = Named(shortcut=False)
    output = OutputLayout(key="logits", num_classes=1)
    explained = Subject(model, replace(plain.info, output=output), model)
    by_function = ablationcam(explained, x, lambda output: output["logits"][:, 0])
    expected = ablationcam(plain, x, resolve_target(0, plain))
    torch.testing.assert_close(by_function, expected)


def test_drops_of_a_score_of_zero_are_absolute() -> None:
    activations = torch.tensor([[[[4.0, 0.0]], [[0.0, 4.0]]]])
    drawn = ablation_cam(activations, torch.zeros(1), torch.tensor([[-2.0, -3.0]]))
    assert drawn.tolist() == [[[8, 12]]]


def test_a_negative_score_does_not_reverse_the_map() -> None:
    explained = head(shortcut=False)
    x = torch.rand(1, 3, 2, 3)
    plain = ablationcam(explained, x, lambda scores: scores[:, 0])
    shifted = ablationcam(explained, x, lambda scores: scores[:, 0] - 100)
    score = float(explained.model(x)[0, 0])
    torch.testing.assert_close(shifted * (100 - score), plain * score, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", [scorecam, ablationcam])
def test_maps_do_not_depend_on_the_batch_and_leave_no_trace(
    method: Callable[..., Tensor],
) -> None:
    explained, x = small_cnn(), images(3)
    explained.model.train()
    result = method(explained, x, resolve_target(None, explained))
    for row in range(3):
        single = method(explained, x[row : row + 1], resolve_target(None, explained))
        torch.testing.assert_close(single[0], result[row])
    assert all(module.training for module in explained.model.modules())
    assert sum(len(module._forward_hooks) for module in explained.model.modules()) == 0


def test_a_model_that_views_its_features_is_scored_in_the_usual_layout() -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).view(len(x), -1)

    layer = FeatureLayer("conv", "b c y x", (5, 7))
    info = ModelInfo("viewed", "other", (5, 7), (0.5,) * 3, (0.5,) * 3, "none", (), (layer,))
    model = Viewed()
    explained = Subject(model, info, model)
    assert scorecam(explained, torch.rand(2, 3, 5, 7), lambda s: s[:, 3]).shape == (2, 5, 7)
