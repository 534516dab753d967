"""From a captioner and images to one map per word: where it looked, what the word rests on."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.data.images.reader import read_image
from visattn.data.images.resize import ResizeSpec, frame
from visattn.functional.attribution.cam import grad_cam
from visattn.models.captioner import START, Captioner
from visattn.pipelines.captioning import Caption, Fit, ImageLike, caption
from visattn.recording.attention_map import AttentionMap
from visattn.recording.frozen_model import frozen


def word_maps(model: Captioner, images: Sequence[ImageLike], **options: Any) -> list[AttentionMap]:
    """Return where the model looked for each word of its best caption.

    Args:
        model: A captioner.
        images: Of any size.
        options: As `caption` takes them.
    """
    return [_told(said) for said in caption(model, list(images), **options)]


def word_gradcam(
    model: Captioner, images: Sequence[ImageLike], *, fit: Fit = "crop", **options: Any
) -> list[AttentionMap]:
    """Return which places each word of the best caption rests on, by Grad-CAM.

    Where a model looked and what it made of that are not the same: this asks for the second.

    Args:
        model: A captioner.
        images: Of any size.
        fit: How images come into the model's shape.
        options: As `caption` takes them.

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391, section 7.1.
    """
    numbers = {word: number for number, word in enumerate(model.words)}
    framing = ResizeSpec(size=model.encoder.size, fit=fit)
    found: list[AttentionMap] = []
    said = caption(model, list(images), fit=fit, **options)
    for image, one in zip(images, said, strict=True):
        pixels, _ = frame(read_image(image), framing)
        with frozen(model):
            features = model.encoder(pixels[None].to(model.encoder.shift.device))
            values = word_activations(model, features, [numbers[word] for word in one.words])
        told = _told(one)
        found.append(replace(told, values=values.float().cpu(), kind="gradient", site="encoder"))
    return found


def word_activations(
    model: Captioner, features: Float[Tensor, "1 c y x"], words: Sequence[int]
) -> Float[Tensor, "t y x"]:
    """Return which places of an image each word of a caption rests on, given those before it.

    Args:
        model: A captioner.
        features: Of one image, as the encoder gives them.
        words: Of the caption, by number, without its start and end.

    Example:
        >>> from visattn.models.captioner import SPECIALS
        >>> from visattn.models.encoder import SmallEncoder
        >>> from visattn.models.captioning.show_attend_tell import ShowAttendTell
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = ShowAttendTell((*SPECIALS, "red", "blue"), encoder, hidden=11).eval()
        >>> word_activations(model, torch.rand(1, 8, 3, 5), [4, 5, 4]).shape
        torch.Size([3, 3, 5])

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391, section 7.1: Grad-CAM of the word's
        log-probability.
    """
    count, device = len(words), features.device
    said = torch.tensor([START, *words], device=device)
    copies = features.detach().repeat(count, 1, 1, 1).requires_grad_()  # one for each word
    lengths = torch.arange(count, 0, -1, device=device)  # the longest first, as captions are read
    read = model.unroll(copies, said[:-1].expand(count, -1), lengths)
    last = read.steps == lengths[read.rows] - 1
    told = said[lengths[read.rows[last]]]
    surprises = read.logits[last].log_softmax(-1).gather(1, told[:, None])
    [gradients] = torch.autograd.grad(surprises.sum(), [copies])
    return grad_cam(copies.detach(), gradients).flip(0)


def _told(said: Caption) -> AttentionMap:
    made = {**said.maps.made, "caption": said.text, "score": said.score}
    return replace(said.maps, made=made)


WORD_METHODS: dict[str, Callable[..., list[AttentionMap]]] = {
    "words": word_maps,
    "word_gradcam": word_gradcam,
}
"""From a captioner and images to maps with one label per word."""
