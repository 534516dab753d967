"""The photos of a caption's prompt, or the frames of its video, with the maps on each."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8

from visattn.images.reader import ImageLike, list_images, read_image
from visattn.images.video import read_clip
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.viz.text import format_time


@dataclass(frozen=True, eq=False)
class DrawnImage:
    """A photo of a prompt or a frame of a video, with the maps of the words on it.

    Args:
        pixels: The image.
        label: Name of the photo, or time of the frame; no two are alike.
        maps: Maps of the words.
    """

    pixels: UInt8[np.ndarray, "y x 3"]
    label: str
    maps: AttentionMap


def drawn_images(images: ImageLike | Sequence[ImageLike], caption: Caption) -> list[DrawnImage]:
    """Return the images of a caption with the maps that lie on them.

    Args:
        images: The original image; of several photos in a prompt a list of them, in their order; of
            a video its file, or its frames.
        caption: The caption.

    Raises:
        ValueError: If there is another number of photos or frames than the caption has.

    Example:
        >>> from visattn.geometry import Geometry
        >>> maps = AttentionMap(torch.ones(1, 1, 2), "attend", "words", Geometry.identity((3, 9)))
        >>> result = Caption(("7",), (-0.1,), (1.0,), maps, -0.1, True)
        >>> [image] = drawn_images(np.zeros((3, 9, 3), np.uint8), result)
        >>> image.label, image.maps.values.shape
        ('image', torch.Size([1, 1, 2]))
    """
    placed, info = caption.image_maps, caption.maps.info
    if caption.is_video and isinstance(images, (str, os.PathLike)):
        clip = read_clip(images, info.frames, max(info.frames) + 1)
        images = [frame.pixels for frame in clip.frames]
    loaded = [read_image(image) for image in list_images(images)]
    if len(loaded) != len(placed):
        kind = "frames of its video, or the file" if caption.is_video else "photos of its prompt"
        raise ValueError(
            f"the caption has maps on {len(placed)} images, got {len(loaded)}: pass all {kind}"
        )
    labels = (
        [format_time(second) for second in info.seconds]
        if caption.is_video
        else _distinct([Path(image.name).name for image in loaded])
    )
    return [
        DrawnImage(image.pixels, label, maps)
        for image, label, maps in zip(loaded, labels, placed, strict=True)
    ]


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names of which those that occur more than once have their number behind them."""
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name} {number}" for number, name in
            enumerate(names, start=1)]  # fmt: skip


def image_shares(caption: Caption) -> Float[np.ndarray, "t p"]:
    """Return the sum of the map of each word on each photo or frame.

    For attention this is the share of the word's attention that lies on it.

    Args:
        caption: A caption.
    """
    sums = [each.values.flatten(1).sum(1) for each in caption.image_maps]
    return torch.stack(sums, 1).numpy()


def check_one_image(caption: Caption, what: str) -> None:
    """Refuse a caption of several photos or of a video where one photo is drawn.

    Args:
        caption: The caption.
        what: What is drawn.

    Raises:
        ValueError: If the caption has maps on several images.
    """
    if not caption.is_of_single_photo:
        raise ValueError(
            f"{what} shows one photo, but the caption has maps on {len(caption.image_maps)} "
            "images: draw a caption_figure or a caption_html"
        )
