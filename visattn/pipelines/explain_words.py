"""Maps per word of a captioner: attention weights and Grad-CAM of each word."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.data.images.reader import ImageLike, read_image
from visattn.data.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.functional.attribution.cam import grad_cam
from visattn.models.captioner import START, Captioner
from visattn.pipelines.captioning import Caption, caption
from visattn.recording.attention_map import AttentionMap
from visattn.recording.frozen_model import frozen


def word_maps(model: Captioner, images: Sequence[ImageLike], **options: Any) -> list[AttentionMap]:
    """Return the attention map of each word of the best caption.

    Args:
        model: Captioner.
        images: Images of any size.
        options: Arguments of `caption`.
    """
    return [_maps_with_caption(result) for result in caption(model, list(images), **options)]


def word_gradcam(
    model: Captioner,
    images: Sequence[ImageLike],
    *,
    resize_mode: ResizeMode = "crop",
    **options: Any,
) -> list[AttentionMap]:
    """Return the Grad-CAM of each word of the best caption on the encoder features.

    Attention weights show which places a word read; Grad-CAM shows which of them support it.

    Args:
        model: Captioner.
        images: Images of any size.
        resize_mode: How images get the shape of the input: `crop`, `squash` or `pad`.
        options: Arguments of `caption`.

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391, section 7.1.
    """
    token_ids = {word: token for token, word in enumerate(model.words)}
    spec = ResizeSpec(size=model.encoder.img_size, mode=resize_mode)
    results: list[AttentionMap] = []
    captions = caption(model, list(images), resize_mode=resize_mode, **options)
    for image, result in zip(images, captions, strict=True):
        pixels, _ = resize_to_input(read_image(image), spec)
        with frozen(model):
            features = model.encoder(pixels[None].to(model.encoder.shift.device))
            values = word_gradcam_maps(model, features, [token_ids[word] for word in result.words])
        maps = _maps_with_caption(result)
        results.append(replace(maps, values=values.float().cpu(), kind="gradient", site="encoder"))
    return results


def word_gradcam_maps(
    model: Captioner, features: Float[Tensor, "1 c y x"], words: Sequence[int]
) -> Float[Tensor, "t y x"]:
    """Return the Grad-CAM of each word's log-probability, given the words before it.

    Args:
        model: Captioner.
        features: Encoder features of one image.
        words: Token ids of the caption, without start and end.

    Example:
        >>> from visattn.models.captioner import SPECIAL_TOKENS
        >>> from visattn.models.encoder import SmallEncoder
        >>> from visattn.models.captioning.show_attend_tell import ShowAttendTell
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = ShowAttendTell((*SPECIAL_TOKENS, "red", "blue"), encoder, hidden_size=11).eval()
        >>> word_gradcam_maps(model, torch.rand(1, 8, 3, 5), [4, 5, 4]).shape
        torch.Size([3, 3, 5])

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391, section 7.1: Grad-CAM of the word's
        log-probability.
    """
    count, device = len(words), features.device
    tokens = torch.tensor([START, *words], device=device)
    copies = features.detach().repeat(count, 1, 1, 1).requires_grad_()  # one copy per word
    lengths = torch.arange(count, 0, -1, device=device)  # descending, as captions are packed
    output = model.teacher_force(copies, tokens[:-1].expand(count, -1), lengths)
    last = output.steps == lengths[output.rows] - 1
    targets = tokens[lengths[output.rows[last]]]
    log_probs = output.logits[last].log_softmax(-1).gather(1, targets[:, None])
    [gradients] = torch.autograd.grad(log_probs.sum(), [copies])
    return grad_cam(copies.detach(), gradients).flip(0)


def _maps_with_caption(result: Caption) -> AttentionMap:
    metadata = {**result.maps.metadata, "caption": result.text, "score": result.score}
    return replace(result.maps, metadata=metadata)


WORD_METHODS: dict[str, Callable[..., list[AttentionMap]]] = {
    "words": word_maps,
    "word_gradcam": word_gradcam,
}
"""From a captioner and images to maps with one label per word."""
