"""Class activation maps made of formulas: methods against plainer computations, and one's own."""

from typing import Any

import numpy as np
import pytest
import torch
from small_models import images, small_cnn
from torch import Tensor, nn

import visattn as va
from visattn.attribution import METHODS, class_activation_map, method
from visattn.attribution.cam import (
    eigen_grad_cam,
    eigencam,
    eigengradcam,
    finercam,
    gradcam,
    hires_cam,
    kpca_cam,
)
from visattn.attribution.targets import resolve_target
from visattn.models import AttentionResNet
from visattn.recording.subject import Subject

TARGETS = [1, 3]


def halves(explained: Subject) -> tuple[nn.Sequential, nn.Sequential]:
    """Return the first convolution, and what follows it without operations in place."""
    layers: Any = list(explained.model.eval().children())
    layers[3] = nn.ReLU()
    return nn.Sequential(layers[0]), nn.Sequential(*layers[1:])


def drawn() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    activations, gradients = torch.randn(2, 2, 3, 5, 7, generator=random, dtype=torch.float64)
    return activations, gradients


def agrees(component: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """Return a component with the sign that correlates with evidence, clipped at 0."""
    sign = np.sign(np.cov(component, evidence.ravel())[0, 1])
    return np.maximum(sign * component, 0)


def test_eigen_grad_cam_is_the_first_component_of_the_products() -> None:
    activations, gradients = drawn()
    result = eigen_grad_cam(activations, gradients).numpy()
    for image, heatmap in zip(activations * gradients, result, strict=True):
        rows = image.flatten(1).T.numpy()
        rows = rows - rows.mean(0)
        _, _, directions = np.linalg.svd(rows)
        expected = agrees(rows @ directions[0], image.sum(0).numpy())
        np.testing.assert_allclose(heatmap.ravel(), expected, atol=1e-9)


def test_eigen_grad_cam_is_positive_where_there_is_evidence_for_the_target() -> None:
    activations = torch.zeros(1, 2, 3, 5, dtype=torch.float64)
    activations[..., 0, 1] = 9.0  # much evidence against the target
    activations[..., 2, 3] = 2.0
    gradients = torch.ones_like(activations)
    gradients[..., 0, 1] = -1
    heatmap = eigen_grad_cam(activations, gradients)[0]
    assert divmod(int(heatmap.argmax()), 5) == (2, 3)
    assert heatmap[0, 1] == 0
    assert bool((hires_cam(activations, gradients)[0] > 0)[2, 3])


def test_kpca_cam_is_the_first_component_in_the_space_of_the_kernel() -> None:
    activations, _ = drawn()
    result = kpca_cam(activations).numpy()
    for image, heatmap in zip(activations.numpy(), result, strict=True):
        rows = image.reshape(3, -1).T
        rows = rows - rows.mean(0)
        count = len(rows)
        kernel = np.array([[np.tanh(p @ q / 3 + 1) for q in rows] for p in rows])
        ones = np.full((count, count), 1 / count)
        centered = kernel - ones @ kernel - kernel @ ones + ones @ kernel @ ones
        values, vectors = np.linalg.eigh(centered)
        energy = (image**2).sum(0)
        expected = agrees(np.sqrt(values[-1]) * vectors[:, -1], energy)
        np.testing.assert_allclose(heatmap.ravel(), expected, atol=1e-8)


@pytest.mark.parametrize(("count", "strength"), [(1, 1.0), (2, 0.6), (99, 1.0)])
def test_finer_cam_explains_the_difference_to_similar_classes(count: int, strength: float) -> None:
    explained, x = small_cnn(), images()
    trunk, head = halves(explained)
    target = resolve_target(TARGETS, explained)
    result = finercam(explained, x, target, layer=0, num_references=count, strength=strength)
    for index, row in enumerate(TARGETS):
        features = trunk(x[[index]]).detach().requires_grad_()
        scores = head(features)[0]
        shares = scores.softmax(0).detach()
        others = sorted(
            {0, 1, 2, 3} - {row}, key=lambda k: abs(float((scores[k] - scores[row]).detach()))
        )
        others = others[:count]
        total = sum(float(shares[k]) for k in others)
        value = scores[row]
        for k in others:
            value = value - strength * float(shares[k]) / total * scores[k]
        [gradient] = torch.autograd.grad(value, features)
        expected = (gradient.mean((2, 3), keepdim=True) * features).sum(1).clamp(min=0)[0]
        torch.testing.assert_close(result[index], expected.detach())


def test_finer_cam_without_strength_is_grad_cam_and_needs_classes() -> None:
    explained, x = small_cnn(), images()
    target = resolve_target(TARGETS, explained)
    torch.testing.assert_close(
        finercam(explained, x, target, strength=0.0), gradcam(explained, x, target)
    )
    assert "compares classes" in METHODS["finercam"].supports(explained, torch.sum)
    assert METHODS["finercam"].supports(explained, 2) == ""


def test_methods_of_activations_alone_need_no_gradient() -> None:
    explained, x = small_cnn(), images()
    gradients: list[Tensor] = []

    def target(scores: Tensor) -> Tensor:
        gradients.append(scores)
        return scores[:, 0]

    eigencam(explained, x, target)
    assert [scores.requires_grad for scores in gradients] == [False]
    eigengradcam(explained, x, target)
    assert [scores.requires_grad for scores in gradients] == [False, True]


@pytest.mark.usefixtures("own_methods")
def test_a_method_of_ones_own_is_explained_listed_and_checked() -> None:
    @method("power", title="Power", paper="of my own", needs="features")
    @class_activation_map
    def power(activations: Tensor, gradients: Tensor, *, exponent: float = 2.0) -> Tensor:  # pyright: ignore[reportUnusedFunction]
        """Power: products of activations and gradients, raised to a power."""
        return (activations * gradients).sum(1).relu() ** exponent

    model = AttentionResNet(("cat", "dog"), depth=8, stem_width=4)
    photo = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    assert "power" in va.methods_for(model)
    [heatmap] = va.explain(model, photo, "power", "dog", exponent=3.0)
    [plain] = va.explain(model, photo, "hirescam", "dog")
    torch.testing.assert_close(heatmap.values, plain.values**3)
    assert heatmap.info.options == {"layer": -1, "exponent": 3.0}
    assert heatmap.geometry == plain.geometry
    assert METHODS["power"].default_kwargs == {"layer": -1, "exponent": 2.0}
    with pytest.raises(ValueError, match="power has no argument 'size'; it takes layer=-1, exp"):
        va.explain(model, photo, "power", size=3)


@pytest.mark.usefixtures("own_methods")
def test_a_method_may_be_defined_again() -> None:
    def decorate(name: str) -> Any:
        @method(name, title="Mine", paper="of my own", needs="scores")
        def flat(explained: Subject, x: Tensor, target: Any) -> Tensor:
            return x[:, 0]

        return flat

    decorate("flat")
    again = decorate("flat")  # as when a cell runs again
    assert METHODS["flat"].function is again


@pytest.mark.usefixtures("own_methods")
def test_a_further_requirement_refuses_with_its_reason() -> None:
    def no_twins(_info: object, target: object) -> str:
        return "" if target == "dog" else "it explains dogs only"

    @method("dogs", title="Dogs", paper="of my own", needs="scores", check=no_twins)
    def dogs(explained: Subject, x: Tensor, target: Any) -> Tensor:  # pyright: ignore[reportUnusedFunction]
        return target(explained.forward(x)).detach()[:, None, None].expand(-1, 2, 2)

    model = AttentionResNet(("cat", "dog"), depth=8, stem_width=4)
    photo = np.full((60, 80, 3), 90, np.uint8)
    assert va.explain(model, photo, "dogs", "dog")[0].info.class_name == "dog"
    with pytest.raises(ValueError, match="dogs does not fit AttentionResNet: it explains dogs onl"):
        va.explain(model, photo, "dogs", "cat")
