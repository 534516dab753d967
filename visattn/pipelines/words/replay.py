"""Replay of generated captions: one recorded forward pass over prompt and words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from visattn.data.images.reader import ImageLike, LoadedImage
from visattn.pipelines.captioning import Caption, read_images
from visattn.pipelines.words.generation import GeneratedText, generate, replay_inputs
from visattn.pipelines.words.image_tokens import find_image_tokens
from visattn.pipelines.words.placement import Placement
from visattn.pipelines.words.processing import PhotoProcessor, pixel_name
from visattn.pipelines.words.spans import split_words
from visattn.recording.attention_map import AttentionMap
from visattn.recording.frozen_model import frozen
from visattn.recording.word_rows import KeySources, WordRows


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
    sources: Mapping[str, Float[Tensor, "m d"]]
    origins: Mapping[str, Tensor]
    pixels: Tensor


@dataclass(eq=False)
class WordReplay:
    """A generated caption with the attention of its tokens over the image tokens of the model.

    Args:
        model: The model.
        inputs: Arguments of its forward pass over prompt and words, without cache.
        image: The upright photo.
        token_ids: Generated tokens, the end token included.
        words: Words of the caption.
        spans: First token of each word, and the one after its last.
        log_probs: Log-probability of each token, as generated.
        sites: Attention layers in which words read image tokens, in their order.
        text_sites: All attention layers of the text decoder.
        placement: Places of the image tokens on the photo.
        rows: Attention of each token over the image tokens, mean over heads, on the CPU.
        notes: How the image tokens were placed, if not by their own pixels.
    """

    model: nn.Module
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
        """
        used = (self.inputs[self.pixel_name] if pixels is None else pixels).detach()
        wanted = dict.fromkeys(self.sites if sites is None else sites)
        with frozen(self.model):
            used = used.clone().requires_grad_(differentiable)
            sources = KeySources(self.model, zero_attention=False)
            recorder = WordRows(self.model, wanted, keep=lambda _, weights: weights[0],
                                differentiable=differentiable)  # fmt: skip
            with torch.set_grad_enabled(differentiable), sources.collecting(), recorder.recording():
                logits = forward_logits(self.model, {**self.inputs, self.pixel_name: used},
                                        len(self.token_ids))[0]  # fmt: skip
            chosen = self.token_ids.to(logits.device)[:, None]
            log_probs = logits.log_softmax(-1).gather(1, chosen)[:, 0]
        states = {site: sources.sources[site].origin for site in recorder.rows}
        found = {site: tokens for site, tokens in states.items() if tokens is not None}
        flat = {site: tokens.flatten(0, -2) for site, tokens in found.items()}
        return ReplayRun(logits, log_probs, recorder.rows, flat, found, used)

    def caption(
        self,
        rows: Float[Tensor, "t i"] | None = None,
        *,
        method: str = "attention",
        **metadata: Any,
    ) -> Caption:
        """Return the caption with one placed map per word.

        Args:
            rows: One value per token and image token; by default the attention, mean over layers
                and heads. The row of a word is the mean over its tokens.
            method: Name of the method, noted in the metadata.
            metadata: Further entries of the metadata.
        """
        rows = self.rows.mean(0) if rows is None else rows.detach().float().cpu()
        words = torch.stack([rows[slice(*span)].mean(0) for span in self.spans]) if (
            self.spans) else rows[:0]  # fmt: skip
        values = self.placement.rasterize(words)
        shares = tuple(values.flatten(1).sum(1).tolist())
        details = {
            "model": type(self.model).__name__, "image": self.image.name, "method": method,
            "layers": "mean", "heads": "mean", "image_shares": shares, **metadata,
        }  # fmt: skip
        maps = AttentionMap(values, self.sites[-1], "words", self.placement.geometry, details,
                            self.words)  # fmt: skip
        log_probs = tuple(float(self.log_probs[slice(*span)].sum()) for span in self.spans)
        total = float(self.log_probs.sum())
        return Caption(
            words=self.words, log_probs=log_probs, gates=shares, maps=maps, score=total,
            finished=True, image=self.image.name, gate_symbol="photo",
        )  # fmt: skip


def forward_logits(model: nn.Module, inputs: dict[str, Any], count: int) -> Float[Tensor, "b t v"]:
    """Return the logits of the last `count` positions."""
    output: Any = model(**inputs)
    return output.logits[:, -count:].float()


def generate_and_replay(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    *,
    processor: Any,
    prompt: str | None = None,
    **generate_kwargs: Any,
) -> list[list[WordReplay]]:
    """Caption photos, and replay each caption once with recorded attention.

    Args:
        model: A model of transformers that generates text from images.
        images: One photo or several, as for `caption`.
        processor: Its processor, or a pair of image processor and tokenizer.
        prompt: Text before the generated words.
        generate_kwargs: Options of `model.generate`.

    Returns:
        For each photo its captions: one, or `num_return_sequences`.
    """
    process = PhotoProcessor(model, processor, prompt)
    photos = list(read_images(images))
    singles = [process([Image.fromarray(photo.pixels)]) for photo in photos]
    special = frozenset(getattr(process.tokenizer, "all_special_ids", ()))
    results: list[list[WordReplay]] = []
    with frozen(model), torch.no_grad():
        for photo, inputs in zip(photos, singles, strict=True):
            texts = generate(model, inputs, special, generate_kwargs)
            results.append([replay_text(model, process, photo, inputs, text) for text in texts])
    return results


def replay_text(
    model: nn.Module,
    process: PhotoProcessor,
    photo: LoadedImage,
    inputs: dict[str, Any],
    text: GeneratedText,
) -> WordReplay:
    """Replay one generated text, and place its attention on the photo.

    Raises:
        ValueError: If the model has no attention from words to placed image tokens, or the replay
            does not reproduce the log-probabilities of the generation.
    """
    replayed = replay_inputs(model, inputs, text.sequence, text.num_generated)
    found = find_image_tokens(model, process, photo, inputs, text)
    columns = found.columns

    def keep(site: str, weights: Tensor) -> Tensor:
        mean = weights[0].float().mean(0)
        kept = found.placement.columns if site in found.resampler_sites else columns
        return mean[:, kept.to(mean.device)].cpu()

    recorded = dict.fromkeys(found.sites, text.num_generated) | dict.fromkeys(found.resampler_sites)
    recorder = WordRows(model, recorded, keep=keep)
    with frozen(model), torch.no_grad(), recorder.recording():
        logits = forward_logits(model, replayed, text.num_generated)[0]
    if recorder.unsupported:
        site, reason = next(iter(recorder.unsupported.items()))
        raise ValueError(f"the attention of {site} cannot be recorded: {reason}")
    tokens = text.sequence[len(text.sequence) - text.num_generated :]
    log_probs = logits.log_softmax(-1).cpu().gather(1, tokens[:, None])[:, 0]
    check_log_probs(log_probs, text.log_probs, logits, next(model.parameters()).dtype)
    words, spans = split_words(process.tokenizer, tokens.tolist())
    rows = torch.stack([recorder.rows[site] for site in found.sites])
    placement = found.placement
    if found.resampler_sites:
        mixing = torch.stack([recorder.rows[site] for site in found.resampler_sites]).mean(0)
        placement = placement.through(columns, mixing)
    return WordReplay(model, replayed, photo, tokens, words, spans, text.log_probs, found.sites,
                      found.text_sites, placement, rows, found.notes)  # fmt: skip


def check_log_probs(
    replayed: Tensor, generated: Tensor, logits: Tensor, dtype: torch.dtype
) -> None:
    """Refuse a replay whose log-probabilities differ from those of the generation."""
    tolerance = max(1e-4, 4 * torch.finfo(dtype).eps * float(logits.abs().max()))
    deviation = float((replayed - generated).abs().max())
    if not deviation <= tolerance:
        raise ValueError(
            "a forward pass over prompt and words must give the log-probabilities of the "
            f"generation, but they differ by {deviation:.2g} (tolerance {tolerance:.2g}): the "
            "maps would not be those of this caption; please report this model"
        )
