"""Captions of vision-language models of transformers, with one attention map per word."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from visattn.images.reader import ImageLike
from visattn.pipelines.word_source import SELECTABLE, check_selection, with_word_maps
from visattn.pipelines.words.contrast import contrast_replay
from visattn.pipelines.words.controls import Controls
from visattn.pipelines.words.language_model import list_prompts
from visattn.pipelines.words.methods import ReplayedWords
from visattn.pipelines.words.prompts import PromptImages, PromptLike
from visattn.pipelines.words.replay import WordReplay, generate_and_replay
from visattn.pipelines.words.row_statistics import head_overview, text_attention
from visattn.results.captions import Caption, Phrase


@dataclass(frozen=True)
class WordOptions:
    """What is shown of each word of a caption.

    Args:
        method: Method of the maps, as for `replay_maps`.
        controls: Selected layers and heads, and corrections of attention.
        contrast: Another prompt by whose attention that of each word is divided; None for none.
        text_attention: Whether captions say which words of the text each word attends to.
        head_overview: Whether captions have statistics of each layer and head.

    Raises:
        ValueError: If a control or contrast is combined with a method that it does not apply to.
    """

    method: str = "attention"
    controls: Controls = field(default_factory=Controls)
    contrast: Any = None
    text_attention: bool = False
    head_overview: bool = False

    def __post_init__(self) -> None:
        """Check that options fit together."""
        own = self.controls
        if not self.text_attention:  # which reads selected layers, whatever the method
            check_selection(self.method, own.layers, own.heads)
        for name in ("relative", "without_sinks"):
            if getattr(own, name) and self.method != "attention":
                raise ValueError(f"{name} corrects attention, not the maps of {self.method}")
            if getattr(own, name) and self.contrast is not None:
                raise ValueError(
                    f"{name} cannot be combined with contrast, which divides by the attention with "
                    "another prompt: leave out one of them"
                )
        if self.contrast is not None and self.method != "attention":
            raise ValueError(f"contrast divides attention, not the maps of {self.method}")
        if self.contrast is not None and list_prompts(self.contrast) is not None:
            raise ValueError("contrast must be one prompt for all photos, got a list")


def caption_replay(
    replay: WordReplay, options: WordOptions | None = None, *, phrases: Sequence[Phrase] = ()
) -> Caption:
    """Return a caption with the maps and statistics of its words, by default the attention.

    Phrases have boxes for the overview of heads.

    Raises:
        ValueError: If the model does not allow it.
    """
    options = options or WordOptions()
    own = options.controls
    if not replay.shown.is_single_photo and (options.contrast is not None or options.head_overview):
        name = "head_overview" if options.contrast is None else "contrast"
        raise ValueError(f"{name} is for one photo, but the prompt shows several images")
    if options.contrast is not None:
        result = contrast_replay(replay, replay.process.with_prompt(options.contrast), own)
    elif options.method == "attention":
        result = replay.caption(own)
    else:
        chosen = own if options.method in SELECTABLE else Controls()
        result = with_word_maps(
            replay.caption(),
            ReplayedWords(replay),
            options.method,
            layers=chosen.layers,
            heads=chosen.heads,
        )
    if options.text_attention:
        text = text_attention(replay, layers=own.layers, heads=own.heads)
        result = replace(result, text_attention=text)
    if options.head_overview and replay.words:
        result = replace(result, head_overview=head_overview(replay, phrases))
    return result


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
    method: str = "attention",
    contrast: Any = None,
    text_attention: bool = False,
    head_overview: bool = False,
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
        method: What the maps show: `attention`, `gradient_attention`, `relevance`,
            `gradient_embedding`, `gradcam`, `occlusion`, `tam`, `tower_gradcam`, `input_gradient`
            or `smoothgrad`.
        contrast: Another prompt: maps are the attention of each word divided by that of the same
            word behind this prompt.
        text_attention: Whether each caption has the attention of its words to the prompt and to
            earlier words, as `text_attention`.
        head_overview: Whether each caption has the statistics of each layer and head, as
            `head_overview`.
        generate_kwargs: Options of `generate`: `max_new_tokens`, `num_beams`, `do_sample`, ...

    Returns:
        One caption per image; with `num_return_sequences` the others are its `alternatives`. Its
        `gates` are the shares of the words' attention that lie on the photo, or on all photos of
        the prompt, whose `further_maps` are those of the second and later ones. The maps of a video
        have an axis of its frames, `[words, frames, y, x]`; `maps.info` has their numbers
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
    controls = Controls(
        None if layers is None else tuple(layers),
        None if heads is None else tuple(heads),
        relative=relative,
        without_sinks=without_sinks,
    )
    shown = WordOptions(method, controls, contrast, text_attention, head_overview)
    replays = generate_and_replay(
        model,
        images,
        processor=processor,
        prompt=prompt,
        batch_size=batch_size,
        keep_heads=heads is not None and method == "attention",
        per_token=per_token,
        num_frames=num_frames,
        **generate_kwargs,
    )
    captions: list[Caption] = []
    for of_prompt in replays:
        best, *others = (caption_replay(replay, shown) for replay in of_prompt)
        captions.append(replace(best, alternatives=tuple(others)))
    return captions
