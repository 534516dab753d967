"""Preprocessing: photos and tensors as inputs of a network, with the geometry of each.

passed values, else those of the model -----> Preprocessing --> PreparedImages
(size, transform, resize mode, mean, std)                        inputs [b c y x], geometries
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from PIL import Image
from torch import Tensor, nn

from visattn.geometry.affine import Geometry
from visattn.geometry.preprocessing import (
    geometry_of_transform,
    steps_of,
    transform_with_geometry,
)
from visattn.images.reader import (
    ImageLike,
    LoadedImage,
    list_images,
    read_image,
    render_tensor,
    single_image,
)
from visattn.images.resize import ResizeMode, ResizeSpec, resize_channels, resize_to_input
from visattn.images.sources import list_photos
from visattn.io.safe_text import print_message
from visattn.models.backbones.huggingface import is_image_processor, processor_transform
from visattn.models.configurable import Configurable
from visattn.models.loaded import loaded_with
from visattn.recording.frozen import first_weight, internal_transform
from visattn.recording.model_config import input_channels, parse_image_size
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import Subject
from visattn.results.attention_map import transform_geometry

ChannelNumbers = float | Sequence[float]
"""A number for all channels, or one per channel."""
PASSED_COLORS = "mean= and std="
_SIZES = ((480, 640), (1024, 600))  # photo sizes on which a transform is tried
_SAID: set[str] = set()
_SCENE_BORDER = 26.0  # at most 23.3 for 2,000 scenes; higher for 94 of 100 photos


@dataclass(frozen=True, eq=False)
class PreparedImages:
    """Preprocessed images.

    Args:
        inputs: Normalized images, on the device and in the dtype of the model.
        geometries: Geometry of each input on its original.
        originals: The original images, with EXIF rotation applied.
        preprocessing: Description for the info of maps: `size`, `resize`, `mean`, `std`, and the
            `source` of mean and std; `display` describes how a multi-channel image is rendered.
    """

    inputs: Float[Tensor, "b c y x"]
    geometries: tuple[Geometry, ...]
    originals: tuple[LoadedImage, ...]
    preprocessing: Mapping[str, Any] = field(default_factory=dict)

    def select(self, indices: Sequence[int]) -> "PreparedImages":
        """Return the images with these indices."""
        return PreparedImages(
            self.inputs[list(indices)],
            tuple(self.geometries[index] for index in indices),
            tuple(self.originals[index] for index in indices),
            self.preprocessing,
        )


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing passed by the user; None for the model's own.

    Args:
        size: Height and width of all inputs, if they do not depend on the images.
        transform: Steps of torchvision or timm that end in normalized tensors.
        resize_mode: How images get the shape of the input: `crop`, `squash` or `pad`.
        mean: Mean of the channels that images are normalized with, in the unit of their values.
        std: Standard deviation of the channels.
        source: Where mean and std come from.
    """

    size: tuple[int, int] | None = None
    transform: Any = None
    resize_mode: ResizeMode | None = None
    mean: ChannelNumbers | None = None
    std: ChannelNumbers | None = None
    source: str = PASSED_COLORS

    def whole(self, model: nn.Module) -> "Preprocessing":
        """Return preprocessing that keeps the whole image, for a dense model.

        A detector that resizes images itself gets them unchanged, other models as in their
        training, or padded if that is unknown.

        Example:
            >>> Preprocessing().whole(nn.Conv2d(3, 2, 1)).resize_mode
            'pad'
        """
        if self.transform is not None or self.resize_mode is not None:
            return self
        if self.size is None and internal_transform(model) is not None:
            from torchvision.transforms import v2  # slow to import

            scaled = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
            return replace(self, transform=scaled)
        return replace(self, resize_mode=loaded_with(model).resize_mode or "pad")


def preprocessing_of(
    model: nn.Module,
    own_transform: Any = None,
    input_size: int | tuple[int, int] | None = None,
    transform: Any = None,
    resize_mode: ResizeMode | None = None,
    mean: ChannelNumbers | None = None,
    std: ChannelNumbers | None = None,
) -> Preprocessing:
    """Return the preprocessing of a model from passed values and those it was loaded with.

    Args:
        model: The model.
        own_transform: Preprocessing that the model was loaded with, or None.
        input_size: As for `visattn.Explainer`, like the following arguments.
        transform: Also an image processor of transformers.
        resize_mode: `crop`, `squash` or `pad`.
        mean: A number of all channels, or one of each.
        std: A number of all channels, or one of each.

    Raises:
        ValueError: If arguments contradict each other or the model.

    Example:
        >>> preprocessing_of(nn.Conv2d(3, 2, 1), None, 32, mean=0.5, std=0.25).size
        (32, 32)
    """
    passed = any(each is not None for each in (input_size, resize_mode, mean, std))
    source = PASSED_COLORS
    if transform is not None and passed:
        raise ValueError(
            "the transform resizes images and normalizes them, got input_size=, resize_mode=, "
            "mean= or std= too: pass only one of them"
        )
    if (mean is None) != (std is None):
        raise ValueError(f"mean and std belong together, got {mean} and {std}")
    if mean is not None and own_network(model) is not None:
        raise ValueError(
            f"{type(model).__name__} normalizes images itself, with the mean and std of its "
            "training: mean and std have no use"
        )
    if transform is not None and is_image_processor(transform):
        transform = processor_transform(transform)
    elif transform is None and own_transform is not None and not passed:
        transform = own_transform
    elif own_transform is not None and transform is None and mean is None:  # only its size changes
        (mean, std), *more = _colors(own_transform) or [(0.0, 1.0)]
        if more:
            raise ValueError(
                "the preprocessing of the model changes colors in another way than by one mean and "
                "std, so that it cannot be resized otherwise: leave out input_size and "
                "resize_mode, or pass transform="
            )
        source = "preprocessing that was loaded"
    size = None if input_size is None else parse_image_size(input_size)
    if transform is not None:
        try:
            sizes = {geometry_of_transform(transform, each).input_size for each in _SIZES}
        except ValueError:  # reported when it is applied
            sizes = set()
        size = sizes.pop() if len(sizes) == 1 else None
    count = max((len(each) for each in (mean, std) if isinstance(each, Sequence)), default=None)
    if count is not None:  # one number counts for every channel
        mean, std = (
            (float(each),) * count
            if isinstance(each, int | float)
            else tuple(map(float, each or ()))
            for each in (mean, std)
        )
    return Preprocessing(size, transform, resize_mode, mean, std, source)


def prepare_photos(
    model: nn.Module, info: ModelInfo | None, images: Sequence[ImageLike], passed: Preprocessing
) -> PreparedImages:
    """Return photos as a model takes them, with the geometry back to the originals.

    Models of visattn normalize images themselves; timm models have their own preprocessing. For
    others the shorter side is resized to the input size (torchvision: to 8/7 of it, as for most of
    its weights), the center is cropped, and colors are normalized with the mean and standard
    deviation of the model metadata. What of that is assumed is printed on stderr, once for a model.

    Args:
        model: The model.
        info: Its metadata; None with a transform, which needs none.
        images: Files, bytes, PIL images or arrays, of any size.
        passed: What is used in place of the preprocessing that the model states.

    Raises:
        ImageError: If an image cannot be read.
        ValueError: If a step of a transform is not supported, or its outputs are not tensors; or if
            the model needs a transform.

    Example:
        >>> info = ModelInfo("net", "other", (32, 48), (0.5,) * 3, (0.5,) * 3, "none")
        >>> photo = np.full((64, 64, 3), 255, np.uint8)
        >>> batch = prepare_photos(nn.Identity(), info, [photo], Preprocessing(resize_mode="pad"))
        >>> batch.inputs.shape, batch.inputs.amax().item(), batch.geometries[0].input_size
        (torch.Size([1, 3, 32, 48]), 1.0, (32, 48))
    """
    channels = input_channels(model) if info is None else len(info.mean)
    originals = tuple(read_image(image, channels=channels) for image in images)
    made: dict[str, Any] = {}
    if info is None:
        resized = [_transformed(passed.transform, image) for image in originals]
        mean, std = next(iter(_colors(passed.transform)[::-1]), (None, None))
        made |= {"resize": "transform", "mean": mean, "std": std, "source": "transform"}
    else:
        _check_colors(info, originals, passed.resize_mode)
        made |= {"size_source": info.size_source} if info.size_source else {}
        has_values = any(image.values is not None for image in originals)
        if passed.resize_mode is None and info.library == "timm" and not has_values:
            transform, steps = _timm_transform(model, info)
            resized = [_transformed(transform, image) for image in originals]
        else:
            spec = _resize_spec(model, info, passed.resize_mode)
            steps = {
                "resize": spec.mode,
                "shorter": spec.shorter,
                "interpolation": spec.interpolation,
            }
            resized = [_resized(model, info, image, spec) for image in originals]
        made |= {name: value for name, value in steps.items() if value is not None}
        made |= {"mean": list(info.mean), "std": list(info.std), "source": info.colors}
    inputs = torch.stack([output for output, _ in resized]).to(first_weight(model))
    made |= {"display": originals[0].display} if originals[0].display else {}
    made = {"size": list(inputs.shape[2:]), **made}
    return PreparedImages(inputs, tuple(geometry for _, geometry in resized), originals, made)


def note_photo(model: nn.Module, image: LoadedImage) -> None:
    """Print once that a model of synthetic scenes got a photo.

    The border of a scene is nearly uniform: its standard deviation tells them apart.
    """
    text = loaded_with(model).on_photos
    if text and text not in _SAID:
        rows, columns = image.pixels[[0, -1]], image.pixels[:, [0, -1]]
        border = np.concatenate([rows.reshape(-1, 3), columns.reshape(-1, 3)])
        if border.std(0).mean() > _SCENE_BORDER:
            _SAID.add(text)
            print_message(text)


def _check_colors(
    info: ModelInfo, originals: Sequence[LoadedImage], resize_mode: ResizeMode | None
) -> None:
    """Refuse photos whose colors the model would get wrong; print once what is assumed of them."""
    if info.preprocessing_error:
        raise ValueError(
            f"the colors that {info.name} takes are not known: {info.preprocessing_error}; pass "
            "the tensors of its processor, the photos as originals=, and as transform= the steps "
            "that resize and crop them"
        )
    channels = len(info.mean)
    for image in originals:
        count = 3 if image.values is None else image.values.shape[2]
        fits = channels in (1, 3) if image.values is None else count == channels
        if not (fits or (count, channels) == (1, 3)):
            read = "was read as a photo of 3" if image.values is None else f"has {count}"
            raise ValueError(
                f"{info.name} takes {channels} channels, but {image.name} {read}: pass arrays "
                f"[y, x, {channels}] or .npy files, or wrap the model in a module that makes the "
                "other channels"
            )
    assumed = [info.colors.removeprefix("assumed: ")] if info.colors.startswith("assumed") else []
    if info.size_source == "assumed":
        assumed.append(f"{info.input_size[0]} x {info.input_size[1]} pixels")
    if assumed and resize_mode is None and info.library == "other":
        assumed.append("the shorter side resized and the center cropped")
    text = (
        f"assumed for {info.name}: {', '.join(assumed)}; other values: va.Explainer(..., mean=, "
        "std=, transform=), input_size=, resize_mode=, or --mean, --std, --input-size, "
        "--resize-mode"
    )
    if assumed and text not in _SAID:
        _SAID.add(text)
        print_message(text)


def _timm_transform(model: nn.Module, info: ModelInfo) -> tuple[Any, dict[str, Any]]:
    """Return timm's evaluation transform with size and colors of the metadata, and its steps."""
    from timm.data.config import resolve_model_data_config  # slow to import
    from timm.data.transforms_factory import create_transform

    config = resolve_model_data_config(model)
    config.update(input_size=(len(info.mean), *info.input_size), mean=info.mean, std=info.std)
    names = ("crop_mode", "crop_pct", "interpolation")
    return create_transform(**config), {"resize": "timm", **{name: config[name] for name in names}}


def _transformed(transform: Any, image: LoadedImage) -> tuple[Float[Tensor, "c y x"], Geometry]:
    """Apply a transform to an image."""
    source: Any = Image.fromarray(image.pixels)
    if image.values is not None:
        source = torch.from_numpy(image.values).movedim(2, 0)
    output, geometry = transform_with_geometry(transform, source)
    # Bytes would be converted to floats of 0 to 255, which no model was trained on.
    if not isinstance(output, Tensor) or not output.is_floating_point():
        raise ValueError(
            "the transform must return float tensors [c, y, x], got "
            f"{getattr(output, 'dtype', type(output).__name__)}; add ToTensor() and "
            "Normalize(mean, std)"
        )
    return output.as_subclass(Tensor), geometry


def _colors(transform: Any) -> list[tuple[list[float], list[float]]]:
    """Return the mean and std of each step of a transform that normalizes."""
    steps = [step for step in steps_of(transform) if hasattr(step, "std")]
    numbers = lambda values: torch.as_tensor(values).flatten().tolist()  # noqa: E731
    return [(numbers(step.mean), numbers(step.std)) for step in steps]


def _resize_spec(model: nn.Module, info: ModelInfo, mode: ResizeMode | None) -> ResizeSpec:
    """Return how images are resized; padding has the pad value of the model, or its mean color."""
    is_torchvision = mode is None and info.library == "torchvision"
    shorter = round(min(info.input_size) * 8 / 7) if is_torchvision else None
    own = own_network(model) is not None
    levels = [getattr(model, "pad_value", 0.0)] if own else info.mean
    color = [round(255 * min(max(level, 0.0), 1.0)) for level in levels]
    fill = (color[0], color[len(color) // 2], color[-1])  # of three channels, or of one
    mode = mode or loaded_with(model).resize_mode or "crop"
    return ResizeSpec(info.input_size, mode, shorter, fill=fill)


def _resized(
    model: nn.Module, info: ModelInfo, image: LoadedImage, spec: ResizeSpec
) -> tuple[Float[Tensor, "c y x"], Geometry]:
    """Resize an image to the input size and normalize it."""
    own = own_network(model)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (info.mean, info.std))
    if image.values is None:
        if own is None and len(info.mean) == 1:  # in gray, as Pillow converts it
            gray = Image.fromarray(image.pixels).convert("L").convert("RGB")
            image = LoadedImage(np.array(gray), image.name)
        pixels, geometry = resize_to_input(image, spec)
        if own is not None:
            return own.normalize(pixels[None].to(own.shift.device))[0], geometry
        return (pixels[: len(mean)] / 255 - mean) / std, geometry
    if own is not None:
        raise ValueError(
            f"{info.name} normalizes photos itself: pass arrays of bytes or of floats from 0 to 1, "
            f"got {image.values.min():g} to {image.values.max():g}; or a tensor [b, c, y, x] that "
            "is normalized as in its training"
        )
    low, high = image.values.min(), image.values.max()
    if info.colors != PASSED_COLORS and not (low >= 0 and high <= 1):
        raise ValueError(
            f"the values of {image.name}, from {low:g} to {high:g}, leave 0 to 1, and their unit "
            "is not known: pass mean= and std= of the channels in it (--mean, --std; mean=0, std=1 "
            "takes values as they are), or transform="
        )
    values, geometry = resize_channels(image, spec, info.mean)
    return (values.expand(len(mean), -1, -1) - mean) / std, geometry


@dataclass(frozen=True, eq=False)
class ModelInput:
    """A tensor `[c, y, x]` that is prepared already, with the photo that it was made of.

    Args:
        tensor: Input of a model.
        photo: The photo; None if maps are placed on the tensor itself.
        index: Of the tensor in its batch.
    """

    tensor: Shaped[Tensor, "c y x"]
    photo: ImageLike | None = None
    index: int = 0


def list_inputs(images: Any, originals: Any = None) -> list[Any]:
    """Return images as a list; tensors with the photos that they were made of.

    Raises:
        ValueError: If a tensor is no image, or there is not one photo for each tensor.

    Example:
        >>> [each.tensor.shape[0] for each in list_inputs(torch.zeros(2, 5, 4, 4))]
        [5, 5]
    """
    listed: list[Any] = list_images(images)
    if not isinstance(listed[0], Tensor):
        if originals is not None:
            raise ValueError("originals= are the photos of tensors, got images: pass them alone")
        named = any(isinstance(each, (str, os.PathLike)) for each in listed)
        return list_photos(listed) if named else listed
    photos = [None] * len(listed) if originals is None else list_images(originals)
    # A DataLoader of batch size 1 gives batches of one image each.
    pairs = zip(listed, photos, strict=True)
    return [ModelInput(single_image(each), photo, i) for i, (each, photo) in enumerate(pairs)]


def prepare_tensors(
    subject: Subject, inputs: Sequence[ModelInput], transform: Any = None
) -> PreparedImages:
    """Return tensors as the model takes them: as they are, on its device and in its dtype.

    Args:
        subject: The model at their size.
        inputs: The tensors.
        transform: What led from the photos to the tensors, for those that have photos.

    Raises:
        ImageError: If a photo cannot be read.
        ValueError: If values are integers and the model does not normalize them, or a transform
            cannot be followed or gives another size.
    """
    batch, network = torch.stack([each.tensor for each in inputs]), own_network(subject.model)
    if network is not None and batch.dtype == torch.uint8:
        batch = network.normalize(batch.to(network.shift.device))
    if not batch.is_floating_point():
        raise ValueError(
            f"a tensor is the input of the model as it is and must hold floats, got {batch.dtype}: "
            "normalize it as in the training of the model, or pass pixels as NumPy arrays [y, x, c]"
        )
    info, size = subject.info, (batch.shape[2], batch.shape[3])
    described: dict[str, Any] = {"size": list(size), "resize": "tensor", "source": "tensor"}
    if info.colors and not info.colors.startswith("assumed"):
        described |= {"mean": list(info.mean), "std": list(info.std)}
    originals: list[LoadedImage] = []
    geometries: list[Geometry] = []
    for each, tensor in zip(inputs, batch, strict=True):
        if each.photo is None:
            drawn = render_tensor(tensor, described.get("mean"), described.get("std"))
            originals.append(replace(drawn, name=f"tensor {each.index}"))
            geometries.append(Geometry.identity(size))
            described["display"] = drawn.display
        else:
            originals.append(read_image(each.photo, channels=3))
            geometries.append(_geometry_on_photo(transform, originals[-1], size))
    inputs_of_model = batch.to(first_weight(subject.model))
    return PreparedImages(inputs_of_model, tuple(geometries), tuple(originals), described)


def _geometry_on_photo(transform: Any, photo: LoadedImage, size: tuple[int, int]) -> Geometry:
    """Return where a tensor lies on its photo."""
    geometry = transform_geometry(transform, photo.size) or Geometry.identity(photo.size)
    if geometry.input_size != size:
        steps = "the transform makes" if transform is not None else "without transform= it is"
        raise ValueError(
            f"transform= must lead from {photo.name} to its tensor, of {size[0]} x {size[1]} "
            f"pixels; {steps} {geometry.input_size[0]} x {geometry.input_size[1]}: pass the steps "
            "that made the tensor, or leave out originals= to see maps on the tensor itself"
        )
    return geometry


def own_network(model: nn.Module) -> Any:
    """Return the network of visattn that normalizes images itself; None for other models.

    Example:
        >>> own_network(nn.Conv2d(3, 2, 1)) is None
        True
    """
    # By what it has, so that the models of visattn are not imported to explain others.
    networks = [each for each in (model, getattr(model, "encoder", None)) if hasattr(each, "shift")]
    return next((each for each in networks if isinstance(each, Configurable)), None)
