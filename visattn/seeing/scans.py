"""From a glimpse model and pictures to the path of its eye, placed on the original pictures."""

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

from visattn.data.framings import Framing, frame
from visattn.data.pictures import Picture, read_picture
from visattn.functional.saliencies import saliency, salient_paths
from visattn.functional.scan_paths import random_paths, raster_paths
from visattn.maps import AttentionMap, Geometry
from visattn.maps.attention_maps import shortened
from visattn.maps.frozen_models import evaluating
from visattn.models.glimpse_models import GlimpseModel
from visattn.seeing.captions import Fit, PictureLike

Policy = Literal["mean", "sampled", "random", "raster", "saliency"]


@dataclass(frozen=True, eq=False, repr=False)
class ScanPath:
    """Where a model looked on a picture, what it saw there and what it thought.

    Args:
        classes: Names of the classes.
        probabilities: Of each class after each glimpse.
        places: x and y of each glimpse on the network's input, in [-1, 1], the first included.
        boxes: Left, top, right and bottom of each window, the finest of a glimpse first, in pixels
            of the original picture; what lies outside it was seen as background.
        patches: What the network saw in each window.
        pixels: The network's input.
        maps: One map for each glimpse, placed on the original picture: 1 where a pixel of the
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
    pictures: Iterable[PictureLike] | PictureLike,
    *,
    policy: Policy = "mean",
    seed: int = 0,
    fit: Fit = "crop",
) -> list[ScanPath]:
    """Say what pictures show, and where the model looked to find out.

    The model comes back in the mode in which it was, and so does the random state. What is drawn
    at random depends on the seed and the picture, and on no other picture.

    Args:
        model: A trained glimpse model, as `load` gives it.
        pictures: One picture or several: files, bytes, PIL images or RGB arrays, of any size.
        policy: Who leads the eye: the model's own policy at its `mean` or `sampled` as in training;
            or for comparison nobody (`random`), a grid (`raster`) or what stands out (`saliency`).
        seed: Of a random start, samples and random places; its last 32 bits count.
        fit: How a picture that is not of the model's shape is made to fit: its middle (`crop`),
            all of it out of shape (`squash`), or all of it with margins (`pad`).

    Raises:
        TypeError: If the model takes no glimpses.
        PictureError: If a picture cannot be read.
        ValueError: If there is no such policy or fit, or the model gives NaN.

    Example:
        >>> model = GlimpseModel(("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse=5, glimpses=3)
        >>> [found] = glimpses(model, np.zeros((60, 80, 3), np.uint8))
        >>> found.boxes.shape, found.maps.geometry.picture_size
        (torch.Size([3, 1, 4]), (60, 80))

    Source:
        Mnih et al. 2014, arXiv:1406.6247.
    """
    if not isinstance(model, GlimpseModel):
        raise TypeError(f"only a glimpse model has glimpses, got {type(model).__name__}")
    if policy not in get_args(Policy):
        raise ValueError(f"policy must be one of {', '.join(get_args(Policy))}, got {policy!r}")
    one = isinstance(pictures, (str, os.PathLike, bytes, Image.Image, np.ndarray, Picture))
    bars = round(255 * model.background)
    framing = Framing(size=model.size, fit=fit, fill=(bars, bars, bars))
    with evaluating(model):
        return [
            _scan(model, *frame(read_picture(picture), framing), policy, seed)
            for picture in ([pictures] if one else pictures)
        ]


def _scan(
    model: GlimpseModel,
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
    corners = geometry.to_picture(windows.double().view(-1, 2))
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
    """Return a picture as the model has it: in colour, or grey as Pillow makes it."""
    if count == 3:
        return pixels
    grey = Image.fromarray(pixels.permute(1, 2, 0).numpy()).convert("L")
    return torch.from_numpy(np.array(grey))[None]


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
