"""What a score makes of each pixel: its gradient, as it is, averaged under noise, or summed up."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.perturbation import Fill, filled
from visattn.attribution.target_scores import answers, variants_at_once
from visattn.attribution.targets import Target
from visattn.functional.numerics import gauss_legendre
from visattn.recording.frozen_model import asked, frozen
from visattn.recording.model_info import ExplainedModel


def input_gradient(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    signed: bool = False,
) -> Float[Tensor, "b y x"]:
    """Return how much the target would change with each pixel.

    It asks nothing of the model but a gradient, and so shows also where a model looks that has no
    map of its own.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        signed: Return the sum over colors, instead of the largest without its sign.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> card = ModelInfo("tiny", "other", (1, 2), (0.5,), (0.5,), "none")
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 3))
        >>> found = input_gradient(
        ...     ExplainedModel(model, card, model), torch.zeros(1, 1, 1, 2), lambda scores:
        scores[:, 1])
        >>> torch.equal(found[0, 0], model[1].weight[1].abs())
        True

    Source:
        Simonyan, Vedaldi and Zisserman 2013, arXiv:1312.6034, section 3.1.
    """
    with frozen(subject.model):
        return _of_colors(_gradients(subject, asked(images[None]), target)[0], signed=signed)


def smoothgrad(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    samples: int = 25,
    noise: float = 0.15,
    signed: bool = False,
    seed: int = 0,
    chunk: int = 32,
) -> Float[Tensor, "b y x"]:
    """Return the mean of the gradient over noisy copies of each image.

    All images get the same noise, so that none depends on the others.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        samples: Noisy copies.
        noise: Its standard deviation, as a share of what lies between the lowest and the highest
            number of the image.
        signed: Return the sum over colors, instead of the largest without its sign.
        seed: Of the noise.
        chunk: Images that the model sees at once.

    Raises:
        ValueError: If there are no samples, the noise is negative, or the target has no gradient.

    Source:
        Smilkov et al. 2017, arXiv:1706.03825, section 3.
    """
    if samples < 1 or not noise >= 0:
        raise ValueError(
            f"samples must be at least 1 and noise at least 0, got {samples=}, {noise=}"
        )
    drawn = torch.Generator().manual_seed(seed)
    span = images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True)
    total = torch.zeros_like(images)
    with frozen(subject.model):
        _settle(subject, images, target)
        for count in _counts(samples, chunk, images):
            off = [torch.randn(images.shape[1:], generator=drawn) for _ in range(count)]
            noisy = images + noise * span * torch.stack(off)[:, None].to(images)
            total += _gradients(subject, asked(noisy), target).sum(0)
    return _of_colors(total / samples, signed=signed)


def integrated_gradients(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    steps: int = 50,
    fill: Fill = "mean",
    signed: bool = True,
    chunk: int = 32,
) -> Float[Tensor, "b y x"]:
    """Return what each pixel adds to the target on the straight way from an empty image.

    With signs, all pixels together sum to what the target differs from that of the empty image.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        steps: Places on the way, those of Gauss and Legendre.
        fill: The color of the empty image: `mean`, `black` or `white`.
        signed: Whether to sum over colors; otherwise the largest without its sign is returned.
        chunk: Images that the model sees at once.

    Raises:
        ValueError: If there are no steps, no such color, or the target has no gradient.

    Source:
        Sundararajan, Taly and Yan 2017, arXiv:1703.01365, equation 1.
    """
    empty = filled(images, subject.card, fill)
    way = images - empty
    nodes = [one.to(images).view(-1, 1, 1, 1, 1) for one in gauss_legendre(steps)]
    total = torch.zeros_like(images)
    with frozen(subject.model):
        _settle(subject, images, target)
        counts = _counts(steps, chunk, images)
        for place, weight in zip(*(one.split(counts) for one in nodes), strict=True):
            found = _gradients(subject, asked(empty + place * way), target)
            total += (weight * found).sum(0)
    return _of_colors(way * total, signed=signed)


def _settle(subject: ExplainedModel, images: Tensor, target: Target) -> None:
    """Let the target see the images as they are, before what is made of them."""
    with torch.no_grad():
        answers(subject, images[None], target)


def _counts(count: int, chunk: int, images: Tensor) -> list[int]:
    """Return how many variants of all images the model sees at once, one time after the other."""
    most = variants_at_once(chunk, images)
    return [min(most, count - done) for done in range(0, count, most)]


def _gradients(
    subject: ExplainedModel, variants: Float[Tensor, "m b c y x"], target: Target
) -> Float[Tensor, "m b c y x"]:
    values = answers(subject, variants, target)
    if not values.requires_grad:
        raise ValueError(
            f"the target of {subject.card.name} has no gradient with respect to the images; "
            "is something in the model or the target detached? RISE and occlusion need none"
        )
    return torch.autograd.grad(values.sum(), variants)[0]


def _of_colors(values: Float[Tensor, "b c y x"], *, signed: bool) -> Float[Tensor, "b y x"]:
    return values.sum(1) if signed else values.abs().amax(1)
