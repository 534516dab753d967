"""Class activation maps: formulas by their equations, the layer that they are given, one's own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import images, small_cnn
from torch import Tensor, nn
from torch.nn.functional import interpolate, layer_norm

import visattn as va
from visattn.attribution import METHODS, class_activation_map, method
from visattn.attribution.cam import (
    ablation_cam,
    ablationcam,
    activations_and_gradients,
    channel_masks,
    eigen_cam,
    eigen_grad_cam,
    finercam,
    grad_cam,
    grad_cam_plus_plus,
    hires_cam,
    kpca_cam,
    layer_cam,
    scorecam,
    x_grad_cam,
)
from visattn.attribution.targets import resolve_target
from visattn.models import AttentionResNet
from visattn.recording.model_info import FeatureLayer, ModelInfo
from visattn.recording.outputs import OutputLayout
from visattn.recording.subject import Subject, analyze_model

TARGETS = [1, 3]


def drawn() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    activations, gradients = torch.randn(2, 2, 3, 5, 7, generator=random, dtype=torch.float64)
    return activations.relu(), gradients * (gradients.abs() > 0.2)


def equation_19(channel: Tensor, gradient: Tensor) -> Tensor:
    """Return the weight as published: alpha = g² / (2 g² + sum(A) g³), and 0 where g is."""
    weight = torch.zeros((), dtype=torch.float64)
    for g in gradient.flatten():
        if g != 0:
            weight += g**2 / (2 * g**2 + channel.sum() * g**3) * g.clamp(min=0)
    return weight


WEIGHTS: dict[Callable[..., Tensor], Callable[[Tensor, Tensor], Tensor]] = {
    grad_cam: lambda _, g: g.mean(),
    grad_cam_plus_plus: equation_19,
    layer_cam: lambda _, g: g.clamp(min=0),
    hires_cam: lambda _, g: g,
    x_grad_cam: lambda a, g: (a * g).sum() / a.sum(),
}


@pytest.mark.parametrize("formula", WEIGHTS)
def test_formulas_match_their_equations(formula: Callable[..., Tensor]) -> None:
    activations, gradients = drawn()
    result = formula(activations, gradients)
    for a, g, heatmap in zip(activations, gradients, result, strict=True):
        terms = [WEIGHTS[formula](*pair) * pair[0] for pair in zip(a, g, strict=True)]
        torch.testing.assert_close(heatmap, sum(terms, torch.zeros(5, 7)).clamp(min=0))
    assert formula(activations.half(), gradients.half()).dtype == torch.float32


def test_divisors_of_zero_give_no_weight() -> None:
    activations = torch.tensor([[[[-3.0, 1.0]]]])  # 2 + S g = 0
    assert grad_cam_plus_plus(activations, torch.ones(1, 1, 1, 2)).tolist() == [[[0.0, 1.0]]]
    off = torch.zeros(1, 1, 2, 3)
    assert torch.equal(x_grad_cam(off, torch.ones_like(off)), off[:, 0])
    activations = torch.tensor([[[[4.0, 0.0]], [[0.0, 4.0]]]])
    dropped = ablation_cam(activations, torch.zeros(1), torch.tensor([[-2.0, -3.0]]))
    assert dropped.tolist() == [[[8, 12]]]
    assert not channel_masks(torch.ones(1, 1, 2, 3)).any()


def test_hires_cam_sums_to_the_score_of_a_linear_layer_and_is_zero_before_a_normalization() -> None:
    activations, weights = drawn()
    score = (activations * weights).sum((1, 2, 3))
    torch.testing.assert_close(hires_cam(activations, weights, signed=True).sum((1, 2)), score)
    tokens = torch.randn(2, 11, 5, 7, generator=torch.Generator().manual_seed(3)).requires_grad_()
    normalized = layer_norm(tokens.movedim(1, -1), (11,)).movedim(-1, 1)
    [gradients] = torch.autograd.grad((normalized * torch.randn(11, 5, 7)).sum(), [tokens])
    for dtype in (torch.float32, torch.bfloat16):
        heatmap = hires_cam(tokens.detach().to(dtype), gradients.to(dtype), signed=True)
        assert not heatmap.any()
    assert hires_cam(tokens.detach(), gradients + 0.01, signed=True).all()


def first_component(rows: np.ndarray) -> np.ndarray:
    rows = rows - rows.mean(0)
    return rows @ np.linalg.svd(rows)[2][0]


def kernel_component(rows: np.ndarray) -> np.ndarray:
    rows, count = rows - rows.mean(0), len(rows)
    kernel = np.array([[np.tanh(p @ q / 3 + 1) for q in rows] for p in rows])
    ones = np.full((count, count), 1 / count)
    centered = kernel - ones @ kernel - kernel @ ones + ones @ kernel @ ones
    values, vectors = np.linalg.eigh(centered)
    return np.sqrt(values[-1]) * vectors[:, -1]


def test_eigen_maps_are_first_components_with_the_sign_of_the_evidence() -> None:
    activations, gradients = drawn()
    products = activations * gradients
    for result, features, evidence, component in (
        (eigen_cam(activations), activations, activations.square().sum(1), first_component),
        (eigen_grad_cam(activations, gradients), products, products.sum(1), first_component),
        (kpca_cam(activations), activations, activations.square().sum(1), kernel_component),
    ):
        for heatmap, image, shown in zip(result, features, evidence, strict=True):
            expected = component(image.flatten(1).T.numpy())
            expected *= np.sign(np.cov(expected, shown.flatten())[0, 1])  # the sign of the evidence
            np.testing.assert_allclose(heatmap.flatten(), np.maximum(expected, 0), atol=1e-8)
    assert torch.equal(eigen_cam(torch.ones(1, 2, 3, 5)), torch.zeros(1, 3, 5))
    activations = torch.zeros(1, 2, 3, 5, dtype=torch.float64)
    activations[..., 0, 1], activations[..., 2, 3] = 9.0, 2.0
    gradients = torch.ones_like(activations)
    gradients[..., 0, 1] = -1  # much evidence against the target
    heatmap = eigen_grad_cam(activations, gradients)[0]
    assert divmod(int(heatmap.argmax()), 5) == (2, 3)
    assert heatmap[0, 1] == 0


def halves(subject: Subject, index: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Return the modules before and behind a layer, without operations in place."""
    layers: Any = list(subject.model.eval().children())
    layers[3] = nn.ReLU()
    return nn.Sequential(*layers[:index]), nn.Sequential(*layers[index:])


@pytest.mark.parametrize(("layer", "index"), [(-1, 3), ("2", 3), (0, 1)])
def test_a_method_gets_the_features_and_gradients_of_its_layer(
    layer: int | str, index: int
) -> None:
    subject, x = small_cnn(), images()
    before, behind = halves(subject, index)
    features = before(x).detach().requires_grad_()
    total = behind(features)[[0, 1], TARGETS].sum()
    [gradients] = torch.autograd.grad(total, [features])
    target = resolve_target(TARGETS, subject)
    for chosen, formula in (
        ("gradcam", grad_cam),
        ("gradcam++", grad_cam_plus_plus),
        ("layercam", layer_cam),
    ):
        result = METHODS[chosen].function(subject, x, target, layers=layer)
        torch.testing.assert_close(result, formula(features.detach(), gradients))


@pytest.mark.parametrize(("count", "strength"), [(1, 1.0), (2, 0.6), (99, 1.0), (2, 0.0)])
def test_finer_cam_explains_the_difference_to_similar_classes(count: int, strength: float) -> None:
    subject, x = small_cnn(), images()
    trunk, head = halves(subject, 1)
    target = resolve_target(TARGETS, subject)
    result = finercam(subject, x, target, layers=0, num_references=count, strength=strength)
    for index, row in enumerate(TARGETS):
        features = trunk(x[[index]]).detach().requires_grad_()
        scores = head(features)[0]
        near = (scores - scores[row]).abs().argsort().tolist()
        others = [k for k in near if k != row][:count]
        shares = scores.detach()[others].softmax(0)
        value = scores[row] - strength * (shares * scores[others]).sum()
        [gradient] = torch.autograd.grad(value, features)
        torch.testing.assert_close(result[[index]], grad_cam(features.detach(), gradient))


@pytest.mark.parametrize(("layer", "index"), [(-1, 3), (0, 1)])
def test_channel_methods_equal_plain_loops(layer: int, index: int) -> None:
    subject, x = small_cnn(), images()
    before, behind = halves(subject, index)
    target = resolve_target(TARGETS, subject)
    scored = scorecam(subject, x, target, layers=layer, internal_batch_size=1)
    ablated = ablationcam(subject, x, target, layers=layer, internal_batch_size=4)
    with torch.no_grad():
        for row, label in enumerate(TARGETS):
            activations = before(x[[row]])
            large = interpolate(activations, (13, 17), mode="bilinear")[0]
            low, high = large.amin((1, 2), keepdim=True), large.amax((1, 2), keepdim=True)
            masked = x[row] * ((large - low) / (high - low))[:, None]
            weights = subject.model(masked)[:, label].softmax(0)
            expected = (weights[:, None, None] * activations[0]).sum(0).relu()
            torch.testing.assert_close(scored[row], expected)
            score = behind(activations)[0, label]
            without = activations * (1 - torch.eye(activations.shape[1]))[:, :, None, None]
            drops = (score - behind(without)[:, label]) / score.abs()
            expected = (drops[:, None, None] * activations[0]).sum(0).relu()
            torch.testing.assert_close(ablated[row], expected)


class Head(nn.Module):
    """Scores of pooled features, by name, which also depend on what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = torch.cat((self.act(x), x), 1)  # a skip connection that cannot be broadcast
        return {"logits": features.mean((2, 3)) @ torch.arange(1.0, 7.0)[:, None]}


def test_ablationcam_of_a_linear_head_is_its_class_activation_map() -> None:
    x = torch.rand(2, 3, 2, 3, generator=torch.Generator().manual_seed(3))
    x[1, 2] = -1  # a channel that is off
    layer, output = FeatureLayer("act", "b c y x", (2, 3)), OutputLayout("logits", num_classes=1)
    info = ModelInfo("head", "other", (2, 3), (0.5,) * 3, (0.5,) * 3, "none", (), (layer,))
    model = Head()
    subject = Subject(model, replace(info, output=output), model)
    scores = subject.scores(x)
    drops = x.relu().mean((2, 3)) * torch.arange(1.0, 4.0)
    expected = torch.einsum("bc,bcyx->byx", drops / scores.abs(), x.relu())
    target = resolve_target(0, subject)
    torch.testing.assert_close(ablationcam(subject, x, target), expected)
    one = x[:1]
    by_function = ablationcam(subject, one, lambda output: output["logits"][:, 0])
    torch.testing.assert_close(by_function, expected[:1])
    shifted = ablationcam(subject, one, lambda output: output["logits"][:, 0] - 100)
    score = float(scores[0, 0])
    right = expected[:1] * score / (100 - score)  # not reversed
    torch.testing.assert_close(shifted, right, rtol=1e-3, atol=1e-5)


def test_the_backward_pass_stops_at_the_layer_and_activations_alone_need_none() -> None:
    subject, x = small_cnn(), images()
    model: Any = subject.model.train()
    reached: list[bool] = []
    hook = model[0].register_full_backward_hook(lambda *_: reached.append(True))
    METHODS["gradcam"].function(subject, x, resolve_target(2, subject))
    hook.remove()
    assert reached == []
    seen: list[bool] = []

    def target(scores: Tensor) -> Tensor:
        seen.append(scores.requires_grad)
        return scores[:, 0]

    for name in ("eigencam", "eigengradcam"):
        METHODS[name].function(subject, x, target)
    assert seen == [False, True]


@pytest.mark.parametrize("layout", ["b n c", "b y x c"])
def test_channels_last_layouts_are_supported(layout: Any) -> None:
    class ChannelsLast(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.movedim(1, -1) if layout == "b y x c" else x.flatten(2).mT

    class Scores(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * torch.arange(x[0].numel()).view_as(x[0])).flatten(1)[:, :35] / 100

    model = nn.Sequential(ChannelsLast(), Scores())
    subject, x = Subject(model, small_cnn().info, model), images()
    target, layer = resolve_target(4, subject), FeatureLayer("0", layout, (13, 17))
    [(activations, gradients)] = activations_and_gradients(subject, x, target, layer)
    assert torch.equal(activations, x)
    assert gradients[0].nonzero().tolist() == [[1, 0, 1]]  # of index 4, at the second position


@pytest.mark.usefixtures("own_methods")
def test_a_method_of_ones_own_is_explained_listed_and_checked() -> None:
    def no_cats(_info: object, target: object) -> str:
        return "it explains no cats" if target == "cat" else ""

    def define() -> Any:
        @method("power", title="Power", paper="of my own", needs="features", check=no_cats)
        @class_activation_map
        def power(activations: Tensor, gradients: Tensor, *, exponent: float = 2.0) -> Tensor:
            """Power: products of activations and gradients, raised to a power."""
            return (activations * gradients).sum(1).relu() ** exponent

        return power

    define()
    again = define()  # as when a cell runs again
    assert METHODS["power"].function is again
    model = AttentionResNet(("cat", "dog"), depth=8, stem_width=4)
    photo = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    assert "power" in va.methods_for(model)
    [heatmap] = va.explain(model, photo, "power", "dog", exponent=3.0)
    [plain] = va.explain(model, photo, "hirescam", "dog")
    torch.testing.assert_close(heatmap.values, plain.values**3)
    assert heatmap.info.options == {"layers": -1, "exponent": 3.0}
    assert heatmap.geometry == plain.geometry
    assert METHODS["power"].default_kwargs == {"layers": -1, "exponent": 2.0}
    with pytest.raises(ValueError, match="power has no argument 'size'; it takes layers=-1, exp"):
        va.explain(model, photo, "power", "dog", size=3)
    with pytest.raises(ValueError, match="power does not fit AttentionResNet: it explains no cats"):
        va.explain(model, photo, "power", "cat")


def test_layer_normalization_is_seen_however_it_is_called() -> None:
    class Bare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return layer_norm(x, x.shape[1:])

    class Unused(nn.LayerNorm):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name of torch)
            return input

    torch.manual_seed(3)
    for layer, refused in ((Bare(), True), (Unused(8), False)):
        model = nn.Sequential(
            nn.Conv2d(3, 8, 4, 4), nn.ReLU(), layer, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(8, 3),
        )  # fmt: skip
        reason = METHODS["xgradcam"].supports(analyze_model(model.eval(), (32, 32)))
        assert ("features of both signs" in reason) == refused, (layer, reason)
