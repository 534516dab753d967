"""Class activation maps: formulas of the activations of a layer, and methods made of them.

A formula takes the activations of one layer and, as it needs them, the `gradients` of the target,
and returns a map on the grid of that layer, in float32 at least. A method is one line: the formula,
the layer around it, and its row in the table.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn.functional import interpolate

from visattn.attribution.layer_outputs import activations_and_gradients, layer_activations
from visattn.attribution.registry import method
from visattn.attribution.targets import DenseTarget, Score, Target, is_function
from visattn.functional.numerics import at_least_float32
from visattn.recording.feature_layers import Layer, resolve_feature_layer
from visattn.recording.frozen import frozen, with_grad
from visattn.recording.outputs import class_scores, output_tensors
from visattn.recording.score_evidence import kind_of, walk
from visattn.recording.subject import Subject

_CANCELED = 1e-4  # of the products that were summed: what is left is rounding
Formula = Callable[..., Tensor]
"""From activations and gradients, as it names them, and options to a map."""


def class_activation_map(formula: Formula) -> Callable[..., Float[Tensor, "b gy gx"]]:
    """Return the attribution method of a formula: it gets a layer, and its gradients if needed.

    The method has the options of the formula and `layers`, which is one. The maps of the levels of
    a feature pyramid are summed.

    Args:
        formula: From `activations` `[b, c, y, x]` of a layer to a map `[b, y, x]`. If it also has
            the parameter `gradients`, it gets those of the target.

    Example:
        >>> from visattn.recording.subject import analyze_model
        >>> from visattn.models import AttentionResNet
        >>> energy = class_activation_map(lambda activations: activations.square().sum(1))
        >>> model = analyze_model(AttentionResNet(("cat", "dog"), depth=8, stem_width=4))
        >>> energy(model, torch.ones(1, 3, 32, 32), lambda scores: scores[:, 0], layers=0).shape
        torch.Size([1, 32, 32])
    """
    named = inspect.signature(formula).parameters

    def explain(
        subject: Subject,
        images: Float[Tensor, "b c y x"],
        target: Target,
        *,
        layers: Layer = -1,
        **options: Any,
    ) -> Float[Tensor, "b gy gx"]:
        feature_layer = resolve_feature_layer(subject, layers)
        if "gradients" not in named:
            activations, _ = layer_activations(subject, images, target, feature_layer)
            return formula(activations, **options)
        levels = activations_and_gradients(subject, images, target, feature_layer)
        maps = [formula(*level, **options) for level in levels]
        if not feature_layer.levels:
            return maps[0]
        finest = [interpolate(each[:, None], feature_layer.grid, mode="bilinear") for each in maps]
        return torch.cat(finest, 1).sum(1)

    # The options of a method are read from its signature, also those of the formula.
    signature = inspect.signature(explain)
    own = [each for name, each in signature.parameters.items() if name != "options"]
    options = [each for each in named.values() if each.kind is each.KEYWORD_ONLY]
    functools.update_wrapper(explain, formula)
    vars(explain)["__signature__"] = signature.replace(parameters=[*own, *options])
    return explain


def grad_cam(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """Grad-CAM: channels of a layer weighted by their mean gradient, clipped at 0.

    Example:
        >>> activations = torch.tensor([[[[1.0, 0.0]], [[1.0, 2.0]]]])
        >>> gradients = torch.tensor([[[[3.0, 1.0]], [[-1.0, 0.0]]]])
        >>> grad_cam(activations, gradients)
        tensor([[[1.5000, 0.0000]]])

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391, equations 1 and 2.
    """
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    return weighted_sum(activations, gradients.mean((2, 3)))


def grad_cam_plus_plus(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """Grad-CAM++: as Grad-CAM, with pixel weights that favor small and multiple objects.

    With S the sum of a channel, a gradient g > 0 contributes g / (2 + S g) to its weight.

    Example:
        >>> activations = torch.tensor([[[[1.0, 0.0]], [[1.0, 2.0]]]])
        >>> gradients = torch.tensor([[[[3.0, 1.0]], [[-1.0, 2.0]]]])
        >>> grad_cam_plus_plus(activations, gradients)  # weights 3/5 + 1/3 and 2/8
        tensor([[[1.1833, 0.5000]]])

    Source:
        Chattopadhyay et al. 2018, arXiv:1710.11063, equations 5 and 19. Deviation: no
        epsilon in the denominator; the sum of a channel is clamped to at least 0, which keeps the
        denominator positive.
    """
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    sums = activations.sum((2, 3), keepdim=True).relu()
    positive = gradients.relu()
    return weighted_sum(activations, (positive / (2 + sums * positive)).sum((2, 3)))


def layer_cam(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """LayerCAM: channels of a layer weighted at each position by their positive gradient.

    Without a spatial mean the map is also useful on the fine grids of early layers.

    Example:
        >>> activations = torch.tensor([[[[1.0, 0.0]], [[1.0, 2.0]]]])
        >>> gradients = torch.tensor([[[[3.0, 1.0]], [[-1.0, 2.0]]]])
        >>> layer_cam(activations, gradients)
        tensor([[[3., 4.]]])

    Source:
        Jiang et al. 2021, "LayerCAM: Exploring Hierarchical Class Activation Maps for
        Localization", equations 5 to 7.
    """
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    return torch.einsum("bcyx,bcyx->byx", activations, gradients.relu()).relu()


def hires_cam(
    activations: Float[Tensor, "b c y x"],
    gradients: Float[Tensor, "b c y x"],
    *,
    signed: bool = False,
) -> Float[Tensor, "b y x"]:
    """HiResCAM: activations of a layer times their gradients, clipped at 0.

    If a linear layer follows, the signed map sums to the score without its bias. If a normalization
    over channels follows at once, the score does not depend on the size of a position, and its
    products cancel; the rounding that is left becomes zero.

    Args:
        signed: Keep negative values, evidence against the score, instead of clipping at 0.

    Example:
        >>> activations = torch.tensor([[[[1.0, 0.0]], [[1.0, 2.0]]]])
        >>> gradients = torch.tensor([[[[3.0, 1.0]], [[-1.0, -2.0]]]])
        >>> hires_cam(activations, gradients, signed=True)
        tensor([[[ 2., -4.]]])

    Source:
        Draelos and Carin 2020, arXiv:2011.08891; clipped at 0 unless `signed`.
    """
    # Before the conversion to float32: half precision was rounded by more.
    smallest = max(_CANCELED, torch.finfo(activations.dtype).eps)
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    result = torch.einsum("bcyx,bcyx->byx", activations, gradients)
    sizes = torch.einsum("bcyx,bcyx->byx", activations.abs(), gradients.abs())
    canceled = result.abs().amax((1, 2)) <= smallest * sizes.amax((1, 2))
    result = result.masked_fill(canceled[:, None, None], 0.0)
    return result if signed else result.relu()


def x_grad_cam(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """XGrad-CAM: channels of a layer weighted by their gradient where they are active.

    The weight of a channel is the mean of its gradients, weighted by its activations; 0 if these
    sum to 0. Activations should not be negative, as after a ReLU: their sum is the divisor.

    Example:
        >>> activations = torch.tensor([[[[1.0, 0.0]], [[1.0, 3.0]]]])
        >>> gradients = torch.tensor([[[[3.0, 1.0]], [[-1.0, 1.0]]]])
        >>> x_grad_cam(activations, gradients)  # weights 3/1 and 2/4
        tensor([[[3.5000, 1.5000]]])

    Source:
        Fu et al. 2020, arXiv:2008.02312. Deviation: no epsilon in the denominator.
    """
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    sums = activations.sum((2, 3))
    weights = (activations * gradients).sum((2, 3)) / torch.where(sums == 0, 1.0, sums)
    return weighted_sum(activations, torch.where(sums == 0, 0.0, weights))


def eigen_cam(activations: Float[Tensor, "b c y x"]) -> Float[Tensor, "b y x"]:
    """Eigen-CAM: first principal component of the activations of a layer, without a class.

    The sign of a principal component is arbitrary; here the map is positive where activations are
    strong: it does not correlate negatively with their squared norm. Negative values are clipped.

    Example:
        >>> activations = torch.tensor([[[[0.0, 0.0, 4.0]], [[0.0, 0.0, 3.0]]]])
        >>> eigen_cam(activations)  # the channels lie on a line: distances from the mean, 5/3
        tensor([[[0.0000, 0.0000, 3.3333]]])

    Source:
        Muhammad and Yeasin 2020, arXiv:2008.00299. Deviations: activations are
        centered, as principal components are; the sign is fixed.
    """
    energy = activations.double().square().sum(1)
    return _aligned(_first_component(activations), energy, activations)


def eigen_grad_cam(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """Eigen-Grad-CAM: first principal component of the activations of a layer times gradients.

    The sign is fixed by the target: the map is positive where the products sum to evidence for it.

    Example:
        >>> activations = torch.tensor([[[[0.0, 0.0, 4.0]], [[0.0, 0.0, 3.0]]]])
        >>> eigen_grad_cam(activations, torch.ones(1, 2, 1, 3))  # distances from the mean, 5/3
        tensor([[[0.0000, 0.0000, 3.3333]]])

    Source:
        Gildenblat et al. 2021, pytorch-grad-cam, `EigenGradCAM`; no paper. Deviation: the sign is
        fixed, and negative values are clipped.
    """
    products = activations.double() * gradients.double()
    return _aligned(_first_component(products), products.sum(1), activations)


def kpca_cam(activations: Float[Tensor, "b c y x"]) -> Float[Tensor, "b y x"]:
    """KPCA-CAM: first kernel principal component of the activations of a layer, without a class.

    The kernel of the centered activations p and q of two positions is tanh(p·q / c + 1), with c
    channels. It saturates, so that few strong positions do not rule the map.

    Example:
        >>> kpca_cam(torch.tensor([[[[0.0, 0.0, 4.0]], [[0.0, 0.0, 3.0]]]]))
        tensor([[[0.0000, 0.0000, 1.3119]]])

    Source:
        Karmani et al. 2024, arXiv:2410.00267, with the sigmoid kernel of the authors' code in
        pytorch-grad-cam. Deviation: the sign is fixed as for Eigen-CAM.
    """
    flat = activations.double().flatten(2)
    flat = flat - flat.mean(2, keepdim=True)
    kernel = (flat.mT @ flat / flat.shape[1] + 1).tanh()
    # A kernel with rows and columns of mean 0 is that of centered features, which are never
    # computed.
    kernel = kernel - kernel.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(kernel - kernel.mean(2, keepdim=True))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    projection: Tensor = vectors[:, :, -1] * values[:, -1:].clamp(min=0).sqrt()
    return _aligned(projection, activations.double().square().sum(1), activations)


def _first_component(values: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n"]:
    """Return the projection of each position on the first principal component, of any sign."""
    flat = values.flatten(2).double()
    centered = flat - flat.mean(2, keepdim=True)
    _, sizes, directions = torch.linalg.svd(centered, full_matrices=False)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return sizes[:, :1] * directions[:, 0]


def _aligned(
    projection: Float[Tensor, "b n"], evidence: Float[Tensor, "b y x"], like: Tensor
) -> Float[Tensor, "b y x"]:
    """Return the positive part of a component, with the sign that agrees with evidence."""
    flat = evidence.flatten(1)
    covariance = (projection * (flat - flat.mean(1, keepdim=True))).sum(1, keepdim=True)
    projection = torch.where(covariance < 0, -projection, projection).relu()
    return projection.to(at_least_float32(like)).view_as(evidence)


def weighted_sum(
    activations: Float[Tensor, "b c y x"], weights: Float[Tensor, "b c"]
) -> Float[Tensor, "b y x"]:
    """Return the positive part of the sum of weighted channels."""
    return torch.einsum("bcyx,bc->byx", activations, weights).relu()


def _signed_features_error(subject: Subject, _target: object) -> str:
    """Return why the features of a model have both signs; "" if they may be positive."""
    with frozen(subject.model):
        outputs = output_tensors(subject.forward(with_grad(subject.probe_image())))
        edges = [get_gradient_edge(each) for each in outputs if each.requires_grad]
        normalized = any(kind_of(edge) == "NativeLayerNorm" for edge in walk(edges))
    if not normalized:
        return ""
    return (
        "its layer normalization makes features of both signs, whose sum, the divisor of "
        "XGrad-CAM, is about 0"
    )


def _register(
    name: str, title: str, paper: str, formula: Formula, **facts: Any
) -> Callable[..., Float[Tensor, "b gy gx"]]:
    """Return the method of a formula, which is registered."""
    return method(name, title=title, paper=paper, needs="features", **facts)(
        class_activation_map(formula)
    )


gradcam = _register("gradcam", "Grad-CAM", "arXiv:1610.02391", grad_cam)
gradcam_plus_plus = _register("gradcam++", "Grad-CAM++", "arXiv:1710.11063", grad_cam_plus_plus)
layercam = _register("layercam", "LayerCAM", "Jiang et al. 2021", layer_cam)
hirescam = _register("hirescam", "HiResCAM", "arXiv:2011.08891", hires_cam)
xgradcam = _register(
    "xgradcam",
    "XGrad-CAM",
    "arXiv:2008.02312",
    x_grad_cam,
    check=_signed_features_error,
)
eigencam = _register("eigencam", "Eigen-CAM", "arXiv:2008.00299", eigen_cam, kind="saliency")
eigengradcam = _register("eigengradcam", "Eigen-Grad-CAM", "Gildenblat et al. 2021", eigen_grad_cam)
kpcacam = _register("kpcacam", "KPCA-CAM", "arXiv:2410.00267", kpca_cam, kind="saliency")


def _of_class(_explained: Subject, target: object) -> str:
    """Return why a target is no class; "" if it is one."""
    is_class = not (isinstance(target, DenseTarget) or is_function(target))
    return "" if is_class else "it compares classes, and explains no other target"


@method("finercam", title="Finer-CAM", paper="arXiv:2501.11309", needs="features", check=_of_class)
def finercam(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layers: Layer = -1,
    num_references: int = 3,
    strength: float = 1.0,
) -> Float[Tensor, "b gy gx"]:
    """Finer-CAM: Grad-CAM of the difference between a class and the classes most similar to it.

    What speaks for similar classes as well cancels. The most similar classes are those with the
    closest scores; they are averaged with their probabilities as weights.

    Args:
        layers: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).
        num_references: Number of similar classes, of those that there are.
        strength: Weight of the similar classes; 0 gives Grad-CAM.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Zhang et al. 2025, arXiv:2501.11309, with the weights of the authors' code. Deviation from
        it: the weights are constants, so that only scores are explained, not also probabilities.
    """

    def difference(output: Any) -> Float[Tensor, " b"]:
        score = target(output)
        assert isinstance(target, Score)  # noqa: S101 - of a class
        scores = class_scores(output, layout=target.layout)
        distances = (scores - score[:, None]).detach().abs()
        distances = distances.scatter(1, target.indices(scores)[:, None], torch.inf)  # not itself
        count = min(num_references, scores.shape[1] - 1)
        similar = distances.argsort(dim=1, stable=True)[:, :count]
        weights = scores.detach().gather(1, similar).softmax(1)  # shares of their probabilities
        return score - strength * (weights * scores.gather(1, similar)).sum(1)

    return gradcam(subject, images, difference, layers=layers)
