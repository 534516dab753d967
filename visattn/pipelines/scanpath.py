"""From a glimpse model and images to the path of its eye, placed on the original images."""

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from visattn.data.images.reader import LoadedImage, read_image
from visattn.data.images.resize import ResizeSpec, frame
from visattn.functional.glimpses.paths import random_paths, raster_paths
from visattn.functional.saliency.itti_koch import saliency, salient_paths
from visattn.geometry.affine import Geometry
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.pipelines.captioning import Fit, ImageLike
from visattn.recording.attention_map import AttentionMap, shortened
from visattn.recording.frozen_model import evaluating

Policy = Literal["mean", "sampled", "random", "raster", "saliency"]


@dataclass(frozen=True, eq=False, repr=False)
class ScanPath:
    """Where a model looked on an image, what it saw there and what it thought.

    Args:
        classes: Names of the classes.
        probabilities: Of each class after each glimpse.
        places: x and y of each glimpse on the network's input, in [-1, 1], the first included.
        boxes: Left, top, right and bottom of each window, the finest of a glimpse first, in pixels
            of the original image; what lies outside it was seen as background.
        patches: What the network saw in each window.
        pixels: The network's input.
        maps: One map for each glimpse, placed on the original image: 1 where a pixel of the
            input was seen as it is, 1/2 where two by two were seen as one, and so on; 0 elsewhere.
    """

    classes: tuple[str, ...]
    probabilities: Float[Tensor, "t k"]
    places: Float[Tensor, "t 2"]
    boxes: Float[Tensor, "t s 4"]
    patches: UInt8[Tensor, "t s c g g"]
    pixels: UInt8[Tensor, "c y x"]
    maps: AttentionMap

    def __repr__(self) -> str:
        """Return the scan path in one line."""
        return (
            f"ScanPath({shortened(self.answer)}, probability {self.probability:.3f}, "
            f"{len(self.places)} glimpses)"
        )

    @property
    def answer(self) -> str:
        """The likeliest class after the last glimpse."""
        return self.classes[int(self.probabilities[-1].argmax())]

    @property
    def probability(self) -> float:
        """Of the answer."""
        return float(self.probabilities[-1].max())


@torch.no_grad()
def glimpses(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    *,
    policy: Policy = "mean",
    seed: int = 0,
    fit: Fit = "crop",
) -> list[ScanPath]:
    """Say what images show, and where the model looked to find out.

    The model comes back in the mode in which it was, and so does the random state. What is drawn
    at random depends on the seed and the image, and on no other image.

    Args:
        model: A trained glimpse model, as `load` gives it.
        images: One image or several: files, bytes, PIL images or RGB arrays, of any size.
        policy: Who leads the eye: the model's own policy at its `mean` or `sampled` as in training;
            or for comparison nobody (`random`), a grid (`raster`) or what stands out (`saliency`).
        seed: Of a random start, samples and random places; its last 32 bits count.
        fit: How an image that is not of the model's shape is made to fit: its middle (`crop`),
            all of it out of shape (`squash`), or all of it with margins (`pad`).

    Raises:
        TypeError: If the model takes no glimpses.
        ImageError: If an image cannot be read.
        ValueError: If there is no such policy or fit, or the model gives NaN.

    Example:
        >>> model = RecurrentAttentionModel(
        ...     ("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse=5, glimpses=3
        ... )
        >>> [found] = glimpses(model, np.zeros((60, 80, 3), np.uint8))
        >>> found.boxes.shape, found.maps.geometry.image_size
        (torch.Size([3, 1, 4]), (60, 80))

    Source:
        Mnih et al. 2014, arXiv:1406.6247.
    """
    if not isinstance(model, RecurrentAttentionModel):
        raise TypeError(f"only a glimpse model has glimpses, got {type(model).__name__}")
    if policy not in get_args(Policy):
        raise ValueError(f"policy must be one of {', '.join(get_args(Policy))}, got {policy!r}")
    one = isinstance(images, (str, os.PathLike, bytes, Image.Image, np.ndarray, LoadedImage))
    bars = round(255 * model.background)
    framing = ResizeSpec(size=model.size, fit=fit, fill=(bars, bars, bars))
    with evaluating(model):
        return [
            _scan(model, *frame(read_image(image), framing), policy, seed)
            for image in ([images] if one else images)
        ]


def _scan(
    model: RecurrentAttentionModel,
    pixels: UInt8[Tensor, "3 y x"],
    geometry: Geometry,
    policy: Policy,
    seed: int,
) -> ScanPath:
    device = model.shift.device
    given = _channels(pixels, len(model.mean))[None].to(device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(zlib.crc32(pixels.numpy().tobytes(), seed))  # only 32 bits would count
        path = _path(given, model.glimpses, policy)
        looks = model.look(given, sampled=policy == "sampled", path=path)
    places, scores = looks.places[0, 0], looks.scores[0, 0]
    if not (places.isfinite().all() and scores.isfinite().all()):
        raise ValueError("the model gives NaN or infinity: its weights are damaged")
    windows = model.boxes(places).cpu()
    corners = geometry.to_image(windows.double().view(-1, 2))
    return ScanPath(
        classes=model.classes,
        probabilities=scores.double().softmax(-1).cpu(),
        places=places.cpu(),
        boxes=corners.view(windows.shape),
        patches=model.patches(given, places[None])[0].cpu(),
        pixels=given[0].cpu(),
        maps=AttentionMap(
            _sharpness(windows, model.size),
            "retina",
            "glimpse",
            geometry,
            {"model": type(model).__name__, "policy": policy, "seed": seed},
            tuple(str(number) for number in range(1, len(places) + 1)),
        ),
    )


def _channels(pixels: UInt8[Tensor, "3 y x"], count: int) -> UInt8[Tensor, "c y x"]:
    """Return an image as the model has it: in color, or gray as Pillow makes it."""
    if count == 3:
        return pixels
    gray = Image.fromarray(pixels.permute(1, 2, 0).numpy()).convert("L")
    return torch.from_numpy(np.array(gray))[None]


def _path(
    pixels: UInt8[Tensor, "1 c y x"], count: int, policy: Policy
) -> Float[Tensor, "1 t 2"] | None:
    """Return the places that a policy without learning chooses; None if the model is to choose."""
    if policy == "random":
        return random_paths(1, count).to(pixels.device)
    if policy == "raster":
        return raster_paths(1, count).to(pixels.device)
    return salient_paths(saliency(pixels / 255), count) if policy == "saliency" else None


def _sharpness(windows: Float[Tensor, "t s 4"], size: tuple[int, int]) -> Float[Tensor, "t y x"]:
    """Return for each glimpse and pixel the share of resolution with which it was seen."""
    values = torch.zeros(len(windows), *size)
    for scale in reversed(range(windows.shape[1])):  # the finest last: it has the last word
        for value, box in zip(values, windows[:, scale].long().clamp(min=0).tolist(), strict=True):
            left, top, right, bottom = box
            value[top:bottom, left:right] = 0.5**scale
    return values
