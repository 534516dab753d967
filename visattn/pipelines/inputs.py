"""Preprocessing of images for a model, with the geometry back to the originals."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from torch import Tensor, nn

from visattn.geometry.affine import Geometry
from visattn.geometry.preprocessing import (
    ReverseChannels,
    UnsupportedTransform,
    transform_with_geometry,
)
from visattn.images.reader import ImageLike, LoadedImage, list_images, read_image
from visattn.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.models.backbones.huggingface import is_image_processor, processor_transform
from visattn.models.base import DenseModel, ImageClassifier, ImageEncoder
from visattn.models.captioning.captioner import Captioner
from visattn.recording.model_info import ExplainedModel


@dataclass(frozen=True, eq=False)
class PreparedImages:
    """Preprocessed images.

    Args:
        inputs: Normalized images, on the device and in the dtype of the model.
        geometries: Geometry of each input on its original.
        originals: The original images, upright.
        preprocessing: What was done to them, for the info of maps: `size`, `resize`, `mean`,
            `std`, and where mean and std come from as `source`.
    """

    inputs: Float[Tensor, "b c y x"]
    geometries: tuple[Geometry, ...]
    originals: tuple[LoadedImage, ...]
    preprocessing: Mapping[str, Any] = field(default_factory=dict)

    def select(self, indices: Sequence[int]) -> "PreparedImages":
        """Return some of the images, in the order of their indices."""
        return PreparedImages(
            self.inputs[list(indices)],
            tuple(self.geometries[index] for index in indices),
            tuple(self.originals[index] for index in indices),
            self.preprocessing,
        )


def prepare_images(
    explained: ExplainedModel,
    images: Iterable[ImageLike] | ImageLike,
    *,
    transform: Any = None,
    resize_mode: ResizeMode | None = None,
) -> PreparedImages:
    """Return images preprocessed for a model, with the geometry back to the originals.

    Models of visattn normalize images themselves; timm models have their own preprocessing. For
    others the shorter side is resized to the input size (torchvision: to 8/7 of it, as for most of
    its weights), the center is cropped, and colors are normalized with the mean and standard
    deviation of the model metadata.

    Args:
        explained: The model with its metadata.
        images: One image or several: files, bytes, PIL images or RGB arrays, of any size.
        transform: Preprocessing in place of that of the model: steps of torchvision or timm, which
            end in normalized tensors.
        resize_mode: How images get the shape of the input, in place of the preprocessing of the
            model: central `crop`, `squash`, or `pad`.

    Raises:
        ImageError: If an image cannot be read.
        ValueError: If there is no image, both `transform` and `resize_mode` are passed, a step of
            the transform is not supported, or its outputs are not tensors of one size; or if the
            model needs a transform.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> info = ModelInfo("net", "other", (32, 48), (0.5,) * 3, (0.5,) * 3, "none")
        >>> forward = lambda images: images.mean((2, 3))
        >>> explained = ExplainedModel(torch.nn.Identity(), info, forward)
        >>> photo = np.full((64, 64, 3), 255, np.uint8)
        >>> batch = prepare_images(explained, photo, resize_mode="pad")
        >>> batch.inputs.shape, batch.inputs.amax().item(), batch.geometries[0].input_size
        (torch.Size([1, 3, 32, 48]), 1.0, (32, 48))
    """
    info = explained.info
    if transform is not None:
        return transform_images(explained.model, images, transform, resize_mode=resize_mode)
    if info.preprocessing_error:
        raise ValueError(
            f"the colors that {info.name} takes are not known: {info.preprocessing_error}; pass "
            "its preprocessing, transform=, or the image processor of its weights, processor="
        )
    if resize_mode is None and info.library == "timm":
        own_steps = _timm_transform(explained)
        batch = transform_images(explained.model, images, own_steps)
        return replace(batch, preprocessing=_describe(explained, batch.inputs, "timm"))
    originals = _read_images(images)
    inputs, geometries = _resize_and_normalize(explained, originals, resize_mode)
    return PreparedImages(
        _like_weights(inputs, explained.model),
        geometries,
        originals,
        _describe(explained, inputs, resize_mode or "crop"),
    )


def _describe(explained: ExplainedModel, inputs: Tensor, resize: str) -> dict[str, Any]:
    """Return the preprocessing of a model for the info of maps."""
    info = explained.info
    return {
        "size": [inputs.shape[2], inputs.shape[3]],
        "resize": resize,
        "mean": list(info.mean),
        "std": list(info.std),
        "source": info.colors,
    }


def transform_images(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    transform: Any,
    *,
    resize_mode: ResizeMode | None = None,
) -> PreparedImages:
    """Return images preprocessed by a transform, on the device and in the dtype of the model.

    Arguments as for `prepare_images`; a `resize_mode` is refused, as the transform resizes.

    Raises:
        ImageError: If an image cannot be read.
        ValueError: If there is no image, `resize_mode` is passed, a step of the transform is not
            supported, or its outputs are not tensors of one size.

    Example:
        >>> from torchvision.transforms import v2
        >>> steps = v2.Compose([v2.ToImage(), v2.Resize((3, 5)), v2.ToDtype(torch.float32)])
        >>> transform_images(nn.Identity(), np.zeros((6, 9, 3), np.uint8), steps).inputs.shape
        torch.Size([1, 3, 3, 5])
    """
    if resize_mode is not None:
        raise ValueError(
            f"the transform resizes images, got resize_mode={resize_mode!r} too: pass only one"
        )
    originals = _read_images(images)
    inputs, geometries = _apply_transform(transform, originals)
    described: dict[str, Any] = {"size": [inputs.shape[2], inputs.shape[3]], "resize": "transform"}
    colors = [_step_colors(step) for step in _steps(transform)]
    # The last step that normalizes, or None.
    [*_, last] = [None, *filter(None, colors)]
    mean, std = last or (None, None)
    described |= {"mean": mean, "std": std, "source": "transform"}
    return PreparedImages(_like_weights(inputs, model), geometries, originals, described)


def followed_transform(transform: Any) -> Any:
    """Return a transform; for an image processor of transformers, the transform that equals it.

    Raises:
        ValueError: If the processor takes steps that have no counterpart.
    """
    return processor_transform(transform) if is_image_processor(transform) else transform


def transform_colors(transform: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and std that a transform normalizes colors with.

    Raises:
        ValueError: If it changes colors in another way, or is not supported.

    Example:
        >>> from torchvision.transforms import v2
        >>> transform_colors(v2.Compose([v2.Resize(5), v2.Normalize((0.5,), (0.25,))]))
        ((0.5,), (0.25,))
    """
    if isinstance(transform, UnsupportedTransform):
        raise ValueError(transform.reason)  # noqa: TRY004 - of the preprocessing of a model
    steps = list(_steps(transform))
    colors = [pair for step in steps if (pair := _step_colors(step)) is not None]
    if len(colors) > 1 or any(isinstance(step, ReverseChannels) for step in steps):
        raise ValueError(
            "the preprocessing of the model changes colors in another way than by one mean and "
            "std, so that it cannot be resized otherwise: leave out img_size and resize_mode, or "
            "pass transform="
        )
    [(mean, std)] = colors or [([0.0] * 3, [1.0] * 3)]
    return tuple(mean), tuple(std)


def with_colors(
    explained: ExplainedModel, mean: tuple[float, ...], std: tuple[float, ...]
) -> ExplainedModel:
    """Return an analyzed model whose images are normalized with another mean and std."""
    info = replace(explained.info, mean=mean, std=std, preprocessing_error="")
    return replace(explained, info=replace(info, colors="preprocessing that was loaded"))


def _step_colors(step: Any) -> tuple[list[float], list[float]] | None:
    """Return the mean and std of a step that normalizes; None for another one."""
    if not (hasattr(step, "mean") and hasattr(step, "std")):
        return None
    mean, std = (torch.as_tensor(values).flatten() for values in (step.mean, step.std))
    return mean.double().tolist(), std.double().tolist()


def _steps(transform: Any) -> Iterator[Any]:
    """Yield the steps of a transform of torchvision or timm."""
    steps = getattr(transform, "transforms", transform)
    if isinstance(steps, (list, tuple, nn.Sequential)):
        for step in steps:
            yield from _steps(step)
    else:
        yield transform


def _read_images(images: Iterable[ImageLike] | ImageLike) -> tuple[LoadedImage, ...]:
    originals = tuple(read_image(image) for image in list_images(images))
    if not originals:
        raise ValueError("there must be at least one image, got none")
    return originals


def _like_weights(inputs: Tensor, model: nn.Module) -> Tensor:
    """Return inputs on the device and in the dtype of the model."""
    weight = next(model.parameters(), None)
    if weight is None:
        return inputs
    return inputs.to(weight.device, weight.dtype if weight.is_floating_point() else None)


def _timm_transform(explained: ExplainedModel) -> Any:
    """Return timm's evaluation transform with the size and colors of the metadata."""
    info = explained.info
    config = resolve_model_data_config(explained.model)
    config.update(input_size=(len(info.mean), *info.input_size), mean=info.mean, std=info.std)
    return create_transform(**config)


def _apply_transform(
    transform: Any, originals: tuple[LoadedImage, ...]
) -> tuple[Float[Tensor, "b c y x"], tuple[Geometry, ...]]:
    """Apply a transform to each image."""
    outputs: list[Tensor] = []
    geometries: list[Geometry] = []
    for image in originals:
        output, geometry = transform_with_geometry(
            transform, Image.fromarray(image.pixels), image.orientation
        )
        if not isinstance(output, Tensor) or output.ndim != 3 or not output.is_floating_point():
            dtype = f"{output.dtype} " if isinstance(output, Tensor) else ""
            raise ValueError(
                "the transform must return float tensors [c, y, x], got "
                f"{dtype}{type(output).__name__}; add ToTensor() and Normalize(mean, std)"
            )
        if outputs and output.shape != outputs[0].shape:
            raise ValueError(
                f"the transform must return one size for all images, got {tuple(outputs[0].shape)} "
                f"and {tuple(output.shape)} of {image.name}; end it in CenterCrop(size) or "
                "Resize((height, width)), or pass one image at a time"
            )
        outputs.append(output.as_subclass(Tensor))
        geometries.append(geometry)
    return torch.stack(outputs), tuple(geometries)


def _resize_and_normalize(
    explained: ExplainedModel, originals: tuple[LoadedImage, ...], resize_mode: ResizeMode | None
) -> tuple[Float[Tensor, "b c y x"], tuple[Geometry, ...]]:
    """Resize images to the input size and normalize their colors."""
    info = explained.info
    model = explained.model
    network = model.encoder if isinstance(model, Captioner | DenseModel) else model
    own = network if isinstance(network, ImageClassifier | ImageEncoder) else None
    shorter = None
    if resize_mode is None and info.library == "torchvision":
        shorter = round(min(info.input_size) * 8 / 7)
    fill = _pad_color(explained, own=own is not None)
    spec = ResizeSpec(info.input_size, resize_mode or "crop", shorter, fill=fill)
    if own is None and len(info.mean) == 1:
        originals = tuple(map(_to_gray, originals))
    resized = [resize_to_input(image, spec) for image in originals]
    pixels = torch.stack([pixels for pixels, _ in resized])
    geometries = tuple(geometry for _, geometry in resized)
    if own is not None:
        return own.normalize(pixels.to(own.shift.device)), geometries
    if len(info.mean) not in (1, 3):
        raise ValueError(
            f"{info.name} takes {len(info.mean)} channels; images have 3, or 1 if they are gray: "
            "make the input tensors yourself and use visattn.record"
        )
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (info.mean, info.std))
    return (pixels[:, : len(mean)] / 255 - mean) / std, geometries


def _pad_color(explained: ExplainedModel, *, own: bool) -> tuple[int, int, int]:
    """Return the color of padding: the pad value of the model, or its mean color."""
    if own:
        level = round(255 * getattr(explained.model, "pad_value", 0.0))
        return level, level, level
    levels = [round(255 * min(max(value, 0.0), 1.0)) for value in explained.info.mean]
    # Of three channels, or of one.
    return levels[0], levels[len(levels) // 2], levels[-1]


def _to_gray(image: LoadedImage) -> LoadedImage:
    """Return an image in gray, as Pillow converts it, with three equal channels."""
    gray = Image.fromarray(image.pixels).convert("L").convert("RGB")
    return LoadedImage(np.array(gray), image.orientation, image.name)
