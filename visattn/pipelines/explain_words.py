"""Maps per word of a captioner: attention, gradients, relevance, Grad-CAM and occlusion."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from visattn.images.reader import ImageLike, LoadedImage, read_image
from visattn.images.resize import ResizeMode
from visattn.models.captioning.captioner import Captioner
from visattn.pipelines.captioner_words import CaptionerWords
from visattn.pipelines.captioning import caption
from visattn.pipelines.word_source import with_word_maps
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo
from visattn.results.kinds import WordMethod


def explain_words(
    model: Captioner,
    images: Sequence[ImageLike],
    method: WordMethod,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    window_cells: int | None = None,
    resize_mode: ResizeMode = "crop",
    **options: Any,
) -> list[AttentionMap]:
    """Return a map per word of the best caption of each image, by one of several methods.

    Args:
        model: Captioner.
        images: Images of any size.
        method: `attention`; `gradient_attention`, attention times the gradient of the word's
            log-probability; `relevance`, this through all layers of the decoder;
            `gradient_embedding`, the product of features and gradient; `gradcam`; `occlusion`.
        layers: For the first two: indices of layers that attend to the image.
        heads: For the first two: indices of heads.
        window_cells: For occlusion: side of the window in cells of the feature grid; by default 2.
        resize_mode: How images get the shape of the input: `crop`, `squash` or `pad`.
        options: Arguments of `caption`.

    Raises:
        ValueError: If the method is unknown, or does not take an argument.

    Example:
        >>> import numpy as np
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> from visattn.models.captioning.show_attend_tell import ShowAttendTell
        >>> encoder = SmallEncoder((24, 24), channels=8)
        >>> model = ShowAttendTell((*SPECIAL_TOKENS, "red"), encoder, hidden_size=8)
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> [maps] = explain_words(model, [photo], "relevance", max_length=2)
        >>> maps.values.shape[1:], maps.info.method
        (torch.Size([3, 3]), 'relevance')

    Source:
        Grad-CAM of a word: Selvaraju et al. 2017, arXiv:1610.02391, section 7.1.
    """
    captions = caption(model, list(images), resize_mode=resize_mode, **options)
    explained = explain_captions(
        model,
        [read_image(image) for image in images],
        captions,
        method,
        layers=layers,
        heads=heads,
        window_cells=window_cells,
        resize_mode=resize_mode,
    )
    return [_maps_with_caption(result) for result in explained]


def explain_captions(
    model: Captioner,
    images: Sequence[LoadedImage],
    captions: Sequence[Caption],
    method: WordMethod,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    window_cells: int | None = None,
    resize_mode: ResizeMode = "crop",
) -> list[Caption]:
    """Return captions, and their alternatives, with the maps of another method.

    Args:
        model: The captioner that generated them.
        images: Their images.
        captions: As `caption` returns them.
        method: As for `explain_words`.
        layers: As for `explain_words`.
        heads: As for `explain_words`.
        window_cells: As for `explain_words`.
        resize_mode: As for `caption`.

    Raises:
        ValueError: If the method is unknown, or does not take an argument.
    """

    def explain(image: LoadedImage, result: Caption) -> Caption:
        source = CaptionerWords.read(model, image, result.words, resize_mode=resize_mode)
        return with_word_maps(
            result, source, method, layers=layers, heads=heads, window_cells=window_cells
        )

    results: list[Caption] = []
    for image, result in zip(images, captions, strict=True):
        others = tuple(explain(image, each) for each in result.alternatives)
        results.append(replace(explain(image, result), alternatives=others))
    return results


def _maps_with_caption(result: Caption) -> AttentionMap:
    of_text = MapInfo(score=result.score, more={"caption": result.text})
    return replace(result.maps, info=result.maps.info | of_text)


WORD_METHODS: dict[str, Callable[..., list[AttentionMap]]] = {
    "words": partial(explain_words, method="attention"),
    "word_gradcam": partial(explain_words, method="gradcam"),
    "word_gradient_attention": partial(explain_words, method="gradient_attention"),
    "word_relevance": partial(explain_words, method="relevance"),
    "word_gradient_embedding": partial(explain_words, method="gradient_embedding"),
    "word_occlusion": partial(explain_words, method="occlusion"),
}
"""From a captioner and images to maps with one label per word."""
