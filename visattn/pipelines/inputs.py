"""Preprocessing of images for a model, with the geometry back to the originals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from visattn.geometry.affine import Geometry
from visattn.geometry.preprocessing import transform_with_geometry
from visattn.images.reader import ImageLike, LoadedImage, list_images, read_image
from visattn.images.resize import ResizeMode, ResizeSpec, resize_channels, resize_to_input
from visattn.io.safe_text import print_message
from visattn.pipelines.colors import PASSED_COLORS, own_network, step_colors, steps_of
from visattn.recording.model_config import input_channels
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import Subject


@dataclass(frozen=True, eq=False)
class PreparedImages:
    """Preprocessed images.

    Args:
        inputs: Normalized images, on the device and in the dtype of the model.
        geometries: Geometry of each input on its original.
        originals: The original images, upright.
        preprocessing: What was done to them, for the info of maps: `size`, `resize`, `mean`,
            `std`, and where mean and std come from as `source`; `display` says what the rendering
            of an image of channels shows.
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
    explained: Subject,
    images: Iterable[ImageLike] | ImageLike,
    *,
    transform: Any = None,
    resize_mode: ResizeMode | None = None,
) -> PreparedImages:
    """Return images preprocessed for a model, with the geometry back to the originals.

    Models of visattn normalize images themselves; timm models have their own preprocessing. For
    others the shorter side is resized to the input size (torchvision: to 8/7 of it, as for most of
    its weights), the center is cropped, and colors are normalized with the mean and standard
    deviation of the model metadata. What of that is assumed is printed on stderr, once for a model.

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
        >>> explained = Subject(torch.nn.Identity(), info, forward)
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
            "the tensors of its processor, the photos as originals=, and as transform= the steps "
            "that resize and crop them"
        )
    channels = len(info.mean)
    originals = _read_images(images, channels, info.name)
    has_values = originals[0].values is not None
    _say_assumed(info, resize_mode)
    if resize_mode is None and info.library == "timm" and not has_values:
        steps, used = _timm_transform(explained)
        inputs, geometries = _apply_transform(steps, originals)
    else:
        spec = _resize_spec(explained, resize_mode)
        resize = _resize_channels if has_values else _resize_and_normalize
        inputs, geometries = resize(explained, originals, spec)
        shorter = {} if spec.shorter is None else {"shorter": spec.shorter}
        used = {"resize": spec.mode, **shorter, "interpolation": spec.interpolation}
    size: dict[str, Any] = {"size": [inputs.shape[2], inputs.shape[3]]}
    if info.size_source:
        size["size_source"] = info.size_source
    colors = {"mean": list(info.mean), "std": list(info.std), "source": info.colors}
    described = {**size, **used, **colors, **_display_of(originals)}
    return PreparedImages(like_weights(inputs, explained.model), geometries, originals, described)


_SAID: set[str] = set()


def _say_assumed(info: ModelInfo, resize_mode: ResizeMode | None) -> None:
    """Print once what is assumed of the images of a model."""
    assumed = [info.colors.removeprefix("assumed: ")] if info.colors.startswith("assumed") else []
    if info.size_source == "assumed":
        assumed.append(f"{info.input_size[0]} x {info.input_size[1]} pixels")
    if assumed and resize_mode is None and info.library == "other":
        assumed.append("the shorter side resized and the center cropped")
    text = (
        f"assumed for {info.name}: {', '.join(assumed)}; other values: va.Explainer(..., mean=, "
        "std=, transform=), img_size=, resize_mode=, or --mean, --std, --transform, --input-size, "
        "--resize-mode"
    )
    if assumed and text not in _SAID:
        _SAID.add(text)
        print_message(text)


def _display_of(originals: Sequence[LoadedImage]) -> dict[str, str]:
    """Return what the rendering of an image of channels shows, as an entry of a record."""
    return {"display": originals[0].display} if originals[0].display else {}


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
    originals = _read_images(images, input_channels(model))
    inputs, geometries = _apply_transform(transform, originals)
    described: dict[str, Any] = {"size": [inputs.shape[2], inputs.shape[3]], "resize": "transform"}
    described |= _display_of(originals)
    colors = [step_colors(step) for step in steps_of(transform)]
    # The last step that normalizes, or None.
    [*_, last] = [None, *filter(None, colors)]
    mean, std = last or (None, None)
    described |= {"mean": mean, "std": std, "source": "transform"}
    return PreparedImages(like_weights(inputs, model), geometries, originals, described)


def _read_images(
    images: Iterable[ImageLike] | ImageLike, channels: int, model_name: str = ""
) -> tuple[LoadedImage, ...]:
    """Return photos, or the channels of images that are none, for a model of so many channels.

    With the name of a model, images of another number of channels are refused. A transform has
    none: it may make the channels itself.
    """
    originals = tuple(read_image(image, channels=channels) for image in list_images(images))
    for image in originals if model_name else ():
        count = 3 if image.values is None else image.values.shape[2]
        fits = channels in (1, 3) if image.values is None else count == channels
        if not (fits or (count, channels) == (1, 3)):
            read = "was read as a photo of 3" if image.values is None else f"has {count}"
            raise ValueError(
                f"{model_name} takes {channels} channels, but {image.name} {read}: pass "
                f"arrays [y, x, {channels}] or .npy files, ; or "
                "wrap the model in a module that makes the other channels"
            )
    if len({image.values is None for image in originals}) > 1:
        raise ValueError("photos and images of channels must be passed in batches of their own")
    return originals


def like_weights(inputs: Tensor, model: nn.Module) -> Tensor:
    """Return inputs on the device and in the dtype of the model.

    Example:
        >>> like_weights(torch.zeros(1, 3, 2, 2), nn.Conv2d(3, 2, 1).double()).dtype
        torch.float64
    """
    weight = next(model.parameters(), None)
    if weight is None:
        return inputs
    return inputs.to(weight.device, weight.dtype if weight.is_floating_point() else None)


def _timm_transform(explained: Subject) -> tuple[Any, dict[str, Any]]:
    """Return timm's evaluation transform with size and colors of the metadata, and its steps."""
    from timm.data.config import resolve_model_data_config  # slow to import
    from timm.data.transforms_factory import create_transform

    info = explained.info
    config = resolve_model_data_config(explained.model)
    config.update(input_size=(len(info.mean), *info.input_size), mean=info.mean, std=info.std)
    names = ("crop_mode", "crop_pct", "interpolation")
    return create_transform(**config), {"resize": "timm", **{name: config[name] for name in names}}


def _apply_transform(
    transform: Any, originals: tuple[LoadedImage, ...]
) -> tuple[Float[Tensor, "b c y x"], tuple[Geometry, ...]]:
    """Apply a transform to each image."""
    outputs: list[Tensor] = []
    geometries: list[Geometry] = []
    for image in originals:
        source: Any = Image.fromarray(image.pixels)
        if image.values is not None:
            source = torch.from_numpy(image.values).movedim(2, 0)
        output, geometry = transform_with_geometry(transform, source)
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


def _resize_spec(explained: Subject, resize_mode: ResizeMode | None) -> ResizeSpec:
    info = explained.info
    shorter = None
    if resize_mode is None and info.library == "torchvision":
        shorter = round(min(info.input_size) * 8 / 7)
    own = own_network(explained.model) is not None
    fill = _pad_color(explained, own=own)
    return ResizeSpec(info.input_size, resize_mode or "crop", shorter, fill=fill)


def _resize_and_normalize(
    explained: Subject, originals: tuple[LoadedImage, ...], spec: ResizeSpec
) -> tuple[Float[Tensor, "b c y x"], tuple[Geometry, ...]]:
    """Resize photos to the input size and normalize their colors."""
    info = explained.info
    own = own_network(explained.model)
    if own is None and len(info.mean) == 1:
        originals = tuple(map(_to_gray, originals))
    resized = [resize_to_input(image, spec) for image in originals]
    pixels = torch.stack([pixels for pixels, _ in resized])
    geometries = tuple(geometry for _, geometry in resized)
    if own is not None:
        return own.normalize(pixels.to(own.shift.device)), geometries
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (info.mean, info.std))
    return (pixels[:, : len(mean)] / 255 - mean) / std, geometries


def _resize_channels(
    explained: Subject, originals: tuple[LoadedImage, ...], spec: ResizeSpec
) -> tuple[Float[Tensor, "b c y x"], tuple[Geometry, ...]]:
    """Resize images of channels to the input size and normalize them."""
    info = explained.info
    if own_network(explained.model) is not None:
        raise ValueError(
            f"{info.name} normalizes photos itself: pass photos, or a tensor [b, c, y, x] that is "
            "normalized as in its training"
        )
    for image in originals if info.colors != PASSED_COLORS else ():
        values = cast("np.ndarray", image.values)
        if not (values.min() >= 0 and values.max() <= 1):
            raise ValueError(
                f"the values of {image.name}, from {values.min():g} to {values.max():g}, leave 0 "
                "to 1, and their unit is not known: pass mean= and std= of the channels in it "
                "(--mean, --std; mean=0, std=1 takes values as they are), or transform="
            )
    resized = [resize_channels(image, spec, info.mean) for image in originals]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (info.mean, info.std))
    values = torch.stack([values.expand(len(mean), -1, -1) for values, _ in resized])
    return (values - mean) / std, tuple(geometry for _, geometry in resized)


def _pad_color(explained: Subject, *, own: bool) -> tuple[int, int, int]:
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
    return LoadedImage(np.array(gray), image.name)
