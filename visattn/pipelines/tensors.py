"""Tensors that are prepared already, as a DataLoader gives them: inputs of a model as they are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, LoadedImage, list_images, read_image
from visattn.images.sources import list_photos
from visattn.images.tensors import render_tensor, single_image
from visattn.pipelines.colors import own_network
from visattn.pipelines.inputs import PreparedImages, like_weights
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import Subject
from visattn.results.attention_map import transform_geometry


@dataclass(frozen=True, eq=False)
class ModelInput:
    """A tensor `[c, y, x]` with the photo that it was made of.

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
        TypeError: If it is neither an image nor a list of images.
        ValueError: If images and tensors are mixed, a tensor is no image, or there is not one photo
            for each tensor.

    Example:
        >>> [each.tensor.shape[0] for each in list_inputs(torch.zeros(2, 5, 4, 4))]
        [5, 5]
    """
    # A list of batches of one image each, as a DataLoader of batch size 1 gives them.
    listed: list[Any] = list_images(images)
    kinds = {isinstance(each, Tensor | ModelInput) for each in listed}
    if kinds != {True}:
        if True in kinds:
            raise ValueError("images must be all tensors, or all photos, got both")
        if originals is not None:
            raise ValueError("originals= are the photos of tensors, got images: pass them alone")
        return list_photos(listed)
    photos = [None] * len(listed) if originals is None else list_images(originals)
    if len(photos) != len(listed):
        raise ValueError(f"originals= must be a photo for each of {len(listed)} tensors, got "
                         f"{len(photos)}")  # fmt: skip
    pairs = enumerate(zip(listed, photos, strict=True))
    return [
        each if isinstance(each, ModelInput) else ModelInput(single_image(each), photo, index)
        for index, (each, photo) in pairs
    ]


def stack_inputs(inputs: Sequence[ModelInput]) -> Shaped[Tensor, "b c y x"]:
    """Return a batch of tensors.

    Raises:
        ValueError: If they differ in shape.

    Example:
        >>> stack_inputs(list_inputs([torch.zeros(3, 4, 6), torch.ones(3, 4, 6)])).shape
        torch.Size([2, 3, 4, 6])
    """
    shapes = {tuple(each.tensor.shape) for each in inputs}
    if len(shapes) > 1:
        raise ValueError(
            f"tensors of one batch must have one shape, got {sorted(shapes)}: pass them one by one"
        )
    return torch.stack([each.tensor for each in inputs])


def prepare_tensors(
    explained: Subject, inputs: Sequence[ModelInput], transform: Any = None
) -> PreparedImages:
    """Return tensors as the model takes them: as they are, on its device and in its dtype.

    Args:
        explained: The model at their size.
        inputs: The tensors.
        transform: What led from the photos to the tensors, for those that have photos.

    Raises:
        ImageError: If a photo cannot be read.
        ValueError: If values are integers and the model does not normalize them, or a transform
            cannot be followed or gives another size.
    """
    batch = _floats(explained, stack_inputs(inputs))
    info = explained.info
    size = (batch.shape[2], batch.shape[3])
    described: dict[str, Any] = {"size": list(size), "resize": "tensor", "source": "tensor"}
    if is_known(info):
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
            photo = read_image(each.photo, channels=3)
            originals.append(photo)
            geometries.append(_geometry_on_photo(transform, photo, size))
    return PreparedImages(
        like_weights(batch, explained.model), tuple(geometries), tuple(originals), described
    )


def is_known(info: ModelInfo) -> bool:
    """Return whether mean and std of a model are known, and not assumed.

    Example:
        >>> is_known(ModelInfo("net", "other", (8, 8), (0.5,), (0.5,), "none", colors="assumed"))
        False
    """
    return bool(info.colors) and not info.colors.startswith("assumed")


def _floats(explained: Subject, batch: Tensor) -> Float[Tensor, "b c y x"]:
    """Return a batch of floats; models of visattn normalize uint8 themselves."""
    if batch.is_floating_point():
        return batch
    network = own_network(explained.model)
    if network is not None and batch.dtype == torch.uint8:
        return network.normalize(batch.to(network.shift.device))
    raise ValueError(
        f"a tensor is the input of the model as it is, and must hold floats, got {batch.dtype}: "
        "normalize it as in the training of the model, or pass pixels as NumPy arrays [y, x, c]"
    )


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
