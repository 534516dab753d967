"""Maps per word of a captioner: attention, gradients, relevance, Grad-CAM and occlusion."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from jaxtyping import Float
from torch import Tensor

from visattn.attribution.words import word_attention, word_attributions
from visattn.images.reader import ImageLike, LoadedImage, read_image
from visattn.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.models.captioner import Captioner
from visattn.pipelines.captioner_words import captioner_run, word_occlusion
from visattn.pipelines.captioning import caption
from visattn.recording.frozen_model import frozen
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo
from visattn.results.kinds import TRANSFORMERS_WORD_METHODS, WORD_QUANTITIES, WordMethod


def word_maps(model: Captioner, images: Sequence[ImageLike], **options: Any) -> list[AttentionMap]:
    """Return the attention map of each word of the best caption.

    Args:
        model: Captioner.
        images: Images of any size.
        options: Arguments of `explain_words`.
    """
    return explain_words(model, images, "attention", **options)


def word_gradcam(
    model: Captioner, images: Sequence[ImageLike], **options: Any
) -> list[AttentionMap]:
    """Return the Grad-CAM of each word of the best caption on the encoder features.

    Attention weights show which places a word read; Grad-CAM shows which of them support it.

    Args:
        model: Captioner.
        images: Images of any size.
        options: Arguments of `explain_words`.

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391, section 7.1.
    """
    return explain_words(model, images, "gradcam", **options)


def explain_words(
    model: Captioner,
    images: Sequence[ImageLike],
    method: WordMethod,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    window_cells: int = 2,
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
        window_cells: For occlusion: side of the window in cells of the feature grid.
        resize_mode: How images get the shape of the input: `crop`, `squash` or `pad`.
        options: Arguments of `caption`.

    Raises:
        ValueError: If the method is unknown, or does not take an argument.

    Example:
        >>> import numpy as np
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.encoder import SmallEncoder
        >>> from visattn.models.captioning.show_attend_tell import ShowAttendTell
        >>> encoder = SmallEncoder((24, 24), channels=8)
        >>> model = ShowAttendTell((*SPECIAL_TOKENS, "red"), encoder, hidden_size=8)
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> [maps] = explain_words(model, [photo], "relevance", max_length=2)
        >>> maps.values.shape[1:], maps.info.method
        (torch.Size([3, 3]), 'relevance')
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
    window_cells: int = 2,
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
    check_word_method(method, layers=layers, heads=heads)
    if method == "attention" and layers is None and heads is None:
        return list(captions)
    spec = ResizeSpec(size=model.encoder.img_size, mode=resize_mode)
    results: list[Caption] = []
    for image, result in zip(images, captions, strict=True):
        pixels, _ = resize_to_input(image, spec)
        compute = partial(
            caption_maps,
            model,
            pixels[None].to(model.encoder.shift.device),
            methods=[method],
            layers=layers,
            heads=heads,
            window_cells=window_cells,
        )
        variants = [
            replace(each, maps=_placed(each.maps, compute(_tokens(model, each))[method], method))
            for each in (result, *result.alternatives)
        ]
        results.append(replace(variants[0], alternatives=tuple(variants[1:])))
    return results


def caption_maps(
    model: Captioner,
    image: Tensor,
    words: Sequence[int],
    methods: Sequence[WordMethod],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    window_cells: int = 2,
) -> dict[str, Float[Tensor, "t gy gx"]]:
    """Return a map per word of a caption by several methods, on the grid of the encoder.

    Methods that need gradients share one backward pass per word.

    Args:
        model: Captioner; its mode and gradients are restored.
        image: One image `1 3 y x` of the size of the encoder's input, uint8 or normalized.
        words: Token ids of the caption, generated or given, without start and end.
        methods: As for `explain_words`.
        layers: As for `explain_words`.
        heads: As for `explain_words`.
        window_cells: As for `explain_words`.

    Raises:
        ValueError: If a method is unknown, or does not take an argument.
    """
    for method in methods:
        check_word_method(method, layers=layers, heads=heads)
    by_gradient = [name for name in methods if name not in ("attention", "occlusion")]
    maps: dict[str, Tensor] = {}
    with frozen(model):
        if "occlusion" in methods:
            pixels = model.encoder.normalize(image)
            maps["occlusion"] = word_occlusion(model, pixels, words, window_cells=window_cells)
        if by_gradient or "attention" in methods:
            run = captioner_run(model, model.encoder(image), words)
            rows = word_attributions(run, by_gradient, layers=layers, heads=heads)
            if "attention" in methods:
                rows["attention"] = word_attention(run, layers=layers, heads=heads)
            grid = model.encoder.grid_size
            maps |= {name: each.detach().unflatten(-1, grid) for name, each in rows.items()}
    return {name: maps[name] for name in methods}


def word_gradcam_maps(
    model: Captioner, features: Float[Tensor, "1 c y x"], words: Sequence[int]
) -> Float[Tensor, "t y x"]:
    """Return the Grad-CAM of each word's log-probability, given the words before it.

    Args:
        model: Captioner.
        features: Encoder features of one image.
        words: Token ids of the caption, without start and end.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
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
    rows = word_attributions(captioner_run(model, features, words), ["gradcam"])["gradcam"]
    return rows.unflatten(-1, (features.shape[-2], features.shape[-1]))


def check_word_method(
    method: str, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> None:
    """Refuse an unknown method for words, or arguments that it does not take.

    Raises:
        ValueError: With what would fit.
    """
    if method in TRANSFORMERS_WORD_METHODS:
        raise ValueError(
            f"{method} is for the words of models of transformers; for captioners of visattn, "
            "gradcam reads the features of the encoder, and gradient_embedding their gradient"
        )
    if method not in get_args(WordMethod):
        known = ", ".join(get_args(WordMethod))
        raise ValueError(f"methods for words are {known}; got {method!r}")
    if method not in ("attention", "gradient_attention") and (layers, heads) != (None, None):
        raise ValueError(
            f"layers and heads select attention weights, which {method} does not read one by one; "
            "use attention or gradient_attention, or leave them out"
        )


def _tokens(model: Captioner, result: Caption) -> list[int]:
    token_ids = {word: token for token, word in enumerate(model.words)}
    return [token_ids[word] for word in result.words]


def _placed(
    maps: AttentionMap, values: Float[Tensor, "t gy gx"], method: WordMethod
) -> AttentionMap:
    """Return the maps of a method at the place of the attention maps of the same words."""
    if method == "occlusion":  # its windows divide the image, wherever the features look
        maps = maps.aligned("edges")
    kind = "words" if method == "attention" else "gradient"
    site = maps.site if method == "attention" else "encoder"
    info = replace(maps.info, method=method)
    if method != "attention":  # gradients of a sure word are small: all words share one scale
        sums = values.sum((-2, -1), keepdim=True)
        values = values / sums.masked_fill(sums <= 0, 1.0)
        info |= MapInfo(quantity=WORD_QUANTITIES[method], more={"scale": "each map sums to 1"})
    return replace(maps, values=values.float().cpu(), kind=kind, site=site, info=info)


def _maps_with_caption(result: Caption) -> AttentionMap:
    of_text = MapInfo(score=result.score, more={"caption": result.text})
    return replace(result.maps, info=result.maps.info | of_text)


WORD_METHODS: dict[str, Callable[..., list[AttentionMap]]] = {
    "words": word_maps,
    "word_gradcam": word_gradcam,
    "word_gradient_attention": partial(explain_words, method="gradient_attention"),
    "word_relevance": partial(explain_words, method="relevance"),
    "word_gradient_embedding": partial(explain_words, method="gradient_embedding"),
    "word_occlusion": partial(explain_words, method="occlusion"),
}
"""From a captioner and images to maps with one label per word."""
