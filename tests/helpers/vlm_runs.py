"""Runs of tiny vision-language models, with rows of words read without the word engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from tiny_vlms import PROMPT, WORDS, build
from torch import Tensor, nn
from torch.nn import functional as F

from visattn.images.reader import LoadedImage
from visattn.pipelines.words.captions import PhotoWords, read_words
from visattn.pipelines.words.language_model import PhotoProcessor

VLMS = [
    "ved", "trocr", "donut", "blip2", "instructblip", "git", "llava", "llava_next",
    "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "paligemma", "gemma3", "idefics2",
    "idefics3", "smolvlm", "internvl", "florence2", "kosmos2", "pix2struct", "mllama",
    "deepseek_vl", "ovis2", "mistral3", "aya_vision", "lfm2_vl", "blip", "got_ocr2", "video_llava",
    "t5gemma2",
]  # fmt: skip
"""Families whose rows are compared with those of eager attention."""
NUM_WORDS = 5
WITH_PROMPT = ("instructblip", "llava", "internvl", "llava_next", "t5gemma2")
CROSS = ("ved", "trocr", "donut", "blip", "florence2", "pix2struct")
"""Families whose words read image tokens by cross-attention alone."""


def photo(size: tuple[int, int] = (180, 300), seed: int = 0) -> LoadedImage:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return LoadedImage(pixels)


def sharpened(model: Any) -> Any:
    """Return a model with larger weights: its attention is far from even, and reads the photo."""
    with torch.no_grad():
        for parameter in model.eval().parameters():
            if parameter.ndim > 1 and 0 < float(parameter.std()) < 0.1:
                parameter.mul_(10.0)
    model.generation_config.forced_eos_token_id = None
    return model


@cache
def sharp(family: str) -> tuple[nn.Module, Any]:
    """Return a tiny sharpened model, and its processor."""
    model, processor = build(family)
    return sharpened(model), processor


def prompt_of(family: str) -> str | None:
    if family == "hunyuan_vl":  # its processor adds no place for the photo
        return f"<image_start><image><image_end> {PROMPT}"
    return PROMPT if family in WITH_PROMPT or family not in VLMS else None


def words_only(processor: Any, vocabulary: int) -> list[int]:
    """Return the ids that are no words, which are suppressed: others decode to nothing."""
    tokenizer = processor[1] if isinstance(processor, tuple) else processor.tokenizer
    words = set(tokenizer.convert_tokens_to_ids(list(WORDS)))
    return [number for number in range(vocabulary) if number not in words]


def options(family: str, **more: Any) -> dict[str, Any]:
    model, processor = sharp(family)
    config: Any = model.config
    text = config.get_text_config(decoder=True)
    return {
        "max_new_tokens": NUM_WORDS, "min_new_tokens": NUM_WORDS, "do_sample": False,
        "suppress_tokens": words_only(processor, text.vocab_size), **more,
    }  # fmt: skip


def replays(
    family: str, model: tuple[nn.Module, Any] | None = None, **more: Any
) -> list[PhotoWords]:
    """Return the words of the photo."""
    own, processor = model or sharp(family)
    generation: Any = own.generation_config
    generation.forced_eos_token_id = None
    [result] = read_words(
        own, photo(), processor=processor, prompt=prompt_of(family), **options(family, **more)
    )
    return result


@cache
def greedy(family: str) -> PhotoWords:
    return replays(family)[0]


def model_inputs(family: str, **kwargs: Any) -> dict[str, Any]:
    model, processor = sharp(family)
    process = PhotoProcessor(model, processor, prompt_of(family))
    return process(Image.fromarray(photo().pixels), **kwargs)


@contextmanager
def eager(model: Any) -> Iterator[None]:
    """Run all attention of a model as plain matrix products, which returns its weights."""
    implementations = [
        (module.config, module.config._attn_implementation)
        for module in model.modules()
        if hasattr(module, "config") and hasattr(module.config, "_attn_implementation")
    ]
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        for config, implementation in implementations:
            config._attn_implementation = implementation


def plain_generate(family: str, **more: Any) -> Any:
    """Return what `generate` of transformers returns, with eager attention of each step."""
    model: Any = sharp(family)[0]
    torch.manual_seed(3)
    with torch.no_grad():
        return model.generate(
            **model_inputs(family),
            **options(family, return_dict_in_generate=True, output_scores=True, **more),
        )


def _layers(output: Any) -> Any:
    """Return attention of the text decoder: self- and cross-attention in turn, or one kind."""
    inner = getattr(output, "language_model_outputs", None)
    output = output if inner is None else inner
    own = getattr(output, "decoder_attentions", None) or getattr(output, "attentions", None)
    cross = getattr(output, "cross_attentions", None)
    return own, cross or None


def _sites(family: str, replay: PhotoWords, own: Any, cross: Any) -> list[Any]:
    """Return the attention of the layers in which words read image tokens."""
    if family in CROSS:
        return list(cross)
    if family == "t5gemma2":  # one attention over words and image, returned in two parts
        return [torch.cat(parts, -1) for parts in zip(own, cross, strict=True)]
    layers = [each for each in own if each is not None]
    if family == "mllama":
        return [layers[number] for number in replay.layers]
    return layers


def whole_text(replay: PhotoWords) -> dict[str, Any]:
    """Return the inputs of one forward pass of a decoder over prompt and words."""
    ids = torch.cat([replay.inputs["input_ids"][0], replay.text.tokens[:-1]])[None]
    return {**replay.inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}


def rows_in_flight(family: str, replay: PhotoWords, output: Any, chosen: list[int]) -> Tensor:
    """Return the rows of the words that were recorded while they were generated.

    Args:
        family: The family.
        replay: Its words, for layers and columns alone.
        output: What `generate` returned.
        chosen: Row of the batch that chose each word.
    """
    own, cross = _layers(output)
    steps = []
    for step, row in enumerate(chosen):
        layers = _sites(family, replay, own[step], cross[step] if cross else None)
        rows = []
        for layer in layers:
            weights = layer[row, :, -1].mean(0)
            keys = len(replay.inputs.get("input_ids", [[]])[0]) + step
            if family not in (*CROSS, "mllama"):  # sliding windows hold the last keys only
                weights = F.pad(weights, (max(0, keys - len(weights)), 0))
            columns = replay.tokens.columns
            if family == "t5gemma2":  # image tokens stand behind the words so far
                columns = columns + step
            rows.append(weights[columns])
        steps.append(torch.stack(rows))
    return torch.stack(steps, 1)
