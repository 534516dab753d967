"""Images of any size as a model wants them, each with the way back to the original."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from torch import Tensor, nn

from visattn.data.images.reader import LoadedImage, read_image
from visattn.data.images.resize import ResizeSpec, frame
from visattn.geometry.affine import Geometry
from visattn.geometry.preprocessing import followed
from visattn.models.captioner import Captioner
from visattn.models.classifier import ImageClassifier
from visattn.models.encoder import ImageEncoder
from visattn.pipelines.captioning import Fit, ImageLike
from visattn.recording.model_info import ExplainedModel


@dataclass(frozen=True, eq=False)
class Prepared:
    """Images on their way into a model.

    Args:
        inputs: Normalized, on the device of the model.
        geometries: Where each lies on its original.
        read: The originals, upright.
    """

    inputs: Float[Tensor, "b c y x"]
    geometries: tuple[Geometry, ...]
    read: tuple[LoadedImage, ...]


def prepared(
    subject: ExplainedModel,
    images: Iterable[ImageLike] | ImageLike,
    *,
    transform: Any = None,
    fit: Fit | None = None,
) -> Prepared:
    """Return images as a model wants them, each with the way back to the original.

    A model of visattn's normalizes images itself, one of timm brings its own preprocessing.
    For others the shorter side is resized, the middle cut out, and colors normalized as the card
    says; of torchvision's the shorter side is first 8/7 as long, as with most of its weights.

    Args:
        subject: The model and its card.
        images: One image or several: files, bytes, PIL images or RGB arrays, of any size.
        transform: The preprocessing to take in place of the model's: steps of torchvision or timm,
            which end in normalized tensors.
        fit: How images are made to fit in place of the model's own way: their middle (`crop`),
            all of it out of shape (`squash`), or all of it with margins (`pad`).

    Raises:
        ImageError: If an image cannot be read.
        ValueError: If there is no image, both a transform and a fit are given, a step of the
            transform is unknown, or what it gives is no tensor of one size for all.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> card = ModelInfo("net", "other", (32, 48), (0.5,) * 3, (0.5,) * 3, "none")
        >>> subject = ExplainedModel(torch.nn.Identity(), card, lambda images: images.mean((2, 3)))
        >>> made = prepared(subject, np.full((64, 64, 3), 255, np.uint8), fit="pad")
        >>> made.inputs.shape, made.inputs.amax().item(), made.geometries[0].input_size
        (torch.Size([1, 3, 32, 48]), 1.0, (32, 48))
    """
    if transform is None and fit is None and subject.card.source == "timm":
        transform = _timm_transform(subject)
    if transform is not None:
        return transformed(subject.model, images, transform, fit=fit)
    read = _read(images)
    inputs, geometries = _framed(subject, read, fit)
    return Prepared(_beside(inputs, subject.model), geometries, read)


def transformed(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    transform: Any,
    *,
    fit: Fit | None = None,
) -> Prepared:
    """Return images as a transform makes them, each with the way back to the original.

    Args:
        model: On whose device they are to be.
        images: One image or several: files, bytes, PIL images or RGB arrays, of any size.
        transform: Steps of torchvision or timm, which end in normalized tensors.
        fit: None: a transform says itself how images come to fit.

    Raises:
        ImageError: If an image cannot be read.
        ValueError: If there is no image, a fit is given too, a step of the transform is unknown,
            or what it gives is no tensor of one size for all.

    Example:
        >>> from torchvision.transforms import v2
        >>> steps = v2.Compose([v2.ToImage(), v2.Resize((3, 5)), v2.ToDtype(torch.float32)])
        >>> transformed(nn.Identity(), np.zeros((6, 9, 3), np.uint8), steps).inputs.shape
        torch.Size([1, 3, 3, 5])
    """
    if fit is not None:
        raise ValueError(
            f"a transform says itself how images come to fit, got fit={fit!r} too: drop one"
        )
    read = _read(images)
    inputs, geometries = _transformed(transform, read)
    return Prepared(_beside(inputs, model), geometries, read)


def _read(images: Iterable[ImageLike] | ImageLike) -> tuple[LoadedImage, ...]:
    one = isinstance(images, (str, os.PathLike, bytes, Image.Image, np.ndarray, LoadedImage))
    read = tuple(read_image(image) for image in ([images] if one else images))
    if not read:
        raise ValueError("there must be at least one image, got none")
    return read


def _beside(inputs: Tensor, model: nn.Module) -> Tensor:
    """Return inputs on the device of a model, and of its precision."""
    weight = next(model.parameters(), None)
    if weight is None:
        return inputs
    return inputs.to(weight.device, weight.dtype if weight.is_floating_point() else None)


def _timm_transform(subject: ExplainedModel) -> Any:
    """Return timm's preprocessing for evaluation, with the size and colors of the card."""
    card = subject.card
    config = resolve_model_data_config(subject.model)
    config.update(input_size=(len(card.mean), *card.size), mean=card.mean, std=card.std)
    return create_transform(**config)


def _transformed(
    transform: Any, read: tuple[LoadedImage, ...]
) -> tuple[Float[Tensor, "b c y x"], tuple[Geometry, ...]]:
    """Run a transform on each image."""
    made: list[Tensor] = []
    geometries: list[Geometry] = []
    for image in read:
        output, geometry = followed(transform, Image.fromarray(image.pixels), image.orientation)
        if not isinstance(output, Tensor) or output.ndim != 3 or not output.is_floating_point():
            given = f"{output.dtype} " if isinstance(output, Tensor) else ""
            raise ValueError(
                "the transform must end in tensors of floats [c, y, x], got "
                f"{given}{type(output).__name__}; add ToTensor() and Normalize(mean, std)"
            )
        if made and output.shape != made[0].shape:
            raise ValueError(
                f"the transform must give one size for all, got {tuple(made[0].shape)} and "
                f"{tuple(output.shape)} of {image.name}; end it in CenterCrop(size) or "
                "Resize((height, width)), or hand over one image at a time"
            )
        made.append(output.as_subclass(Tensor))
        geometries.append(geometry)
    return torch.stack(made), tuple(geometries)


def _framed(
    subject: ExplainedModel, read: tuple[LoadedImage, ...], fit: Fit | None
) -> tuple[Float[Tensor, "b c y x"], tuple[Geometry, ...]]:
    """Fit images into the frame of the card, and normalize their colors."""
    card, model = subject.card, subject.model
    network = model.encoder if isinstance(model, Captioner) else model
    ours = network if isinstance(network, ImageClassifier | ImageEncoder) else None
    shorter = None
    if fit is None and card.source == "torchvision":
        shorter = round(min(card.size) * 8 / 7)
    framing = ResizeSpec(
        card.size, fit or "crop", shorter, fill=_bars(subject, own=ours is not None)
    )
    gray = ours is None and len(card.mean) == 1
    framed = [frame(_grayed(image) if gray else image, framing) for image in read]
    pixels = torch.stack([pixels for pixels, _ in framed])
    geometries = tuple(geometry for _, geometry in framed)
    if ours is not None:
        return ours.normalized(pixels.to(ours.shift.device)), geometries
    if len(card.mean) not in (1, 3):
        raise ValueError(
            f"{card.name} takes images of {len(card.mean)} channels, but photos have 3, or 1 if "
            "they are gray; make the tensors yourself and record the model"
        )
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (card.mean, card.std))
    return (pixels[:, : len(mean)] / 255 - mean) / std, geometries


def _bars(subject: ExplainedModel, *, own: bool) -> tuple[int, int, int]:
    """Return the color of margins: that which the model knows, or that which it takes for zero."""
    if own:
        level = round(255 * getattr(subject.model, "background", 0.0))
        return level, level, level
    levels = [round(255 * min(max(value, 0.0), 1.0)) for value in subject.card.mean]
    return levels[0], levels[len(levels) // 2], levels[-1]


def _grayed(image: LoadedImage) -> LoadedImage:
    """Return an image without color, as Pillow makes it gray."""
    gray = Image.fromarray(image.pixels).convert("L").convert("RGB")
    return LoadedImage(np.array(gray), image.orientation, image.name)
