"""Segmentation of photos: the class of each pixel of the photo, gates as maps, and figures."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike
from visattn.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.images.sources import read_images
from visattn.models.loaded import loaded_with
from visattn.models.unet import UNet, UNetOutput
from visattn.recording.frozen import eval_mode
from visattn.results.attention_map import AttentionMap
from visattn.results.kinds import IGNORE_CLASS
from visattn.results.values import Segmentation


@torch.no_grad()
def segment(
    model: UNet,
    images: Iterable[ImageLike] | ImageLike,
    *,
    resize_mode: ResizeMode | None = None,
) -> Iterator[Segmentation]:
    """Yield the segmentation of each photo, at its own size.

    The probabilities of the classes are resampled bilinearly to the pixels of the photo; each pixel
    gets the most probable class.

    Args:
        model: A trained segmentation model, as `load` returns it; its training mode is restored.
        images: One photo or several, or folders, as for `visattn.caption`.
        resize_mode: How a photo gets the shape of the input: with padding (`pad`), by a central
            `crop`, outside of which nothing is segmented, or ignoring its aspect ratio (`squash`);
            by default as in the training of the model, or `pad` if that is unknown.

    Raises:
        ImageError: If a photo cannot be read.
        ValueError: If there is no photo, or the mode is unknown.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> model = UNet(("background", "cat"), SmallEncoder((24, 40), channels=8)).eval()
        >>> [result] = segment(model, np.zeros((50, 30, 3), np.uint8))
        >>> result.labels.shape
        (50, 30)
    """
    resize_mode = resize_mode or loaded_with(model).resize_mode or "pad"
    spec = ResizeSpec(model.img_size, mode=resize_mode)
    device = next(model.parameters()).device
    for photo in read_images(images):
        pixels, geometry = resize_to_input(photo, spec)
        with eval_mode(model):
            output = model.segment(pixels[None].to(device))
        for made in place_segmentations(output, model.class_names, [geometry]):
            yield replace(made, image=photo.name)


def place_segmentations(
    output: UNetOutput,
    class_names: tuple[str, ...],
    geometries: Sequence[Geometry],
) -> Iterator[Segmentation]:
    """Yield the segmentation of each image of a batch, at the size of its photo.

    Example:
        >>> output = UNetOutput(torch.zeros(1, 2, 3, 5), ())
        >>> [result] = place_segmentations(output, ("a", "b"), [Geometry.identity((3, 5))])
        >>> result.labels.shape
        (3, 5)
    """
    probabilities = output.logits.detach().float().softmax(1).cpu()
    for row, geometry in enumerate(geometries):
        gates = tuple(
            AttentionMap(gate[row].detach().float().cpu(), f"levels.{i}.gate.tap", "gate", geometry)
            for i, gate in enumerate(output.gates)
        )
        yield Segmentation(photo_labels(probabilities[row], geometry), class_names, gates, geometry)


def photo_labels(
    probabilities: Float[Tensor, "k y x"], geometry: Geometry
) -> UInt8[np.ndarray, "y2 x2"]:
    """Return the most probable class of each pixel of the photo; 255 outside of the input.

    Example:
        >>> halves = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
        >>> photo_labels(halves, Geometry.identity((2, 4)).resized((1, 2)))
        array([[0, 0, 1, 1],
               [0, 0, 1, 1]], dtype=uint8)
    """
    best = torch.full(geometry.image_size, -1.0)
    labels = torch.full(geometry.image_size, IGNORE_CLASS, dtype=torch.uint8)
    for number, values in enumerate(probabilities):  # one at a time, since photos are large
        resized = AttentionMap(values, "head", "gradient", geometry).resize_to_image()
        better = resized > best  # False for NaN
        labels[better] = number
        best = torch.where(better, resized, best)
    return labels.numpy()
