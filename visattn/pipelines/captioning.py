"""From a model and images to words, and to maps that lie where the model looked."""

import itertools
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import nn

from visattn.data.images.reader import ImageError, LoadedImage, find_images, read_image
from visattn.data.images.resize import ResizeSpec, frame
from visattn.functional.captioning.beam_search import BeamSearchOutput
from visattn.geometry.affine import Geometry
from visattn.models.captioner import AttentionStep, Captioner
from visattn.recording.attention_map import AttentionMap, shortened
from visattn.recording.frozen_model import evaluating

ImageLike = str | os.PathLike[str] | bytes | Image.Image | np.ndarray | LoadedImage
Fit = Literal["crop", "squash", "pad"]


@dataclass(frozen=True, eq=False, repr=False)
class Caption:
    """What a model says of an image, and where it looked for each word."""

    words: tuple[str, ...]
    log_probabilities: tuple[float, ...]
    """Of each word, in nats."""
    gates: tuple[float, ...]
    """How much of what was seen went into each word, between 0 and 1."""
    maps: AttentionMap
    """One map per word, placed on the original image."""
    score: float
    """Log-probability of the caption over its length penalty."""
    finished: bool
    """Whether the model came to an end; otherwise the caption was cut."""
    alternatives: tuple["Caption", ...] = ()
    """The next best captions, where more than one was asked for."""
    image: str = ""
    """The file of the image, as far as it is known."""

    def __repr__(self) -> str:
        """Return the caption in one line."""
        more = f", {len(self.alternatives)} more" if self.alternatives else ""
        name = f", {self.image}" if self.image else ""
        text = shortened(self.text, 100)
        return f"Caption({text!r}, score {self.score:.3g}, {len(self.words)} maps{more}{name})"

    @property
    def text(self) -> str:
        """The caption as one line."""
        return " ".join(self.words)


@torch.no_grad()
def caption(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    *,
    beam: int = 5,
    best: int = 1,
    max_length: int = 30,
    min_length: int = 1,
    length_penalty: float = 0.0,
    fit: Fit = "crop",
    batch: int = 16,
) -> list[Caption]:
    """Say what is on images, and where the model looked for each word.

    The model comes back in the mode in which it was.

    Args:
        model: A trained captioner, as `load` gives it.
        images: One image or several: files, bytes, PIL images or RGB arrays, of any size; or
            folders, which are searched as `visattn caption` does. Where there is a folder, files
            that cannot be read are skipped with a warning.
        beam: Captions searched at once per image.
        best: Captions returned per image; those after the first stand in `alternatives`.
        max_length: Most words.
        min_length: Fewest words.
        length_penalty: Exponent of the length penalty; 0 compares log-probabilities.
        fit: How an image that is not of the model's shape is made to fit: its middle (`crop`),
            all of it out of shape (`squash`), or all of it with margins (`pad`).
        batch: Images that are in memory at once.

    Returns:
        A caption for each image that could be read, in their order; its `image` names the file.

    Raises:
        TypeError: If the model is no captioner.
        FileNotFoundError: If a folder does not exist or holds no image.
        ImageError: If an image cannot be read that was not searched for in a folder.
        ValueError: If the numbers contradict each other, or the model gives NaN.

    Warns:
        UserWarning: For each file that was skipped; the reason is said.

    Example:
        >>> from visattn.models.captioner import SPECIALS
        >>> from visattn.models.encoder import SmallEncoder
        >>> from visattn.models.captioning.show_attend_tell import ShowAttendTell
        >>> encoder = SmallEncoder((24, 24), channels=8)
        >>> model = ShowAttendTell((*SPECIALS, "red"), encoder, hidden=8)
        >>> [found] = caption(model, np.zeros((60, 80, 3), np.uint8), max_length=2)
        >>> found.maps.values.shape[1:], found.maps.geometry.image_size
        (torch.Size([3, 3]), (60, 80))

    Source:
        Vinyals et al. 2015, arXiv:1411.4555, section 3.1, for the beam search.
    """
    if not isinstance(model, Captioner):
        raise TypeError(f"only a captioner can caption, got {type(model).__name__}")
    if batch < 1:
        raise ValueError(f"there must be at least 1 image at once, got batch={batch}")
    framing = ResizeSpec(size=model.encoder.size, fit=fit)
    read = ((one.name, *frame(one, framing)) for one in read_images(images))
    made = {"model": type(model).__name__, "beam": beam, "fit": fit}
    device, every = next(model.parameters()).device, list[Caption]()
    with evaluating(model):
        while some := list(itertools.islice(read, batch)):
            found = model.search(
                model.encoder(torch.stack([pixels for _, pixels, _ in some]).to(device)),
                beam=beam,
                best=best,
                max_length=max_length,
                min_length=min_length,
                length_penalty=length_penalty,
            )
            every += [
                _captions(model, found, index, geometry, {**made, "image": name})
                for index, (name, _, geometry) in enumerate(some)
            ]
    return every


def read_images(images: Iterable[ImageLike] | ImageLike) -> Iterator[LoadedImage]:
    """Read images one by one, and all those in folders.

    Args:
        images: One or several, and folders. Where there is a folder, files that cannot be read
            are skipped with a warning.

    Raises:
        FileNotFoundError: If a folder holds no image.
        ImageError: If an image cannot be read, and there is no folder.
    """
    single = isinstance(images, (str, os.PathLike, bytes, Image.Image, np.ndarray, LoadedImage))
    given = [images] if single else list(images)
    if not any(isinstance(one, (str, os.PathLike)) and Path(one).is_dir() for one in given):
        yield from map(read_image, given)
        return
    sources: list[ImageLike] = []
    for one in given:  # what is not there is said before any image is read
        sources += find_images(one) if isinstance(one, (str, os.PathLike)) else [one]
    for source in sources:
        try:
            image = read_image(source)
        except ImageError as error:
            warnings.warn(f"skipped {error}", stacklevel=3)
        else:
            yield image


def _captions(
    model: Captioner,
    found: BeamSearchOutput[AttentionStep],
    image: int,
    geometry: Geometry,
    made: dict[str, Any],
) -> Caption:
    """Return the captions of one image as one, the others as its alternatives."""
    every: list[Caption] = []
    for rank in range(found.tokens.shape[1]):
        if found.scores[image, rank] == -torch.inf:
            break  # the search found fewer captions than were asked for
        at = (image, rank, slice(int(found.lengths[image, rank])))
        words = tuple(model.words[token] for token in found.tokens[at].tolist())
        values = found.looks.weights[at].unflatten(-1, model.encoder.grid).cpu()
        every.append(
            Caption(
                words=words,
                log_probabilities=tuple(found.log_probabilities[at].tolist()),
                gates=tuple(found.looks.gate[at].tolist()),
                maps=AttentionMap(values, "look.tap", "words", geometry, made, words),
                score=float(found.scores[image, rank]),
                finished=bool(found.finished[image, rank]),
                image=made["image"],
            )
        )
    if not every:
        raise ValueError("the model can say no caption of these lengths: all its words are banned")
    first, *others = every
    return Caption(**{**vars(first), "alternatives": tuple(others)})
