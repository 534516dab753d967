"""Captions of vision-language models, with the attention of their words.

    processor -> generate, with its rows of attention -> onto the positions of the image tokens

Gradients and occlusion replay the caption: a forward pass over prompt and words, which is used only
if it has the log-probabilities of the generation.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from visattn.images.reader import ImageLike, LoadedImage, make_thumbnail
from visattn.images.sources import read_images
from visattn.pipelines.words.checks import as_captioner, check_prompt
from visattn.pipelines.words.generation import GeneratedText, generate, unpacked
from visattn.pipelines.words.image_tokens import ImageTokens, Kept, find_image_tokens
from visattn.pipelines.words.language_model import (
    PhotoProcessor,
    list_prompts,
    pixel_name,
    replay_inputs,
)
from visattn.pipelines.words.lattice import Placement
from visattn.pipelines.words.proof import (
    Rounding,
    check_log_probs,
    computing_dtype,
    forward_logits,
    token_log_probs,
)
from visattn.pipelines.words.spans import Words, split_words, word_means
from visattn.recording.attention_call import AttentionCall
from visattn.recording.frozen import eval_mode, frozen
from visattn.recording.interception import attention_calls
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo

NEUTRAL_PROMPT = "Write a general description of the image."


@dataclass(frozen=True)
class Controls:
    """Which attention is drawn.

    Args:
        layers: Numbers of the layers whose mean is taken, as the model counts; None for all that
            have attention weights over the photo. Negative ones count from the last.
        heads: Numbers of the heads whose mean is taken; None for all.
        relative: Divide the rows by those of a neutral prompt.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    relative: bool = False

    def describe(self) -> dict[str, Any]:
        """Return the controls as plain values."""
        return {
            "layers": "mean" if self.layers is None else list(self.layers),
            "heads": "mean" if self.heads is None else list(self.heads),
            "relative": self.relative,
        }


_UNTOUCHED = Controls()


@dataclass(frozen=True, eq=False)
class ReplayRun:
    """One forward pass over a caption.

    Args:
        log_probs: Log-probability of each generated token.
        weights: Complete attention weights of the layers in which words read image tokens.
    """

    log_probs: Float[Tensor, " t"]
    weights: Mapping[str, Float[Tensor, "h n m"]]


@dataclass(eq=False)
class WordReplay:
    """A generated caption with the attention of its tokens over the image tokens of the model.

    Args:
        process: Preprocessing of the model, with the prompt.
        inputs: Arguments of its forward pass over prompt and words, without cache.
        image: The photo, upright.
        token_ids: Generated tokens, the end token included.
        words: Words of the caption, with the tokens of each.
        log_probs: Log-probability of each token, as generated.
        tokens: Positions of the image tokens on the photo.
        columns: Index of the keys in `sites` that are image tokens, in a pass over all words.
        sites: Attention layers in which words read them, in their order.
        rows: Attention of each token over these keys, mean over heads, on the CPU.
        heads: The rows of each head, if they were kept.
        mixing: If these keys are learned queries, their attention over the placed tokens: the mean
            over layers and heads.
        notes: How the maps were made, if not as usual.
        finished: Whether the last token is a special one, such as that of the end.
    """

    process: PhotoProcessor
    inputs: dict[str, Any]
    image: LoadedImage
    token_ids: Int[Tensor, " t"]
    words: Words
    log_probs: Float[Tensor, " t"]
    tokens: ImageTokens
    columns: Int[Tensor, " i"]
    sites: tuple[str, ...]
    rows: Float[Tensor, "site t i"]
    heads: Float[Tensor, "site h t i"] | None
    mixing: Float[Tensor, "i _p"] | None
    notes: tuple[str, ...]
    finished: bool

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.process.model

    @property
    def placement(self) -> Placement:
        """Positions of the image tokens on the photo."""
        return self.tokens.placement

    @property
    def layers(self) -> tuple[int, ...]:
        """The number of each layer in which words read image tokens, as the model counts."""
        return tuple(layer_number(site) for site in self.sites)

    @property
    def num_layers(self) -> int:
        """Number of layers of the text decoder, with those that have no attention weights."""
        name, _ = re.split(r"\.(?=\d+\.)", self.sites[0], maxsplit=1)
        return len(list(self.model.get_submodule(name).children()))

    def select(self, layers: Sequence[int] | None) -> list[int]:
        """Return indices of `sites` for numbers of layers; negative ones count from the last.

        Raises:
            ValueError: If a layer has no attention weights over the photo, or does not exist.
        """
        own, count = self.layers, self.num_layers
        numbers = own if layers is None else [n + count if n < 0 else n for n in layers]
        if not numbers or any(number not in own for number in numbers):
            rest = "; the others have no attention weights over the photo"
            raise ValueError(
                f"layers must be among {', '.join(map(str, own))} of the {count} layers of "
                f"{type(self.model).__name__}, counted from 0{rest if len(own) < count else ''}; "
                f"got {list(layers or ())}"
            )
        return [own.index(number) for number in numbers]

    def run(self, *, differentiable: bool = False, pixels: Tensor | None = None) -> ReplayRun:
        """Run the model once over the caption, if differentiable with all weights `h n m`.

        Args:
            differentiable: Whether the result has a graph, in which the model continues with the
                recorded weights.
            pixels: Other pixels of the same shape.

        Raises:
            ValueError: If it has other log-probabilities than the generation.
        """
        inputs, weights = dict(self.inputs), dict[str, Tensor]()
        if pixels is not None:
            inputs[pixel_name(inputs)] = pixels

        def on_call(call: AttentionCall) -> Tensor | None:
            if call.name not in self.sites:
                return None
            own = call.weights()
            if not own.requires_grad:  # no pixel reaches this layer
                own = own.detach().requires_grad_()
            # bmm has the heads on the batch axis
            weights[call.name] = unpacked(self.model, call, own, inputs).flatten(0, 1)
            return weights[call.name].reshape(own.shape)  # the model continues from this node

        with frozen(self.model):
            if not differentiable:
                with torch.no_grad():
                    logits = forward_logits(self.model, inputs, len(self.token_ids))
            else:
                pixel = pixel_name(inputs)
                inputs[pixel] = inputs[pixel].detach().clone().requires_grad_()
                with attention_calls(self.model, on_call):
                    logits = forward_logits(self.model, inputs, len(self.token_ids))
            log_probs = token_log_probs(logits, self.token_ids)
            if pixels is None:
                self._prove(log_probs.detach().cpu(), logits.detach())
            return ReplayRun(log_probs, weights)

    @torch.no_grad()
    def _prove(self, log_probs: Float[Tensor, " t"], logits: Float[Tensor, "t v"]) -> None:
        """Refuse a run that is not that of the generation."""

        def rounded() -> Tensor:
            with Rounding():
                again = forward_logits(self.model, self.inputs, len(self.token_ids))
                return token_log_probs(again, self.token_ids).cpu()

        dtype = computing_dtype(self.model)
        check_log_probs(log_probs, self.log_probs, logits, dtype, rounded)

    def mean_rows(self, controls: Controls = _UNTOUCHED) -> Float[Tensor, "t _p"]:
        """Return the attention of each token over the placed tokens, mean over layers and heads.

        Raises:
            ValueError: If layers or heads do not exist.
        """
        layers = self.select(controls.layers)
        rows = self.rows[layers].mean(0)
        if controls.heads is not None:
            if self.heads is None:
                raise ValueError("rows of single heads must be kept: pass keep_heads=True")
            heads = select_heads(controls.heads, self.heads.shape[1])
            rows = self.heads[layers][:, heads].mean((0, 1))
        return rows if self.mixing is None else rows @ self.mixing

    def neutral_row(self, controls: Controls = _UNTOUCHED) -> Float[Tensor, " i"]:
        """Return the attention of the first word after a neutral prompt.

        Raises:
            ValueError: If the model takes no prompt.

        Source:
            Zhang et al. 2025, arXiv:2502.17422, section 5.1.
        """
        if self.process.text is None:
            raise ValueError(
                "relative attention is divided by that of a neutral prompt, but "
                f"{type(self.model).__name__} takes none"
            )
        process = self.process.with_prompt(NEUTRAL_PROMPT)
        inputs = process(Image.fromarray(self.image.pixels))
        heads = controls.heads is not None
        [first] = generate(self.model, inputs, process.special_ids, {"max_new_tokens": 1},
                           keep_heads=heads)  # fmt: skip
        replay = replay_text(process, self.image, inputs, first, {}, keep_heads=heads)
        return replay.mean_rows(controls)[0]

    def caption(self, controls: Controls = _UNTOUCHED) -> Caption:
        """Return the caption with one map per word on the photo.

        The visible mass of each row is kept: a map sums to the share of the row on the photo.

        Args:
            controls: Selected layers and heads, and whether rows are divided by those of a neutral
                prompt, and scaled to the sums that they had.

        Raises:
            ValueError: If layers or heads do not exist.
        """
        rows = word_means(self.mean_rows(controls), self.words.spans)
        if controls.relative:
            ratio = rows / self.neutral_row(controls).clamp(min=1e-12)
            rows = ratio * (rows.sum(1) / ratio.sum(1).clamp(min=1e-12))[:, None]
        placement = self.placement
        values = placement.rasterize(rows)
        shares = tuple(values.flatten(1).sum(1).tolist())
        details = {**controls.describe(), "image_shares": shares, "placement": list(self.notes)}
        info = MapInfo("attention", model=type(self.model).__name__, image=self.image.name,
                       more=details)  # fmt: skip
        site = self.sites[self.select(controls.layers)[-1]]
        maps = AttentionMap(values, site, "words", placement.geometry, info, self.words.words)
        spans = self.words.spans
        return Caption(
            words=self.words.words, gates=shares, maps=maps, finished=self.finished,
            log_probs=tuple(float(self.log_probs[slice(*span)].sum()) for span in spans),
            score=float(self.log_probs.sum()), image=self.image.name, gate_symbol="on photo",
            notes=self.describe(info), spaces=self.words.spaces,
            thumbnail=make_thumbnail(self.image),
        )  # fmt: skip

    def describe(self, info: MapInfo) -> str:
        """Return in one line how maps were made."""
        parts = [f"{info.method} of {info.model}"]
        layers, heads = (info.more.get(name) for name in ("layers", "heads"))
        if layers is not None:
            some = len(self.layers) < self.num_layers
            own = f" ({', '.join(map(str, self.layers))} of {self.num_layers}; the others have no "\
                  "attention weights over the photo)" if some else ""  # fmt: skip
            mean = f"mean of {len(self.layers)} layers{own}"
            parts.append(mean if layers == "mean" else f"layers {layers} of {self.num_layers}")
            parts.append("mean of heads" if heads == "mean" else f"heads {heads}")
        if info.more.get("relative"):
            parts.append("relative to a neutral prompt")
        return "; ".join([*parts, *self.notes])


def layer_number(site: str) -> int:
    """Return the number of the layer that an attention module is part of.

    Example:
        >>> layer_number("model.language_model.layers.7.self_attn")
        7
    """
    return int(re.findall(r"\.(\d+)\.", f".{site}.")[0])


def select_heads(heads: Sequence[int], count: int) -> list[int]:
    """Return indices of heads; negative ones count from the end.

    Raises:
        ValueError: If one does not exist, or none is given.
    """
    if not len(heads) or not all(-count <= head < count for head in heads):
        raise ValueError(f"heads must be from 0 to {count - 1}, got {list(heads)}")
    return [head % count for head in heads]


def generate_and_replay(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    *,
    processor: Any,
    prompt: Any = None,
    keep_heads: bool = False,
    per_token: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    kept: Kept | None = None,
    **generate_kwargs: Any,
) -> list[list[WordReplay]]:
    """Caption photos, and replay each caption once with recorded attention.

    Arguments as for `caption_with_transformers`.

    Args:
        keep_heads: Whether the rows of each head are kept.
        kept: Positions of image tokens of photos before, of the same model and processor.

    Returns:
        For each photo its captions: one, or `num_return_sequences`.

    Raises:
        ValueError: If the attention of the model cannot be recorded or placed, the prompt is too
            long, or the replay does not reproduce the generation.
    """
    model = as_captioner(model)
    prompts = list_prompts(prompt)
    kept = {} if kept is None else kept
    results: list[list[WordReplay]] = []
    for photo in read_images(images):
        if prompts is not None and len(results) >= len(prompts):
            raise _other_number(prompts)
        text = prompt if prompts is None else prompts[len(results)]
        process = PhotoProcessor(model, processor, text, chat_template_kwargs)
        with frozen(model), torch.no_grad():
            inputs = process(Image.fromarray(photo.pixels))
        check_prompt(model, inputs, generate_kwargs)
        with eval_mode(model):  # random numbers are drawn as in `generate`
            texts = generate(model, inputs, process.special_ids, generate_kwargs,
                             keep_heads=keep_heads)  # fmt: skip
        results.append([
            replay_text(process, photo, inputs, each, kept, keep_heads=keep_heads,
                        per_token=per_token)
            for each in texts
        ])  # fmt: skip
    if prompts is not None and len(results) < len(prompts):
        raise _other_number(prompts)
    return results


def _other_number(prompts: Sequence[Any]) -> ValueError:
    return ValueError(f"a list of prompts must have one for each photo, got {len(prompts)} prompts")


def replay_text(
    process: PhotoProcessor,
    photo: LoadedImage,
    inputs: dict[str, Any],
    text: GeneratedText,
    kept: Kept,
    *,
    keep_heads: bool = False,
    per_token: bool = False,
) -> WordReplay:
    """Place the attention of a generated text on the photo.

    Raises:
        ValueError: If the model has no attention from words to placed image tokens.
    """
    model = process.model
    located = find_image_tokens(process, photo, inputs, text, kept)
    replayed = replay_inputs(model, inputs, text.sequence, text.num_generated)
    sites = [site for site in text.steps[0].rows if located.sites is None or site in located.sites]
    sites = [site for site in sites if all(site in step.rows for step in text.steps)]
    if not sites:
        raise ValueError(
            f"no attention of words was found in {type(model).__name__}: its kernels cannot be "
            "recorded; use model.set_attn_implementation('sdpa')"
        )
    rows = torch.stack([
        torch.stack([located.of_row(step.rows[site], number + step.later)
                     for number, step in enumerate(text.steps)], -2)
        for site in sites
    ])  # fmt: skip
    columns = located.columns
    if located.length is None:  # behind all words but the last, as in the last step
        columns = columns + text.steps[-1].rows[sites[0]].shape[-1] - located.num_keys
    mixing = None
    if located.between:  # of several images, each reads its own keys alone
        every = text.mixing or {}
        mixing = torch.stack([torch.block_diag(*every[name]) for name in located.between]).mean(0)
        mixing = mixing[:, located.placement.columns]
    tokens = text.sequence[len(text.sequence) - text.num_generated :]
    words = split_words(process.tokenizer, tokens.tolist(), special_ids=process.special_ids,
                        per_token=per_token)  # fmt: skip
    notes = located.notes
    if per_token:
        notes = (*notes, "a map per token")
    elif words.split:
        notes = (*notes, "a map per token where the script has no spaces between words")
    return WordReplay(
        process, replayed, photo, tokens, words, text.log_probs, located, columns, tuple(sites),
        rows.mean(1) if keep_heads else rows, rows if keep_heads else None, mixing, notes,
        int(tokens[-1]) in process.special_ids,
    )  # fmt: skip
