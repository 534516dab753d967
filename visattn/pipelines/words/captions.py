"""Captions of vision-language models of transformers, with one attention map per word."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from visattn.data.images.reader import ImageLike
from visattn.pipelines.captioning import Caption
from visattn.pipelines.words.controls import Controls
from visattn.pipelines.words.prompt_images import PromptImages, PromptLike
from visattn.pipelines.words.replay import generate_and_replay


def caption_with_transformers(
    model: nn.Module,
    images: Iterable[PromptLike | PromptImages] | ImageLike,
    *,
    processor: Any,
    prompt: Any = None,
    batch_size: int = 1,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    relative: bool = False,
    without_sinks: bool = False,
    per_token: bool = False,
    num_frames: int | None = None,
    **generate_kwargs: Any,
) -> list[Caption]:
    """Caption images with a model of transformers, with the attention map of each word.

    The text is generated as `model.generate` does it. One more forward pass over the words,
    or over prompt and words, gives the attention; it is only used if it has the log-probabilities
    of the generation. Where image tokens lie on the photo is found by probing the model and its
    processor.

    Args:
        model: A model of transformers that generates text from images.
        images: One image or several, as for `visattn.caption`. A list among them holds the photos
            of one prompt: `[[first, second]]` gives one caption of both. A video file gives one
            caption of its frames.
        processor: Its processor, or a pair of image processor and tokenizer.
        prompt: An instruction for chat models, the beginning of the caption for others; chat
            messages as for `apply_chat_template`, in which `{"type": "image"}` stands for a photo
            and `{"type": "video"}` for the video; or a list of either, one per photo or list of
            photos. By default that of the model's training, "Describe this image." for chat
            models.
        batch_size: Photos that are captioned together, padded at the left. Several photos in one
            prompt, and videos, are captioned one by one.
        layers: Indices of the layers whose mean is taken; None for all.
        heads: Indices of the heads whose mean is taken; None for all.
        relative: Divide the row of each word by the mean row of the other words.
        without_sinks: Remove image tokens that draw weight for every word.
        per_token: Return a map for each token instead of each word. Scripts without spaces between
            words, such as Chinese and Thai, are always split at tokens.
        num_frames: Number of frames of a video, evenly spaced. By default those that the processor
            samples, or 8 if it samples none.
        generate_kwargs: Options of `generate`: `max_new_tokens`, `num_beams`, `do_sample`, ...

    Returns:
        One caption per image; with `num_return_sequences` the others are its `alternatives`. Its
        `gates` are the shares of the words' attention that lie on the photo, or on all photos of
        the prompt, whose `further_maps` are those of the second and later ones. The maps of a video
        have an axis of its frames, `[words, frames, y, x]`; `maps.metadata` has their numbers
        (`frames`) and times (`seconds`).

    Raises:
        TypeError: If the model does not generate text from images, or the processor is none.
        ValueError: If attention cannot be recorded or placed on the photo, a layer or head does
            not exist, the prompt is too long, or model and processor take one photo per prompt, or
            no video.

    Source:
        Attention of multimodal language models: Zhang et al. 2025, arXiv:2502.17422. Replay and
        probe are ours.
    """
    as_tuple = (None if each is None else tuple(each) for each in (layers, heads))
    controls = Controls(*as_tuple, relative=relative, without_sinks=without_sinks)
    replays = generate_and_replay(
        model,
        images,
        processor=processor,
        prompt=prompt,
        batch_size=batch_size,
        keep_heads=heads is not None,
        per_token=per_token,
        num_frames=num_frames,
        **generate_kwargs,
    )
    captions: list[Caption] = []
    for best, *others in replays:
        alternatives = tuple(replay.caption(controls=controls) for replay in others)
        captions.append(replace(best.caption(controls=controls), alternatives=alternatives))
    return captions
