"""From a model and pictures to words and placed maps: where the rooms below come together."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import nn

from visattn import store
from visattn.data.framings import Framing, frame
from visattn.data.pictures import Picture, read_picture
from visattn.functional.search import Hypotheses
from visattn.maps import AttentionMap, Geometry
from visattn.models.captioners import Captioner, Look
from visattn.models.descriptions import describe, restore
from visattn.viz.contours import outlined
from visattn.viz.layouts import tile_size
from visattn.viz.overlays import overlay as draw_overlay
from visattn.viz.panels import caption_panel

PictureLike = str | os.PathLike[str] | bytes | Image.Image | np.ndarray | Picture
Fit = Literal["crop", "squash", "pad"]


@dataclass(frozen=True, eq=False)
class Caption:
    """What a model says of a picture, and where it looked for each word."""

    words: tuple[str, ...]
    log_probabilities: tuple[float, ...]
    """Of each word, in nats."""
    gates: tuple[float, ...]
    """How much of what was seen went into each word, between 0 and 1."""
    maps: AttentionMap
    """One map per word, placed on the original picture."""
    score: float
    """Log-probability of the caption over its length penalty."""
    finished: bool
    """Whether the model came to an end; otherwise the caption was cut."""
    alternatives: tuple["Caption", ...] = ()
    """The next best captions, where more than one was asked for."""

    @property
    def text(self) -> str:
        """The caption as one line."""
        return " ".join(self.words)


@torch.no_grad()
def caption(
    model: nn.Module,
    pictures: Iterable[PictureLike] | PictureLike,
    *,
    beam: int = 5,
    best: int = 1,
    max_length: int = 30,
    min_length: int = 1,
    length_penalty: float = 0.0,
    fit: Fit = "crop",
) -> list[Caption]:
    """Say what is on pictures, and where the model looked for each word.

    The model comes back in the mode in which it was.

    Args:
        model: A trained captioner, as `load` gives it.
        pictures: One picture or several: files, bytes, PIL images or RGB arrays, of any size.
        beam: Captions searched at once per picture.
        best: Captions returned per picture; those after the first stand in `alternatives`.
        max_length: Most words.
        min_length: Fewest words.
        length_penalty: Exponent of the length penalty; 0 compares log-probabilities.
        fit: How a picture that is not of the model's shape is made to fit: its middle (`crop`),
            all of it out of shape (`squash`), or all of it with margins (`pad`).

    Raises:
        TypeError: If the model is no captioner.
        PictureError: If a picture cannot be read.
        ValueError: If the numbers contradict each other, or the model gives NaN.

    Example:
        >>> from visattn.models.captioners import SPECIALS
        >>> from visattn.models.encoders import SmallEncoder
        >>> from visattn.models.soft_attention import SoftAttentionCaptioner
        >>> encoder = SmallEncoder((24, 24), channels=8)
        >>> model = SoftAttentionCaptioner((*SPECIALS, "red"), encoder, hidden=8)
        >>> [found] = caption(model, np.zeros((60, 80, 3), np.uint8), max_length=2)
        >>> found.maps.values.shape[1:], found.maps.geometry.picture_size
        (torch.Size([3, 3]), (60, 80))

    Source:
        Vinyals et al. 2015, arXiv:1411.4555, section 3.1, for the beam search.
    """
    if not isinstance(model, Captioner):
        raise TypeError(f"only a captioner can caption, got {type(model).__name__}")
    one = isinstance(pictures, (str, os.PathLike, bytes, Image.Image, np.ndarray, Picture))
    given = [pictures] if one else list(pictures)
    if not given:
        return []
    framing = Framing(size=model.encoder.size, fit=fit)
    framed = [frame(read_picture(picture), framing) for picture in given]
    device = next(model.parameters()).device
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        found = model.search(
            torch.stack([pixels for pixels, _ in framed]).to(device),
            beam=beam,
            best=best,
            max_length=max_length,
            min_length=min_length,
            length_penalty=length_penalty,
        )
    finally:
        for module, mode in modes.items():
            module.training = mode
    made = {"model": type(model).__name__, "beam": beam, "fit": fit}
    return [
        _captions(model, found, index, geometry, made) for index, (_, geometry) in enumerate(framed)
    ]


def _captions(
    model: Captioner,
    found: Hypotheses[Look],
    picture: int,
    geometry: Geometry,
    made: dict[str, Any],
) -> Caption:
    """Return the captions of one picture as one, the others as its alternatives."""
    every: list[Caption] = []
    for rank in range(found.tokens.shape[1]):
        if found.scores[picture, rank] == -torch.inf:
            break  # the search found fewer captions than were asked for
        at = (picture, rank, slice(int(found.lengths[picture, rank])))
        words = tuple(model.words[token] for token in found.tokens[at].tolist())
        values = found.looks.weights[at].unflatten(-1, model.encoder.grid).cpu()
        every.append(
            Caption(
                words=words,
                log_probabilities=tuple(found.log_probabilities[at].tolist()),
                gates=tuple(found.looks.gate[at].tolist()),
                maps=AttentionMap(values, "look.tap", "words", geometry, made, words),
                score=float(found.scores[picture, rank]),
                finished=bool(found.finished[picture, rank]),
            )
        )
    if not every:
        raise ValueError("the model can say no caption of these lengths: all its words are banned")
    first, *others = every
    return Caption(**{**vars(first), "alternatives": tuple(others)})


def overlay(
    picture: PictureLike,
    attention_map: AttentionMap,
    *,
    high: float | None = None,
    smooth: bool = True,
    outline: float | None = None,
    **options: Any,
) -> Image.Image:
    """Return the picture with a map on it, at the picture's own size.

    Args:
        picture: The original picture.
        attention_map: One map, placed on it.
        high: The value that shows in full; by default `attention_map.scale()`. For words of one
            caption take the scale of all its maps together.
        smooth: Whether to blend between cells, or to show each as it is.
        outline: Draw a line where attention reaches this share of `high`; None draws none.
        options: `low`, `colours`, `opacity` and more, as `visattn.viz.overlays.overlay`
            takes them.

    Raises:
        ValueError: If the map has no place on a picture, was made for one of another size, or
            holds several maps; index it first.

    Example:
        >>> blank = np.full((30, 40, 3), 200, np.uint8)
        >>> spot = AttentionMap(torch.eye(2), "gate", "gate", Geometry.identity((30, 40)), {})
        >>> overlay(blank, spot).size
        (40, 30)
    """
    read = read_picture(picture)
    values = attention_map.values
    if values.ndim != 2:
        raise ValueError(
            f"overlay draws one map, got {tuple(values.shape)}; choose one, as in maps[0]"
        )
    if attention_map.geometry and attention_map.geometry.picture_size != read.size:
        raise ValueError(
            f"the map lies on a picture of {attention_map.geometry.picture_size} (height, width), "
            f"but {read.name} has {read.size}; hand over the original"
        )
    placed = attention_map.on_picture(smooth=smooth).numpy()
    high = attention_map.scale()[1] if high is None else high
    drawn = draw_overlay(read.pixels, placed, high=high, **options)
    if outline is not None:
        drawn = outlined(drawn, placed, outline * high)
    return Image.fromarray(drawn)


def panel(
    picture: PictureLike, caption: Caption, *, width: int = 1200, **options: Any
) -> UInt8[np.ndarray, "height width 3"]:
    """Return the picture and one overlay per word as one page, on one colour scale.

    Args:
        picture: The original picture.
        caption: What was said of it.
        width: Of the page, in pixels.
        options: As `visattn.viz.panels.caption_panel` takes them.

    Raises:
        ValueError: If the caption has no word.
    """
    pixels = read_picture(picture).pixels
    options.setdefault("high", caption.maps.scale()[1])
    shown = tile_size(pixels.shape[:2], len(caption.words), width=width)
    return caption_panel(
        pixels,
        caption.words,
        caption.maps.on_picture(shown).numpy(),
        log_probabilities=caption.log_probabilities,
        gates=caption.gates,
        width=width,
        **options,
    )


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model as one safetensors file that `load` needs nothing else for.

    Raises:
        ValueError: If the model is none of visattn's, or the name does not end in .safetensors.

    Example:
        >>> from visattn.models.encoders import SmallEncoder
        >>> file = getfixture("tmp_path") / "encoder.safetensors"
        >>> save(SmallEncoder((24, 24), channels=8), file)
        >>> load(file).channels
        8
    """
    store.write_model(path, model.state_dict(), describe(model))


def load(path: str | os.PathLike[str]) -> nn.Module:
    """Return the model that a file holds, ready to look: in evaluation mode, on the CPU.

    Nothing in the file is executed.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or holds no model of visattn's.

    Example:
        >>> load("nowhere.safetensors")
        Traceback (most recent call last):
        FileNotFoundError: no model at nowhere.safetensors; `visattn export` writes one
    """
    weights, description = store.read_model(path)
    return restore(description, weights, source=path)
