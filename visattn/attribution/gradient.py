"""Gradient methods: saliency, gradient × input, SmoothGrad, Integrated Gradients, FullGrad."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from visattn.attribution.perturbation import (
    Baseline,
    VariantScorer,
    baseline_image,
    variant_scorer,
)
from visattn.attribution.registry import method
from visattn.attribution.targets import Target
from visattn.functional.numerics import at_least_float32
from visattn.recording.frozen import first_weight, frozen, with_grad
from visattn.recording.outputs import output_tensors
from visattn.recording.places import CellStrides
from visattn.recording.subject import Subject
from visattn.results.attention_map import resample_to_input

_COMPLETENESS = 1e-3  # relative to the sum of the absolute parts
_COVERED = (
    "it must consist of convolutions, linear layers, batch normalization, pooling and elementwise "
    "activations, but gradients times input and biases do not sum to its output"
)
# ReLU and leaky ReLU equal slope times input, so they have no implicit bias; ReLU6 has, above 6.
_ACTIVATIONS = frozenset(
    {"gelu", "silu", "mish", "elu", "celu", "selu", "hardswish", "softplus", "relu6", "hardtanh"}
    | {"sigmoid", "tanh", "hardsigmoid"}
)


@method("input_gradient", title="Input gradient", paper="arXiv:1312.6034", needs="gradient")
def input_gradient(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    signed: bool = False,
) -> Float[Tensor, "b y x"]:
    """Saliency: the gradient of the target with respect to each pixel.

    It works for any differentiable model.

    Args:
        signed: Return the sum over channels, instead of the maximum absolute value.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> info = ModelInfo("tiny", "other", (1, 2), (0.5,), (0.5,), "none")
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 3))
        >>> subject = Subject(model, info, model)
        >>> image = torch.zeros(1, 1, 1, 2)
        >>> saliency = input_gradient(subject, image, lambda scores: scores[:, 1])
        >>> torch.equal(saliency[0, 0], model[1].weight[1].abs())
        True

    Source:
        Simonyan, Vedaldi and Zisserman 2013, arXiv:1312.6034, section 3.1.
    """
    return _reduce_channels(_input_gradient(subject, images, target), signed=signed)


@method(
    "input_x_gradient",
    title="Gradient × input",
    paper="arXiv:1605.01713",
    needs="gradient",
    signed=True,
)
def input_x_gradient(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    signed: bool = True,
) -> Float[Tensor, "b y x"]:
    """Gradient × input: the contribution of each pixel to a linear approximation of the target.

    The input is the normalized image, so that a pixel of the mean color contributes nothing.

    Args:
        signed: Return the sum over channels, instead of the maximum absolute value.

    Source:
        Shrikumar et al. 2016, arXiv:1605.01713, section 2.
    """
    gradient = _input_gradient(subject, images, target)
    return _reduce_channels(images * gradient, signed=signed)


@method("smoothgrad", title="SmoothGrad", paper="arXiv:1706.03825", needs="gradient")
def smoothgrad(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    num_samples: int = 25,
    stdev_spread: float = 0.15,
    signed: bool = False,
    seed: int = 0,
    internal_batch_size: int | None = None,
) -> Float[Tensor, "b y x"]:
    """SmoothGrad: the mean gradient over noisy copies of each image.

    All images get the same noise, so that the map of an image does not depend on its batch.

    Args:
        num_samples: Noisy copies of each image.
        stdev_spread: Standard deviation of the noise, relative to the range (max - min) of the
            image.
        signed: Return the sum over channels, instead of the maximum absolute value.
        seed: Random seed of the noise.
        internal_batch_size: Images in one forward pass; None chooses it for the device.

    Source:
        Smilkov et al. 2017, arXiv:1706.03825, section 3.
    """
    random = torch.Generator().manual_seed(seed)
    spread = images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True)
    total = torch.zeros_like(images)
    with frozen(subject.model):
        scorer, chunk, _ = variant_scorer(
            subject, images, target, internal_batch_size=internal_batch_size, backward=True
        )
        for start in range(0, num_samples, chunk):
            count = min(chunk, num_samples - start)
            noise = [torch.randn(images.shape[1:], generator=random) for _ in range(count)]
            noisy = images + stdev_spread * spread * torch.stack(noise).to(images)[:, None]
            total += _gradients(noisy, scorer).sum(0)
    return _reduce_channels(total / num_samples, signed=signed)


@method(
    "integrated_gradients",
    title="Integrated Gradients",
    paper="arXiv:1703.01365",
    needs="gradient",
    signed=True,
)
def integrated_gradients(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    n_steps: int = 50,
    baselines: Baseline = "mean",
    signed: bool = True,
    internal_batch_size: int | None = None,
) -> Float[Tensor, "b y x"]:
    """Integrated Gradients: gradients integrated along the straight path from a baseline.

    Signed attributions sum to the difference of the target between image and baseline
    (completeness).

    Args:
        n_steps: Points of the Gauss-Legendre quadrature.
        baselines: Color of the baseline image: `mean`, `black` or `white`.
        signed: Return the sum over channels, instead of the maximum absolute value.
        internal_batch_size: Images in one forward pass; None chooses it for the device.

    Source:
        Sundararajan, Taly and Yan 2017, arXiv:1703.01365, equation 1.
    """
    baseline = baseline_image(images, subject.info, baselines)
    difference = images - baseline
    points, weights = np.polynomial.legendre.leggauss(n_steps)  # on [-1, 1]
    alphas, weights = (
        torch.from_numpy(values).to(images).view(-1, 1, 1, 1, 1)
        for values in ((points + 1) / 2, weights / 2)
    )
    total = torch.zeros_like(images)
    with frozen(subject.model):
        scorer, chunk, _ = variant_scorer(
            subject, images, target, internal_batch_size=internal_batch_size, backward=True
        )
        for alpha, weight in zip(alphas.split(chunk), weights.split(chunk), strict=True):
            path = baseline + alpha * difference
            total += (weight * _gradients(path, scorer)).sum(0)
    return _reduce_channels(difference * total, signed=signed)


def _input_gradient(
    subject: Subject, images: Float[Tensor, "b c y x"], target: Target
) -> Float[Tensor, "b c y x"]:
    """Return the gradient of the target with respect to images."""
    with frozen(subject.model):
        inputs = with_grad(images)
        [gradient] = torch.autograd.grad(target(subject.forward(inputs)).sum(), inputs)
    return gradient


def _gradients(
    variants: Float[Tensor, "m b c y x"], scorer: VariantScorer
) -> Float[Tensor, "m b c y x"]:
    """Return the gradient of scores with respect to variants of images."""
    variants = with_grad(variants)
    return torch.autograd.grad(scorer(variants).sum(), variants)[0]


def _reduce_channels(
    attributions: Float[Tensor, "b c y x"], *, signed: bool
) -> Float[Tensor, "b y x"]:
    return attributions.sum(1) if signed else attributions.abs().amax(1)


def contribution_map(contributions: Float[Tensor, "b c y x"]) -> Float[Tensor, "b y x"]:
    """Return the contributions of a layer as a map: absolute, normalized, summed over channels.

    Each image is normalized to [0, 1] over all channels and positions; equal values give zeros.

    Example:
        >>> contribution_map(torch.tensor([[[[0.0, -1.0]], [[4.0, 2.0]]]]))
        tensor([[[1.0000, 0.7500]]])

    Source:
        Srinivas and Fleuret 2019, arXiv:1905.00780, section 4, the post-processing of FullGrad.
    """
    sizes = at_least_float32(contributions).abs()
    low = sizes.amin((1, 2, 3), keepdim=True)
    high = sizes.amax((1, 2, 3), keepdim=True)
    return ((sizes - low) / torch.where(high > low, high - low, 1.0)).sum(1)


def _incomplete(subject: Subject, _target: object) -> str:
    """Return why gradients times input and biases do not sum to the score; "" if they do.

    It is tested on a noise image, for the sum of all outputs.
    """
    size = (1, len(subject.info.mean), *subject.info.input_size)
    noise = torch.randn(size, generator=torch.Generator().manual_seed(0))

    def total(output: Any) -> Tensor:
        parts = [tensor for tensor in output_tensors(output) if tensor.is_floating_point()]
        return torch.stack([tensor.sum() for tensor in parts]).sum()[None]

    try:
        noise = noise.to(first_weight(subject.model))
        value, parts, _ = _parts(subject, noise, total)
    except (RuntimeError, ValueError):  # from operations without a gradient
        return "its output has no gradient on an image of noise"
    sums = torch.stack([part.double().sum() for part in parts])
    error = (value.double() - sums.sum()).abs()
    return "" if bool(error <= _COMPLETENESS * sums.abs().sum()) else _COVERED


@method("fullgrad", title="FullGrad", paper="arXiv:1905.00780", needs="features", check=_incomplete)
def fullgrad(
    subject: Subject, images: Float[Tensor, "b c y x"], target: Target
) -> Float[Tensor, "b y x"]:
    """FullGrad: gradients times input, and gradients times biases of all layers.

    For CNNs of convolutions, batch normalization, pooling and elementwise activations these parts
    sum to the score; other models are not supported. The implicit bias of an activation is its
    value minus slope times input. The map is the sum of the absolute parts, normalized per layer.

    Source:
        Srinivas and Fleuret 2019, arXiv:1905.00780, definition 1 and section 4.
    """
    _, parts, strides = _parts(subject, images, target)
    size = (images.shape[2], images.shape[3])
    maps = torch.zeros_like(images[:, 0])
    for part in parts:
        if part.ndim == 4:  # others have no positions
            margin = strides.margin((part.shape[2], part.shape[3]), size)
            maps += resample_to_input(contribution_map(part), size, margin)
    return maps


def _parts(
    subject: Subject, images: Float[Tensor, "b c y x"], target: Target
) -> tuple[Float[Tensor, " b"], list[Tensor], CellStrides]:
    """Return the values of a target, and gradients times input and biases of each layer."""
    strides = CellStrides()
    with frozen(subject.model):  # also for the backward pass, which reruns checkpointed blocks
        with strides.watching(subject.model), _Biases() as biases:
            inputs = with_grad(images)
            values = target(subject.forward(inputs))
        edges: list[Any] = [inputs, *(edge for edge, _ in biases.found)]
        gradients = torch.autograd.grad(values.sum(), edges, allow_unused=True)
    factors = [images, *(bias for _, bias in biases.found)]
    pairs = zip(factors, gradients, strict=True)
    parts = [(factor * each).detach() for factor, each in pairs if each is not None]
    return values.detach(), parts, strides


class _Biases(TorchFunctionMode):
    """Collects the output edge of each layer, with the (implicit) bias of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[GradientEdge, Tensor]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function."""
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        bias: Tensor | None = None
        if name in ("conv2d", "conv_transpose2d", "linear", "batch_norm"):
            bias = func(torch.zeros_like(args[0][:1]), *args[1:], **kwargs).detach()
        elif name.rstrip("_") in _ACTIVATIONS:  # value minus slope times input
            leaf = args[0].detach().clone().requires_grad_()
            value = func(leaf.clone(), *args[1:], **kwargs)  # a clone, for in-place activations
            [slope] = torch.autograd.grad(value.sum(), leaf)
            bias = value.detach() - slope * leaf.detach()
        output = func(*args, **kwargs)
        if bias is not None and output.requires_grad:
            self.found.append((get_gradient_edge(output), bias))
        return output
