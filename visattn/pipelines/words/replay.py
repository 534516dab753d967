"""Replay of generated captions: one recorded forward pass over the words."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from visattn.images.reader import ImageLike, LoadedImage, make_thumbnail
from visattn.pipelines.words.checks import (
    check_captioner,
    check_memory,
    check_prompt_end,
    check_prompt_length,
)
from visattn.pipelines.words.controls import Controls, find_sinks, relative_rows, select_indices
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
from visattn.pipelines.words.prompts import PromptImages, PromptLike, as_prompt_images, read_prompts
from visattn.pipelines.words.recorded_pass import (
    check_log_probs,
    computing_dtype,
    forward_logits,
    record_rows,
    token_log_probs,
)
from visattn.pipelines.words.spans import Words, split_words, word_means
from visattn.recording.attention_call import recordable_attention
from visattn.recording.frozen import eval_mode, frozen
from visattn.recording.key_sources import KeySources
from visattn.recording.score_evidence import Rounding
from visattn.recording.word_rows import ReusedOutputs, WordRows
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo

_UNTOUCHED = Controls()
_ONE_TOKEN = {"max_new_tokens": 1, "min_new_tokens": 1, "num_beams": 1, "do_sample": False,
              "num_return_sequences": 1}  # fmt: skip


@dataclass(frozen=True, eq=False)
class ReplayRun:
    """One forward pass over a caption.

    Args:
        logits: Row t chose token t.
        log_probs: Log-probability of each generated token.
        weights: Complete attention weights of the recorded layers; with graph if requested.
        sources: What the keys of these layers are made from.
        origins: The same as the model holds them, nodes of the graph of `log_probs`.
        pixels: The pixels of this pass; a leaf that requires grad if the pass is differentiable.
    """

    logits: Float[Tensor, "t v"]
    log_probs: Float[Tensor, " t"]
    weights: Mapping[str, Float[Tensor, "h n m"]]
    sources: Mapping[str, Float[Tensor, "_s d"]]
    origins: Mapping[str, Tensor]
    pixels: Tensor


@dataclass(eq=False)
class WordReplay:
    """A generated caption with the attention of its tokens over the image tokens of the model.

    Args:
        process: Preprocessing of the model, with the prompt.
        inputs: Arguments of its forward pass over prompt and words, without cache.
        shown: The photos of the prompt, upright, or the frames of its video.
        token_ids: Generated tokens, the end token included.
        words: Words of the caption.
        spans: First token of each word, and the one after its last.
        log_probs: Log-probability of each token, as generated.
        sites: Attention layers in which words read image tokens, in their order.
        text_sites: All attention layers of the text decoder.
        placements: Places of the image tokens on each photo, or on the video.
        rows: Attention of each token over the image tokens, mean over heads, on the CPU.
        notes: How the image tokens were placed, if not by their own pixels.
        finished: Whether the last token is a special one, such as that of the end.
        head_rows: The rows of each head, float16, if they were kept.
        states: Rows of the image tokens in the inputs of these layers; None if these are others.
        spaces: Whether white space stands before each word.
        verified: Whether a pass over prompt and words gave these log-probabilities.
        kernel: Attention implementation with which parts of the model run that hide their weights.
    """

    process: PhotoProcessor
    inputs: dict[str, Any]
    shown: PromptImages
    token_ids: Int[Tensor, " t"]
    words: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    log_probs: Float[Tensor, " t"]
    sites: tuple[str, ...]
    text_sites: tuple[str, ...]
    placements: tuple[Placement, ...]
    rows: Float[Tensor, "site t i"]
    notes: tuple[str, ...] = ()
    finished: bool = True
    head_rows: Float[Tensor, "site h t i"] | None = None
    states: Int[Tensor, " s"] | None = None
    spaces: tuple[bool, ...] = ()
    verified: bool = True
    kernel: str = "sdpa"

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.process.model

    @property
    def image(self) -> LoadedImage:
        """The photo, or the first one."""
        return self.shown.images[0]

    @property
    def placement(self) -> Placement:
        """Places of the image tokens on the photo, or on the first one."""
        return self.placements[0]

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
            ValueError: If the weights do not fit into memory, or the pass does not give the
                log-probabilities of the generation.
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
        if pixels is None and not self.verified:
            self._verify(log_probs.detach().cpu(), logits.detach())
        states = {site: sources.sources[site].origin for site in recorder.rows}
        origins = {site: tokens for site, tokens in states.items() if tokens is not None}
        flat = {site: tokens.flatten(0, -2) for site, tokens in origins.items()}
        return ReplayRun(logits, log_probs, recorder.rows, flat, origins, used)

    def _verify(self, log_probs: Float[Tensor, " t"], logits: Float[Tensor, "t v"]) -> None:
        """Check a pass over prompt and words, after a replay that read the words alone."""

        def rounded() -> Tensor:
            kernel = recordable_attention(self.model, self.kernel)
            with frozen(self.model), kernel, torch.no_grad(), Rounding():
                again = forward_logits(self.model, self.inputs, len(self.token_ids))[0]
            return token_log_probs(again, self.token_ids).cpu()

        check_log_probs(log_probs, self.log_probs, logits, computing_dtype(self.model), rounded)
        self.verified = True

    def word_rows(
        self, controls: Controls = _UNTOUCHED
    ) -> tuple[Float[Tensor, "w i"], dict[str, Any]]:
        """Return the attention of each word, the mean over its tokens, and how it was made.

        Relative attention and sinks compare words: the row of a single word stays as it is, with
        `untouched` in the details.

        Raises:
            ValueError: If layers or heads do not exist.
        """
        result = word_means(self._selected(controls).detach().float().cpu(), self.spans)
        details = controls.describe()
        if len(result) < 2 and (controls.relative or controls.without_sinks):
            return result, {**details, "relative": False, "without_sinks": False,
                            "untouched": True}  # fmt: skip
        # Before rows are divided: a sink draws weight for all words alike, and relative attention
        # would level it.
        if controls.without_sinks:
            sinks = find_sinks(result)
            details["sinks"] = [self._sink(sink, result[:, sink]) for sink in sinks]
            result = result.clone()
            result[:, sinks] = 0.0
        return (relative_rows(result) if controls.relative else result), details

    def _sink(self, token: int, mass: Float[Tensor, " w"]) -> dict[str, Any]:
        """Return where an image token lies, and the mass that it draws from each word."""
        visible = [float(placement.visible[token]) for placement in self.placements]
        photo = max(range(len(visible)), key=visible.__getitem__)
        box = {"box": self.placements[photo].boxes[token].tolist(), "mass": mass.tolist()}
        return box if len(visible) == 1 else {"photo": photo, **box}

    def _selected(self, controls: Controls) -> Float[Tensor, "t i"]:
        layers = select_indices("layers", controls.layers, len(self.sites))
        if controls.heads is None:
            return self.rows[layers].mean(0)
        if self.head_rows is None:
            raise ValueError("rows of single heads must be kept: pass keep_heads=True")
        heads = select_indices("heads", controls.heads, self.head_rows.shape[1])
        return self.head_rows[layers][:, heads].float().mean((0, 1))

    def caption(self, controls: Controls = _UNTOUCHED) -> Caption:
        """Return the caption with one map per word on each photo, or on the video.

        The visible mass of each row is kept: a map sums to the share of the row on the photo.

        Raises:
            ValueError: If layers or heads do not exist.
        """
        words, details = self.word_rows(controls)
        values = [placement.rasterize(words) for placement in self.placements]
        mass = torch.stack([maps.flatten(1).sum(1) for maps in values])
        shares = tuple(mass.sum(0).tolist())
        shown = self.shown
        details |= {"image_shares": shares, "placement": list(self.notes)}
        if shown.clip is None and len(values) > 1:
            details["photo_shares"] = mass.T.tolist()
        info = MapInfo("attention", model=type(self.model).__name__, more=details)
        if shown.clip is not None:
            info = replace(info, frames=shown.clip.indices, seconds=shown.clip.seconds)
        first, *others = (
            AttentionMap(maps, self.sites[-1], "words", placement.geometry,
                         replace(info, image=image.name), self.words)
            for maps, placement, image in zip(values, self.placements, shown.images, strict=False)
        )  # fmt: skip
        log_probs = tuple(float(self.log_probs[slice(*span)].sum()) for span in self.spans)
        kind = "photo" if len(values) == 1 else "photos"
        kind = "video" if shown.is_video else kind
        return Caption(
            words=self.words, log_probs=log_probs, gates=shares, maps=first,
            further_maps=tuple(others), score=float(self.log_probs.sum()),
            finished=self.finished, image=shown.name, gate_symbol=f"on {kind}",
            notes=self.describe(info), spaces=self.spaces,
            thumbnail=make_thumbnail(self.image) if kind == "photo" else None,
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
        if details["without_sinks"]:
            sinks = details["sinks"]
            removed = sum(sum(sink["mass"]) for sink in sinks) / max(len(self.words), 1)
            share = f"without {len(sinks)} sinks, which draw {removed:.0%} of a row"
            parts.append(share if sinks else "no sinks above the threshold")
        if details.get("untouched"):
            parts.append("relative attention and sinks compare words: this row is untouched")
        return "; ".join([*parts, *self.notes])


def generate_and_replay(
    model: nn.Module,
    images: Iterable[PromptLike | PromptImages] | ImageLike,
    *,
    processor: Any,
    prompt: Any = None,
    batch_size: int = 1,
    keep_heads: bool = False,
    per_token: bool = False,
    num_frames: int | None = None,
    **generate_kwargs: Any,
) -> list[list[WordReplay]]:
    """Caption photos, and replay each caption once with recorded attention.

    Arguments as for `caption_with_transformers`; `keep_heads` keeps the rows of each head.

    Returns:
        For each photo, or list of photos, its captions: one, or `num_return_sequences`.

    Raises:
        ValueError: If the attention of the model cannot be recorded or placed, the prompt is too
            long, or the replay does not reproduce the generation.
    """
    check_captioner(model)
    prompts = list_prompts(prompt)
    results: list[list[WordReplay]] = []
    for batch in _batches(read_prompts(images, processor, num_frames), batch_size):
        own: list[Any] = [prompt] * len(batch)
        if prompts is not None:
            own = prompts[len(results) : len(results) + len(batch)]
            # Photos are read batch by batch, so that their number is known at the end only.
            _check_count(prompts, len(results) + len(batch), exactly=False)
        processes = [
            PhotoProcessor(model, processor, text, num_photos=len(shown.images), clip=shown.clip)
            for text, shown in zip(own, batch, strict=True)
        ]
        towers = ReusedOutputs(model)
        with _explained(model, batch[0]):
            with frozen(model), torch.no_grad():
                singles, joint = _batch_inputs(processes, batch)
                check_prompt_length(model, singles, generate_kwargs)
                check_prompt_end(model, singles)
            with eval_mode(model), towers.collecting():  # random numbers are drawn as in `generate`
                texts = generate(model, joint, processes[0].special_ids, generate_kwargs)
        per_prompt = len(texts) // len(batch)
        for index, (shown, inputs) in enumerate(zip(batch, singles, strict=True)):
            results.append([])
            for text in texts[index * per_prompt : (index + 1) * per_prompt]:
                single = without_padding(text, joint, inputs)
                replay = replay_text(processes[index], shown, inputs, single,
                                     keep_heads=keep_heads, towers=towers,
                                     per_token=per_token)  # fmt: skip
                results[-1].append(replay)
    if prompts is not None:
        _check_count(prompts, len(results), exactly=True)
    return results


@contextmanager
def _explained(model: nn.Module, shown: PromptImages) -> Iterator[None]:
    """Name the model if its own code fails for several photos or a video."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError, KeyError) as error:
        if isinstance(error, torch.OutOfMemoryError) or len(shown.images) == 1:
            raise
        what = "a video" if shown.is_video else f"{len(shown.images)} photos in one prompt"
        raise ValueError(
            f"{type(model).__name__} and its processor must take {what}, but they fail: "
            f"{str(error).strip() or type(error).__name__}"
        ) from error


def _batches(prompts: Iterable[PromptImages], size: int) -> Iterator[list[PromptImages]]:
    """Yield batches of photos; several photos of a prompt, or a video, are one of their own."""
    batch: list[PromptImages] = []
    for shown in prompts:
        alone = not shown.is_single_photo
        if batch and (alone or len(batch) == size):
            yield batch
            batch = []
        batch.append(shown)
        if alone:
            yield batch
            batch = []
    if batch:
        yield batch


def _check_count(prompts: Sequence[Any], photos: int, *, exactly: bool) -> None:
    if photos > len(prompts) or (exactly and photos != len(prompts)):
        raise ValueError(
            f"a list of prompts must have one for each photo, got {len(prompts)} prompts for "
            f"{photos} photos"
        )


def _batch_inputs(
    processes: list[PhotoProcessor], batch: list[PromptImages]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the inputs of each prompt, and of all together, padded at the left."""
    images = [[Image.fromarray(photo.pixels) for photo in shown.images] for shown in batch]
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
    photo: LoadedImage | PromptImages,
    inputs: dict[str, Any],
    text: GeneratedText,
    *,
    keep_heads: bool = False,
    towers: ReusedOutputs | None = None,
    per_token: bool = False,
) -> WordReplay:
    """Replay one generated text, and place its attention on the photo.

    Raises:
        ValueError: If the model has no attention from words to placed image tokens, or the replay
            does not reproduce the log-probabilities of the generation.
    """
    model = process.model
    replayed = replay_inputs(model, inputs, text.sequence, text.num_generated)
    shown = as_prompt_images(photo)
    located = find_image_tokens(model, process, shown, inputs, text)
    recorded = record_rows(model, replayed, text, located, keep_heads=keep_heads, towers=towers)
    tokens = text.sequence[len(text.sequence) - text.num_generated :]
    words = split_words(process.tokenizer, tokens.tolist(), special_ids=process.special_ids,
                        per_token=per_token)  # fmt: skip
    placements = located.placements
    if (mixing := recorded.mixing) is not None:
        placements = tuple(place.through(located.columns, mixing) for place in placements)
    return WordReplay(
        process, replayed, shown, tokens, words.words, words.spans, text.log_probs,
        located.sites, located.text_sites, placements, recorded.rows,
        located.notes + _word_notes(words, per_token) + _frame_notes(shown, placements),
        int(tokens[-1]) in process.special_ids, recorded.heads, located.states, words.spaces,
        recorded.whole, recorded.kernel,
    )  # fmt: skip


@torch.no_grad()
def replay_given(photo: LoadedImage, words: Sequence[str], process: PhotoProcessor) -> WordReplay:
    """Return the replay of a given caption, as if the model had generated it.

    Raises:
        ValueError: If the tokenizer does not give the words back.
    """
    tokenizer: Any = process.tokenizer
    ids = tokenizer(" ".join(words), add_special_tokens=False).input_ids
    replayed = replay_tokens(photo, torch.tensor([*ids, tokenizer.eos_token_id]), process)
    if replayed.words != tuple(words):
        raise ValueError(
            f"the tokenizer must give the words {' '.join(words)!r} back, got "
            f"{' '.join(replayed.words)!r}"
        )
    return replayed


@torch.no_grad()
def replay_tokens(
    photo: LoadedImage,
    tokens: Int[Tensor, " t"],
    process: PhotoProcessor,
    **options: Any,
) -> WordReplay:
    """Return the replay of given tokens, as if the model had generated them behind its prompt.

    Options are those of `replay_text`.
    """
    model = process.model
    inputs = process([Image.fromarray(photo.pixels)])
    with frozen(model):  # generate may change the prompt, and keeps its keys
        [started] = generate(model, inputs, frozenset(), _ONE_TOKEN)
    prompt = started.sequence[: len(started.sequence) - started.num_generated]
    count = len(tokens)
    text = GeneratedText(torch.cat([prompt, tokens]), count, torch.zeros(count), started.prompt)
    with frozen(model):
        logits = forward_logits(model, replay_inputs(model, inputs, text.sequence, count), count)
    forced = replace(text, log_probs=token_log_probs(logits[0], tokens).cpu())
    return replay_text(process, photo, inputs, forced, **options)


def _word_notes(words: Words, per_token: bool) -> tuple[str, ...]:
    if per_token:
        return ("a map per token",)
    if words.split:
        return ("a map per token where the script has no spaces between words",)
    return ()


def _frame_notes(shown: PromptImages, placements: Sequence[Placement]) -> tuple[str, ...]:
    """Return how many frames a token covers, if these are more than one."""
    if not shown.is_video:
        return ()
    count = len(shown.images)
    cells = math.prod(placements[0].grid_size)
    # Rows of the weights are the cells of all frames, one frame after the other. Counted are the
    # different frames of each token.
    indices = placements[0].weights.coalesce().indices()
    pairs = torch.stack([indices[0] // cells, indices[1]]).unique(dim=1)
    covered = torch.bincount(pairs[1])[pairs[1].unique()]
    notes = [f"{count} frames of the video"]
    if int(covered.max()) > 1:
        notes.append(
            f"image tokens cover {int(covered.max())} frames, and their attention is divided among "
            "these"
        )
        if int(covered.min()) < int(covered.max()):
            notes.append("the last frame is repeated to fill its tokens, and has all of theirs")
    return tuple(notes)
