"""Captions of vision-language models of transformers, with one attention map per word."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from visattn.images.reader import ImageLike
from visattn.pipelines.word_source import check_method, with_word_maps
from visattn.pipelines.words.language_model import list_prompts, take_photo
from visattn.pipelines.words.methods import ReplayedWords
from visattn.pipelines.words.replay import Controls, WordReplay, generate_and_replay
from visattn.results.captions import Caption


def check_controls(method: str, controls: Controls) -> None:
    """Refuse a method that is unknown, or controls that do not apply to it.

    Raises:
        ValueError: With what would fit.
    """
    if method in ("relevance", "gradient_embedding", "gradcam"):
        raise ValueError(
            f"{method} is for captioners of visattn; models of transformers have the methods "
            "attention, gradient_attention and occlusion"
        )
    check_method(method, controls.layers, controls.heads)
    if controls.relative and method != "attention":
        raise ValueError(f"relative corrects attention, not the maps of {method}")


def caption_replay(
    replay: WordReplay, method: str = "attention", controls: Controls | None = None
) -> Caption:
    """Return a caption with the maps of its words, by default their attention.

    Raises:
        ValueError: If the model does not allow it.
    """
    controls = controls or Controls()
    if method == "attention":
        return replay.caption(controls)
    layers = None if controls.layers is None else replay.select(controls.layers)
    words = ReplayedWords(replay)
    caption = with_word_maps(replay.caption(), words, method, layers=layers, heads=controls.heads)
    return words.described(caption, controls.describe())


def caption_with_transformers(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike | None = None,
    *,
    processor: Any,
    prompt: Any = None,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
    relative: bool = False,
    per_token: bool = False,
    method: str = "attention",
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **generate_kwargs: Any,
) -> list[Caption]:
    """Caption photos with a model of transformers, with the attention map of each word.

    The text is generated as `model.generate` does it. One more forward pass over prompt and words
    gives the attention; it is only used if it has the log-probabilities of the generation. Where
    image tokens lie on the photo is found by probing the model and its processor.

    Args:
        model: A model of transformers that generates text from images.
        images: One photo or several, as for `visattn.caption`; None if chat messages hold them.
        processor: Its processor, or a pair of image processor and tokenizer.
        prompt: An instruction for chat models, the beginning of the caption for others; chat
            messages as for `apply_chat_template`, which hold the photo or say where it stands by
            `{"type": "image"}`; or a list of either, one per photo. By default that of the model's
            training, "Describe this image." for chat models.
        layers: Number of a layer, or numbers of layers whose mean is taken, as the model counts;
            None for all that have attention weights over the photo.
        heads: Number of a head, or numbers of heads whose mean is taken; None for all.
        relative: Divide the row of each word by that of a neutral prompt.
        per_token: Return a map for each token instead of each word. Scripts without spaces between
            words, such as Chinese and Thai, are always split at tokens.
        method: What the maps show: `attention`, `gradient_attention` or `occlusion`.
        chat_template_kwargs: Options of `apply_chat_template`: `tools`, `enable_thinking`, ...
        generate_kwargs: Options of `generate`: `max_new_tokens`, `num_beams`, `do_sample`, ...

    Returns:
        One caption per photo; with `num_return_sequences` the others are its `alternatives`. Its
        `gates` are the shares of the words' attention that lie on the photo.

    Raises:
        TypeError: If the model does not generate text from images, or the processor is none.
        ValueError: If attention cannot be recorded or placed on the photo, a layer or head does
            not exist, or the prompt is too long.

    Source:
        Attention of multimodal language models: Zhang et al. 2025, arXiv:2502.17422. Replay and
        probe are ours.
    """
    controls = Controls(
        (layers,) if isinstance(layers, int) else None if layers is None else tuple(layers),
        (heads,) if isinstance(heads, int) else None if heads is None else tuple(heads),
        relative=relative,
    )
    check_controls(method, controls)
    several = list_prompts(prompt)
    taken = [take_photo(each) for each in (several or [prompt])]
    prompt = [text for text, _ in taken] if several else taken[0][0]
    if held := [photo for _, photo in taken if photo is not None]:
        if images is not None:
            raise ValueError("the messages hold the photo: leave out images, or the one of both")
        images = held
    replays = generate_and_replay(
        model,
        [] if images is None else images,
        processor=processor,
        prompt=prompt,
        keep_heads=heads is not None and method == "attention",
        per_token=per_token,
        chat_template_kwargs=chat_template_kwargs,
        **generate_kwargs,
    )
    captions: list[Caption] = []
    for of_photo in replays:
        best, *others = (caption_replay(replay, method, controls) for replay in of_photo)
        captions.append(replace(best, alternatives=tuple(others)))
    return captions
