"""Gradient methods with respect to the input: saliency, gradient × input, SmoothGrad, IG."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.perturbation import (
    Baseline,
    VariantScorer,
    baseline_image,
    variant_scorer,
)
from visattn.attribution.registry import method
from visattn.attribution.targets import Target
from visattn.recording.frozen import frozen, with_grad
from visattn.recording.subject import Subject


@method("input_gradient", title="Input gradient", paper="arXiv:1312.6034", needs="gradient")
def input_gradient(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    signed: bool = False,
) -> Float[Tensor, "b y x"]:
    """Saliency: the gradient of the target with respect to each pixel.

    It only requires a differentiable model, and therefore applies to models without attention and
    feature layers too.

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
        seed: Of the noise.
        internal_batch_size: Images in one forward pass; None for as many as suit the memory.

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
        internal_batch_size: Images in one forward pass; None for as many as suit the memory.

    Source:
        Sundararajan, Taly and Yan 2017, arXiv:1703.01365, equation 1.
    """
    baseline = baseline_image(images, subject.info, baselines)
    difference = images - baseline
    points, weights = np.polynomial.legendre.leggauss(n_steps)  # of an integral from -1 to 1
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
