"""Class activation maps: formulas on the activations of a layer, and methods built from them.

    images --> layers --> activations [b c y x] --> layers --> target
                          <------------------- gradients [b c y x]
    formula(activations, gradients) --> map [b y x]

A formula takes the activations of one layer and, if it needs them, the `gradients` of the target,
and returns a map on the grid of that layer, in float32 at least. Score-CAM and Ablation-CAM run the
model for each channel instead.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd import grad
from torch.autograd.graph import get_gradient_edge
from torch.nn.functional import interpolate

from visattn.attribution.perturbation import evaluate_target, variant_scorer
from visattn.attribution.registry import METHODS, method
from visattn.attribution.targets import DenseTarget, Score, Target, is_function
from visattn.functional.numerics import at_least_float32
from visattn.recording.feature_layers import Layer, resolve_feature_layer
from visattn.recording.frozen import frozen, with_grad
from visattn.recording.interception import in_this_run
from visattn.recording.model_info import FeatureLayer
from visattn.recording.outputs import class_scores, first_tensor, output_tensors
from visattn.recording.score_evidence import kind_of, walk
from visattn.recording.subject import Subject
from visattn.results.attention_map import resample_to_input

_CANCELED = 1e-4  # relative to the sum of absolute products: less is rounding error
_MAX_VALUES = 2**25  # elements of all feature maps in a forward pass
_MAX_IMAGES = 32
Formula = Callable[..., Tensor]
"""From activations, gradients if it has that parameter, and options to a map."""


def class_activation_map(formula: Formula) -> Callable[..., Float[Tensor, "b gy gx"]]:
    """Turn a formula on the activations of a layer into an attribution method.

    The method takes the options of the formula and a single layer as `layers`. For a feature
    pyramid, the maps of its levels are summed.

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

    # Options are read from the signature of a method, so that it must list those of the formula.
    signature = inspect.signature(explain)
    own = [each for name, each in signature.parameters.items() if name != "options"]
    options = [each for each in named.values() if each.kind is each.KEYWORD_ONLY]
    functools.update_wrapper(explain, formula)
    vars(explain)["__signature__"] = signature.replace(parameters=[*own, *options])
    return explain


def _cam(name: str, title: str, paper: str, **facts: Any) -> Callable[[Formula], Formula]:
    """Return a decorator that registers the method of a formula and returns the formula."""
    register = method(name, title=title, paper=paper, needs="features", **facts)

    def registered(formula: Formula) -> Formula:
        register(class_activation_map(formula))
        return formula

    return registered


@_cam("gradcam", "Grad-CAM", "arXiv:1610.02391")
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


@_cam("gradcam++", "Grad-CAM++", "arXiv:1710.11063")
def grad_cam_plus_plus(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """Grad-CAM++: Grad-CAM with pixel-wise weights, for small and multiple objects.

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


@_cam("layercam", "LayerCAM", "Jiang et al. 2021")
def layer_cam(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """LayerCAM: channels of a layer weighted at each position by their positive gradient.

    Since gradients are not averaged over positions, maps of early, fine layers are useful too.

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


@_cam("hirescam", "HiResCAM", "arXiv:2011.08891")
def hires_cam(
    activations: Float[Tensor, "b c y x"],
    gradients: Float[Tensor, "b c y x"],
    *,
    signed: bool = False,
) -> Float[Tensor, "b y x"]:
    """HiResCAM: activations of a layer times their gradients, clipped at 0.

    If a linear layer follows, the signed map sums to the score minus its bias. If a normalization
    over channels follows directly, the score does not depend on the norm of the features at a
    position, and the products cancel; the remaining rounding error is set to zero.

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
    # before the conversion to float32, since half precision has larger rounding errors
    smallest = max(_CANCELED, torch.finfo(activations.dtype).eps)
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    result = torch.einsum("bcyx,bcyx->byx", activations, gradients)
    sizes = torch.einsum("bcyx,bcyx->byx", activations.abs(), gradients.abs())
    canceled = result.abs().amax((1, 2)) <= smallest * sizes.amax((1, 2))
    result = result.masked_fill(canceled[:, None, None], 0.0)
    return result if signed else result.relu()


def _signed_features_error(subject: Subject, _target: object) -> str:
    """Return why XGrad-CAM does not fit the features of a model; "" if it may."""
    with frozen(subject.model):
        outputs = output_tensors(subject.forward(with_grad(subject.probe_image())))
        edges = [get_gradient_edge(each) for each in outputs if each.requires_grad]
        normalized = any(kind_of(edge) == "NativeLayerNorm" for edge in walk(edges))
    if not normalized:
        return ""
    return (
        "its layer normalization gives features of both signs, so that their sum, the divisor of "
        "XGrad-CAM, is about 0"
    )


@_cam("xgradcam", "XGrad-CAM", "arXiv:2008.02312", check=_signed_features_error)
def x_grad_cam(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """XGrad-CAM: channels of a layer weighted by their gradient where they are active.

    The weight of a channel is the mean of its gradients, weighted by its activations; 0 if these
    sum to 0. Activations should be non-negative, as after a ReLU, since their sum is the divisor.

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


@_cam("eigencam", "Eigen-CAM", "arXiv:2008.00299", kind="saliency")
def eigen_cam(activations: Float[Tensor, "b c y x"]) -> Float[Tensor, "b y x"]:
    """Eigen-CAM: first principal component of the activations of a layer, without a class.

    The sign of a principal component is arbitrary; it is chosen so that the map does not correlate
    negatively with the squared norm of the activations. Negative values are clipped.

    Example:
        >>> activations = torch.tensor([[[[0.0, 0.0, 4.0]], [[0.0, 0.0, 3.0]]]])
        >>> eigen_cam(activations)  # collinear features: distances from their mean, 5/3
        tensor([[[0.0000, 0.0000, 3.3333]]])

    Source:
        Muhammad and Yeasin 2020, arXiv:2008.00299. Deviations: activations are
        centered, as principal components are; the sign is fixed.
    """
    energy = activations.double().square().sum(1)
    return _aligned(_first_component(activations), energy, activations)


@_cam("eigengradcam", "Eigen-Grad-CAM", "Gildenblat et al. 2021")
def eigen_grad_cam(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """Eigen-Grad-CAM: first principal component of the activations of a layer times gradients.

    The sign is chosen so that the map is positive where the products sum to positive evidence.

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


@_cam("kpcacam", "KPCA-CAM", "arXiv:2410.00267", kind="saliency")
def kpca_cam(activations: Float[Tensor, "b c y x"]) -> Float[Tensor, "b y x"]:
    """KPCA-CAM: first kernel principal component of the activations of a layer, without a class.

    The kernel of the centered activations p and q of two positions is tanh(p·q / c + 1), with c
    channels. It saturates, so that a few strong positions do not dominate the map.

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
    # Centering the kernel centers the features that it implies, without computing them.
    kernel = kernel - kernel.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(kernel - kernel.mean(2, keepdim=True))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    projection: Tensor = vectors[:, :, -1] * values[:, -1:].clamp(min=0).sqrt()
    return _aligned(projection, activations.double().square().sum(1), activations)


def _first_component(values: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n"]:
    """Return the projection of each position on the first principal component, up to sign."""
    flat = values.flatten(2).double()
    centered = flat - flat.mean(2, keepdim=True)
    _, sizes, directions = torch.linalg.svd(centered, full_matrices=False)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return sizes[:, :1] * directions[:, 0]


def _aligned(
    projection: Float[Tensor, "b n"], evidence: Float[Tensor, "b y x"], like: Tensor
) -> Float[Tensor, "b y x"]:
    """Return the positive part of a component, with its sign chosen to agree with the evidence."""
    flat = evidence.flatten(1)
    covariance = (projection * (flat - flat.mean(1, keepdim=True))).sum(1, keepdim=True)
    projection = torch.where(covariance < 0, -projection, projection).relu()
    return projection.to(at_least_float32(like)).view_as(evidence)


def weighted_sum(
    activations: Float[Tensor, "b c y x"], weights: Float[Tensor, "b c"]
) -> Float[Tensor, "b y x"]:
    """Return the positive part of the weighted sum of channels."""
    return torch.einsum("bcyx,bc->byx", activations, weights).relu()


def _of_class(_explained: Subject, target: object) -> str:
    """Return why a target is not a class; "" if it is one."""
    is_class = not (isinstance(target, DenseTarget) or is_function(target))
    return "" if is_class else "it compares classes, so that the target must be a class"


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

    Evidence shared with similar classes cancels. The most similar classes are those with the
    closest scores; they are averaged, weighted by their probabilities.

    Args:
        layers: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).
        num_references: Number of similar classes, at most all others.
        strength: Weight of the similar classes; 0 gives Grad-CAM.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Zhang et al. 2025, arXiv:2501.11309, with the weights of the authors' code. Deviation: the
        weights are treated as constants, without a gradient through the probabilities.
    """

    def difference(output: Any) -> Float[Tensor, " b"]:
        score = target(output)
        assert isinstance(target, Score)  # noqa: S101 - of a class
        scores = class_scores(output, layout=target.layout)
        distances = (scores - score[:, None]).detach().abs()
        distances = distances.scatter(1, target.indices(scores)[:, None], torch.inf)  # not itself
        count = min(num_references, scores.shape[1] - 1)
        similar = distances.argsort(dim=1, stable=True)[:, :count]
        weights = scores.detach().gather(1, similar).softmax(1)  # their probabilities, rescaled
        return score - strength * (weights * scores.gather(1, similar)).sum(1)

    return METHODS["gradcam"].function(subject, images, difference, layers=layers)


@method("scorecam", title="Score-CAM", paper="arXiv:1910.01279", needs="features")
def scorecam(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layers: Layer = -1,
    internal_batch_size: int | None = None,
) -> Float[Tensor, "b gy gx"]:
    """Score-CAM: channels of a layer weighted by the score of the image masked with each.

    The model runs once per channel that is not constant, on the image multiplied by the channel,
    scaled to [0, 1]; masked pixels get the mean color of the normalization.

    Args:
        target: Target to explain; for a class, its logit.
        layers: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).
        internal_batch_size: Images in one forward pass; None for as many as suit the device.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Wang et al. 2020, arXiv:1910.01279, algorithm 1.
    """
    feature_layer = resolve_feature_layer(subject, layers)
    activations, _ = layer_activations(subject, images, target, feature_layer)
    size = (images.shape[2], images.shape[3])
    rows = torch.arange(len(images))
    channels = _selected_first(activations.amax((2, 3)) > activations.amin((2, 3)))
    with frozen(subject.model), torch.no_grad():
        evaluate, count, _ = variant_scorer(
            subject, images, target, internal_batch_size=internal_batch_size
        )
        # Constant channels need no run: their mask of zeros leaves the mean color, which is 0 here.
        scores = evaluate(torch.zeros_like(images)[None]).T.repeat(1, activations.shape[1])
        for chunk in channels.split(count):
            placed = resample_to_input(activations[rows, chunk], size, feature_layer.margin)
            scores[rows, chunk] = evaluate(images * channel_masks(placed)[:, :, None])
    # The score of the baseline, equal for all channels, cancels in the softmax.
    activations = at_least_float32(activations)
    return weighted_sum(activations, scores.to(activations.dtype).softmax(1))


@method("ablationcam", title="Ablation-CAM", paper="Desai and Ramaswamy 2020", needs="features")
def ablationcam(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layers: Layer = -1,
    internal_batch_size: int = 512,
) -> Float[Tensor, "b gy gx"]:
    """Ablation-CAM: channels of a layer weighted by the drop of the score without each.

    The layers after it run once per channel that is not 0 everywhere. In transformers, prefix
    tokens keep their values.

    Args:
        target: Target to explain; for a class, its logit.
        layers: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).
        internal_batch_size: Feature maps in one forward pass; fewer if they are large, and at most
            32 if the whole model must run for each.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Desai and Ramaswamy 2020, "Ablation-CAM", WACV.
    """
    feature_layer = resolve_feature_layer(subject, layers)
    activations, called = layer_activations(subject, images, target, feature_layer)
    rows = torch.arange(len(images))
    channels = _selected_first(activations.any(3).any(2))
    output = subject.info.output
    single = not subject.independent or (is_function(target) and (output.key or output.error))

    def evaluate(chunk: Int[Tensor, "m b"], *, repeat: bool) -> Float[Tensor, "m b"]:
        """Return the scores without one channel of each image, for m choices of channels."""
        # Only later layers differ between channels, so that earlier ones run once if `repeat`:
        #
        #     b images --> layer --> b features --repeat--> m b features, without a channel each -->

        def ablate(features: Tensor) -> Tensor:
            copies = features.repeat(len(chunk) if repeat else 1, *[1] * (features.ndim - 1))
            grid = called.to_grid(copies)  # a view
            grid[torch.arange(len(grid)), chunk.flatten()] = 0
            return copies

        def once(_: Tensor) -> Any:
            return subject.forward(images)

        model = replace(subject, forward=once) if repeat else subject
        with replaced_output(subject, called, ablate):
            return evaluate_target(model, images.expand(len(chunk), *images.shape), target)

    with frozen(subject.model), torch.no_grad():
        score = evaluate_target(subject, images[None], target)[0]
        without = score[:, None].repeat(1, activations.shape[1])
        largest = max(1, _MAX_VALUES // activations[0].numel())
        # Values that bypass the layer (a skip connection, a stored size) are not repeated and then
        # do not fit: the whole model runs instead.
        for repeat, most in ((not single, largest), (False, _MAX_IMAGES)):
            size = 1 if single else max(1, min(internal_batch_size, most) // len(images))
            try:
                for chunk in channels.split(size):
                    without[rows, chunk] = evaluate(chunk, repeat=repeat)
                break
            except Exception:  # a model may check the shapes between its layers
                if not repeat:
                    raise
    return ablation_cam(activations, score, without)


def ablation_cam(
    activations: Float[Tensor, "b c y x"],
    score: Float[Tensor, " b"],
    scores_without: Float[Tensor, "b c"],
) -> Float[Tensor, "b y x"]:
    """Return the Ablation-CAM map: channels weighted by the relative score drop without each.

    Example:
        >>> activations = torch.tensor([[[[4.0, 0.0]], [[0.0, 4.0]]]])
        >>> ablation_cam(activations, torch.tensor([2.0]), torch.tensor([[1.0, 1.5]]))
        tensor([[[2., 1.]]])

    Source:
        Desai and Ramaswamy 2020, "Ablation-CAM", WACV. Deviation: relative to the
        absolute value of the score, so that a negative score does not reverse the map.
    """
    activations = at_least_float32(activations)
    size = torch.where(score == 0, 1.0, score.abs())[:, None]
    weights = (score[:, None] - scores_without) / size
    return weighted_sum(activations, weights.to(activations.dtype))


def channel_masks(resized: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Return channels min-max normalized to [0, 1], as masks; constant ones give zeros.

    Example:
        >>> channel_masks(torch.tensor([[[[1.0, 1.5, 2.5, 3.0]]]]))
        tensor([[[[0.0000, 0.2500, 0.7500, 1.0000]]]])

    Source:
        Wang et al. 2020, arXiv:1910.01279, algorithm 1.
    """
    low = resized.amin((2, 3), keepdim=True)
    high = resized.amax((2, 3), keepdim=True)
    return (resized - low) / torch.where(high > low, high - low, 1.0)


def _selected_first(selected: Bool[Tensor, "b c"]) -> Int[Tensor, "m b"]:
    """Return the selected channels of each image, padded with others to the same number."""
    order = selected.int().argsort(dim=1, descending=True, stable=True)
    return order[:, : int(selected.sum(1).max())].T


@contextmanager
def replaced_output(
    subject: Subject, layer: FeatureLayer, function: Callable[[Tensor], Tensor]
) -> Iterator[list[int]]:
    """Replace the output of a layer by a function of it within the context; yields the calls.

    The function maps the output to what the model continues with, in the layout of the layer. It is
    applied to every call, or only to `layer.call`, counted from 1; in a feature pyramid, to each
    level. The list is filled with the numbers of the calls to which it was applied.

    Raises:
        ValueError: If the layer does not run within the context.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> info = ModelInfo("tiny", "other", (2, 3), (0.5,), (0.5,), "none")
        >>> model = nn.Sequential(nn.ReLU(), nn.Flatten())
        >>> layer = FeatureLayer("0", "b c y x", (2, 3))
        >>> with replaced_output(Subject(model, info, model), layer, torch.neg):
        ...     model(torch.ones(1, 1, 2, 3))
        tensor([[-1., -1., -1., -1., -1., -1.]])
    """
    count, calls = 0, list[int]()

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        nonlocal count
        count += 1
        if layer.levels:
            calls.append(count)
            copied = type(output)(output)
            for key in layer.levels:
                copied[key] = function(output[key])
            return copied
        if layer.call not in (None, count) or (first := first_tensor(output)) is None:
            return output
        calls.append(count)
        key, tensor = first
        if key is None:  # the output is the tensor
            return function(tensor)
        if isinstance(output, MutableMapping):
            output[key] = function(tensor)
            return output
        parts, made = list(output), type(output)
        parts[key] = function(tensor)
        return made(*parts) if hasattr(output, "_fields") else made(parts)

    handle = subject.model.get_submodule(layer.site).register_forward_hook(in_this_run(hook))
    try:
        yield calls
    finally:
        handle.remove()
    if not calls:
        got = f"ran {count} times" if count else "did not run"
        raise ValueError(
            f"{layer.site} of {subject.info.name} must run and return features, but it {got}; "
            "choose another layer"
        )


def layer_activations(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layer: FeatureLayer,
) -> tuple[Float[Tensor, "b d gy gx"], FeatureLayer]:
    """Return the activations of a layer, and the layer with the call that they are from.

    Without `layer.call`, the last call counts.

    Raises:
        ValueError: If the layer is a feature pyramid, does not run, or has another layout.
    """
    if layer.levels:
        raise ValueError(
            f"{layer.site} of {subject.info.name} returns {len(layer.levels)} levels of a "
            "feature pyramid; use gradcam, gradcam++, layercam or hirescam, which sum over levels, "
            "or select a single layer with layers="
        )
    outputs: list[Tensor] = []

    def keep(output: Tensor) -> Tensor:
        outputs.append(output.clone())  # the model may overwrite it
        return output

    with frozen(subject.model), torch.no_grad(), replaced_output(subject, layer, keep) as calls:
        target(subject.forward(images))
    return layer.to_grid(outputs[-1]), replace(layer, call=calls[-1])


def activations_and_gradients(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layer: FeatureLayer,
) -> list[tuple[Float[Tensor, "b d gy gx"], Float[Tensor, "b d gy gx"]]]:
    """Return the activations of a layer, and the gradient of a target with respect to them.

    The backward pass stops at the layer, and parameters get no gradient. If the layer is called
    several times, `layer.call` or else the last call counts. For a feature pyramid, the list has an
    item for each level that the target depends on.

    Raises:
        ValueError: If the layer does not run, or the target does not depend on it.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(12, 5))
        >>> layer = FeatureLayer("0", "b c y x", (2, 3))
        >>> info = ModelInfo("tiny", "other", (2, 3), (0.5,), (0.5,), "none")
        >>> subject, target = Subject(model, info, model), lambda scores: scores[:, 4]
        >>> [(_, gradients)] = activations_and_gradients(
        ...     subject, torch.zeros(1, 1, 2, 3), target, layer)
        >>> torch.equal(gradients.flatten(), model[2].weight[4])
        True
    """
    leaves: list[Tensor] = []

    def start_graph(output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1].clone()  # in-place operations may overwrite it

    with frozen(subject.model):
        with replaced_output(subject, layer, start_graph):
            values = target(subject.forward(images))
        leaves = leaves[-max(len(layer.levels), 1) :]
        gradients: Sequence[Tensor | None] = [None] * len(leaves)
        if values.requires_grad:
            gradients = grad(values.sum(), leaves, allow_unused=True)
    pairs = zip(leaves, gradients, strict=True)
    levels = [(leaf.detach(), each.detach()) for leaf, each in pairs if each is not None]
    if not levels:
        raise ValueError(
            "the target of a class activation map must depend on the layer, but it does not depend "
            f"on {layer.site or 'the output'} of {subject.info.name}; choose another layer"
        )
    if layer.levels:
        return levels
    return [(layer.to_grid(leaf), layer.to_grid(each)) for leaf, each in levels]
