"""Replay of generated captions: one recorded forward pass over the words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from visattn.images.reader import ImageLike, LoadedImage, make_thumbnail
from visattn.images.sources import read_images
from visattn.pipelines.words.checks import (
    check_captioner,
    check_memory,
    check_prompt_end,
    check_prompt_length,
)
from visattn.pipelines.words.controls import Controls, relative_rows, select_indices
from visattn.pipelines.words.image_tokens import find_image_tokens
from visattn.pipelines.words.language_model import (
    GeneratedText,
    PhotoProcessor,
    generate,
    list_prompts,
    pixel_name,
    replay_inputs,
    without_padding,
)
from visattn.pipelines.words.placement import Placement
from visattn.pipelines.words.recorded_pass import forward_logits, record_rows, token_log_probs
from visattn.pipelines.words.spans import Words, split_words, word_means
from visattn.recording.attention_call import recordable_attention
from visattn.recording.frozen import eval_mode, frozen
from visattn.recording.key_sources import KeySources
from visattn.recording.word_rows import WordRows
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo

_UNTOUCHED = Controls()


@dataclass(frozen=True, eq=False)
class ReplayRun:
    """One forward pass over a caption.

    Args:
        log_probs: Log-probability of each generated token.
        weights: Complete attention weights of the recorded layers; with graph if requested.
        origins: What the keys of these layers are made from, as the model holds it: nodes of the
            graph of `log_probs`.
    """

    log_probs: Float[Tensor, " t"]
    weights: Mapping[str, Float[Tensor, "h n m"]]
    origins: Mapping[str, Tensor]


@dataclass(eq=False)
class WordReplay:
    """A generated caption with the attention of its tokens over the image tokens of the model.

    Args:
        process: Preprocessing of the model, with the prompt.
        inputs: Arguments of its forward pass over prompt and words, without cache.
        image: The photo, upright.
        token_ids: Generated tokens, the end token included.
        words: Words of the caption.
        spans: First token of each word, and the one after its last.
        log_probs: Log-probability of each token, as generated.
        sites: Attention layers in which words read image tokens, in their order.
        text_sites: All attention layers of the text decoder.
        placement: Places of the image tokens on the photo.
        rows: Attention of each token over the image tokens, mean over heads, on the CPU.
        notes: How the image tokens were placed, if not by their own pixels.
        finished: Whether the last token is a special one, such as that of the end.
        head_rows: The rows of each head, float16, if they were kept.
        states: Rows of the image tokens in the inputs of these layers; None if these are others.
        spaces: Whether white space stands before each word.
        kernel: Attention implementation with which parts of the model run that hide their weights.
    """

    process: PhotoProcessor
    inputs: dict[str, Any]
    image: LoadedImage
    token_ids: Int[Tensor, " t"]
    words: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    log_probs: Float[Tensor, " t"]
    sites: tuple[str, ...]
    text_sites: tuple[str, ...]
    placement: Placement
    rows: Float[Tensor, "site t i"]
    notes: tuple[str, ...] = ()
    finished: bool = True
    head_rows: Float[Tensor, "site h t i"] | None = None
    states: Int[Tensor, " s"] | None = None
    spaces: tuple[bool, ...] = ()
    kernel: str = "sdpa"

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.process.model

    @cached_property
    def pixel_name(self) -> str:
        """Name of the input that holds the pixels."""
        return pixel_name(self.inputs)

    def run(
        self,
        *,
        differentiable: bool = False,
        pixels: Tensor | None = None,
        sites: Iterable[str] | None = None,
    ) -> ReplayRun:
        """Run the model once over the caption, with all weights of the selected layers.

        Args:
            differentiable: Whether the result has a graph, and the model continues with the
                recorded weights.
            pixels: Other pixels of the same shape.
            sites: Layers to record; by default those in which words read image tokens.

        Raises:
            ValueError: If the weights do not fit into memory.
        """
        used = (self.inputs[self.pixel_name] if pixels is None else pixels).detach()
        wanted = dict.fromkeys(self.sites if sites is None else sites)
        check_memory(self.model, self.inputs, share=len(wanted) / max(len(self.text_sites), 1))
        with frozen(self.model), recordable_attention(self.model, self.kernel):
            used = used.clone().requires_grad_(differentiable)
            sources = KeySources(self.model, zero_attention=False)
            recorder = WordRows(self.model, wanted, keep=lambda _, weights: weights[0],
                                differentiable=differentiable)  # fmt: skip
            with torch.set_grad_enabled(differentiable), sources.collecting(), recorder.recording():
                logits = forward_logits(self.model, {**self.inputs, self.pixel_name: used},
                                        len(self.token_ids))[0]  # fmt: skip
            log_probs = token_log_probs(logits, self.token_ids)
        states = {site: sources.sources[site].origin for site in recorder.rows}
        origins = {site: tokens for site, tokens in states.items() if tokens is not None}
        return ReplayRun(log_probs, recorder.rows, origins)

    def word_rows(
        self, controls: Controls = _UNTOUCHED
    ) -> tuple[Float[Tensor, "w i"], dict[str, Any]]:
        """Return the attention of each word, the mean over its tokens, and how it was made.

        Relative attention compares words: the row of a single word stays as it is, with
        `untouched` in the details.

        Raises:
            ValueError: If layers or heads do not exist.
        """
        result = word_means(self._selected(controls).detach().float().cpu(), self.spans)
        details = controls.describe()
        if not controls.relative:
            return result, details
        if len(result) < 2:
            return result, {**details, "relative": False, "untouched": True}
        return relative_rows(result), details

    def _selected(self, controls: Controls) -> Float[Tensor, "t i"]:
        layers = select_indices("layers", controls.layers, len(self.sites))
        if controls.heads is None:
            return self.rows[layers].mean(0)
        if self.head_rows is None:
            raise ValueError("rows of single heads must be kept: pass keep_heads=True")
        heads = select_indices("heads", controls.heads, self.head_rows.shape[1])
        return self.head_rows[layers][:, heads].float().mean((0, 1))

    def caption(self, controls: Controls = _UNTOUCHED) -> Caption:
        """Return the caption with one map per word on the photo.

        The visible mass of each row is kept: a map sums to the share of the row on the photo.

        Raises:
            ValueError: If layers or heads do not exist.
        """
        words, details = self.word_rows(controls)
        values = self.placement.rasterize(words)
        shares = tuple(values.flatten(1).sum(1).tolist())
        details |= {"image_shares": shares, "placement": list(self.notes)}
        info = MapInfo("attention", model=type(self.model).__name__, image=self.image.name,
                       more=details)  # fmt: skip
        geometry = self.placement.geometry
        maps = AttentionMap(values, self.sites[-1], "words", geometry, info, self.words)
        log_probs = tuple(float(self.log_probs[slice(*span)].sum()) for span in self.spans)
        return Caption(
            words=self.words, log_probs=log_probs, gates=shares, maps=maps,
            score=float(self.log_probs.sum()), finished=self.finished, image=self.image.name,
            gate_symbol="on photo", notes=self.describe(info), spaces=self.spaces,
            thumbnail=make_thumbnail(self.image),
        )  # fmt: skip

    def describe(self, info: MapInfo) -> str:
        """Return in one line how maps were made."""
        details = info.more
        layers = details.get("layers")
        heads = details.get("heads")
        count = len(self.sites)
        parts = [f"{info.method} of {info.model}"]
        if layers is not None:
            parts.append(f"mean of {count} layers" if layers == "mean" else f"layers {layers}")
            parts.append("mean of heads" if heads == "mean" else f"heads {heads}")
        if details["relative"]:
            parts.append("relative to the other words")
        if details.get("untouched"):
            parts.append("relative attention compares words: this row is untouched")
        return "; ".join([*parts, *self.notes])


def generate_and_replay(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    *,
    processor: Any,
    prompt: Any = None,
    batch_size: int = 1,
    keep_heads: bool = False,
    per_token: bool = False,
    **generate_kwargs: Any,
) -> list[list[WordReplay]]:
    """Caption photos, and replay each caption once with recorded attention.

    Arguments as for `caption_with_transformers`; `keep_heads` keeps the rows of each head.

    Returns:
        For each photo its captions: one, or `num_return_sequences`.

    Raises:
        ValueError: If the attention of the model cannot be recorded or placed, the prompt is too
            long, or the replay does not reproduce the generation.
    """
    check_captioner(model)
    prompts = list_prompts(prompt)
    results: list[list[WordReplay]] = []
    for photos in _batches(read_images(images), batch_size):
        own: list[Any] = [prompt] * len(photos)
        if prompts is not None:
            own = prompts[len(results) : len(results) + len(photos)]
            # Photos are read batch by batch, so that their number is known at the end only.
            _check_count(prompts, len(results) + len(photos), exactly=False)
        processes = [PhotoProcessor(model, processor, text) for text in own]
        with frozen(model), torch.no_grad():
            singles, joint = _batch_inputs(processes, photos)
            check_prompt_length(model, singles, generate_kwargs)
            check_prompt_end(model, singles)
        with eval_mode(model):  # random numbers are drawn as in `generate`
            texts = generate(model, joint, processes[0].special_ids, generate_kwargs)
        per_prompt = len(texts) // len(photos)
        for index, (photo, inputs) in enumerate(zip(photos, singles, strict=True)):
            results.append([])
            for text in texts[index * per_prompt : (index + 1) * per_prompt]:
                single = without_padding(text, joint, inputs)
                replay = replay_text(processes[index], photo, inputs, single,
                                     keep_heads=keep_heads, per_token=per_token)  # fmt: skip
                results[-1].append(replay)
    if prompts is not None:
        _check_count(prompts, len(results), exactly=True)
    return results


def _batches(photos: Iterator[LoadedImage], size: int) -> Iterator[list[LoadedImage]]:
    while batch := list(islice(photos, size)):
        yield batch


def _check_count(prompts: Sequence[Any], photos: int, *, exactly: bool) -> None:
    if photos > len(prompts) or (exactly and photos != len(prompts)):
        raise ValueError(
            f"a list of prompts must have one for each photo, got {len(prompts)} prompts for "
            f"{photos} photos"
        )


def _batch_inputs(
    processes: list[PhotoProcessor], photos: list[LoadedImage]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the inputs of each prompt, and of all together, padded at the left."""
    images = [Image.fromarray(photo.pixels) for photo in photos]
    singles = [process([image]) for process, image in zip(processes, images, strict=True)]
    first = singles[0]
    # Inputs of one shape need no padding and are joined as they are. Others are processed once
    # more, together, by a processor that knows what to pad with.
    alike = all(
        isinstance(value, Tensor)
        and len(value) == 1
        and all(single[name].shape == value.shape for single in singles)
        for name, value in first.items()
    )
    if len(singles) == 1:
        return singles, first
    if alike:
        return singles, {name: torch.cat([s[name] for s in singles]) for name in first}
    return singles, processes[0](images, texts=[process.text for process in processes])


def replay_text(
    process: PhotoProcessor,
    photo: LoadedImage,
    inputs: dict[str, Any],
    text: GeneratedText,
    *,
    keep_heads: bool = False,
    per_token: bool = False,
) -> WordReplay:
    """Replay one generated text, and place its attention on the photo.

    Raises:
        ValueError: If the model has no attention from words to placed image tokens, or the replay
            does not reproduce the log-probabilities of the generation.
    """
    model = process.model
    replayed = replay_inputs(model, inputs, text.sequence, text.num_generated)
    located = find_image_tokens(model, process, photo, inputs, text)
    recorded = record_rows(model, replayed, text, located, keep_heads=keep_heads)
    tokens = text.sequence[len(text.sequence) - text.num_generated :]
    words = split_words(process.tokenizer, tokens.tolist(), special_ids=process.special_ids,
                        per_token=per_token)  # fmt: skip
    placement = located.placement
    if (mixing := recorded.mixing) is not None:
        placement = placement.through(located.columns, mixing)
    return WordReplay(
        process, replayed, photo, tokens, words.words, words.spans, text.log_probs,
        located.sites, located.text_sites, placement, recorded.rows,
        located.notes + _word_notes(words, per_token), int(tokens[-1]) in process.special_ids,
        recorded.heads, located.states, words.spaces, recorded.kernel,
    )  # fmt: skip


def _word_notes(words: Words, per_token: bool) -> tuple[str, ...]:
    if per_token:
        return ("a map per token",)
    if words.split:
        return ("a map per token where the script has no spaces between words",)
    return ()
