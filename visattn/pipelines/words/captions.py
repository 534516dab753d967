"""Captions by vision-language models of transformers, with one attention map per word.

processor      ->  image token positions  ->  generated text and attention  ->  maps on the photo
language_model     image_tokens, lattice      generation                        this module
"""

import inspect
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from visattn.attribution.perturbation import occlusion_windows, window_masks
from visattn.attribution.words import check_method
from visattn.images.reader import ImageLike, LoadedImage, make_thumbnail
from visattn.images.sources import read_images
from visattn.pipelines.words.generation import GeneratedText, generate, read_text
from visattn.pipelines.words.image_tokens import ImageTokens, Kept, find_image_tokens
from visattn.pipelines.words.language_model import (
    PhotoProcessor,
    as_captioner,
    list_prompts,
    pixel_name,
    take_photo,
)
from visattn.pipelines.words.lattice import Placement
from visattn.pipelines.words.spans import Words, split_words, word_means
from visattn.recording.frozen import eval_mode, frozen
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo
from visattn.results.kinds import WORD_QUANTITIES

NEUTRAL_PROMPT = "Write a general description of the image."
_WINDOWS_PER_SIDE = 7  # occlusion windows along the longer side, as for classifiers
_BATCH = 8  # occluded photos per forward pass
_SAME = 1e-4  # tolerance in nats between float32 passes of one and of several photos


@dataclass(frozen=True, eq=False)
class PhotoWords:
    """The words that a model generated for a photo, with their attention over its image tokens.

    Args:
        process: Preprocessing of the model, with the prompt.
        inputs: Inputs of its `generate`.
        image: The photo, upright.
        tokens: Its image tokens.
        text: The generated text.
        heads: Heads that its attention is averaged over; None for all.
        words: Words of the text.
        notes: Notes on how the maps were computed, such as approximations.
    """

    process: PhotoProcessor
    inputs: dict[str, Any]
    image: LoadedImage
    tokens: ImageTokens
    text: GeneratedText
    heads: Sequence[int] | None
    words: Words
    notes: tuple[str, ...]

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
        """The indices, in the text decoder, of the layers in which words attend to image tokens."""
        numbers = (re.findall(r"\.(\d+)\.", f".{site}.")[0] for site in self.text.sites)
        return tuple(map(int, numbers))

    @property
    def num_layers(self) -> int:
        """Number of layers of the text decoder, including those without attention weights."""
        name, _ = re.split(r"\.(?=\d+\.)", self.text.sites[0], maxsplit=1)
        return len(list(self.model.get_submodule(name).children()))

    def select(self, layers: Sequence[int] | None) -> list[int]:
        """Return the indices of sites for layers of the decoder; negative ones count from the last.

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

    def attention(self, layers: Sequence[int] | None = None) -> Float[Tensor, "t _p"]:
        """Return each token's attention over the placed tokens, averaged over layers and heads.

        Raises:
            ValueError: If a layer does not exist.
        """
        rows = self.text.rows[self.select(layers)].mean(0)
        return rows if self.text.mixing is None else rows @ self.text.mixing

    def gradient_attention(self, layers: Sequence[int] | None = None) -> Float[Tensor, "t p"]:
        """Return attention times the gradient of each token's log-probability, averaged likewise.

        Raises:
            ValueError: If words read the image through learned queries, or a layer does not exist.
        """
        if self.tokens.between:
            raise ValueError(
                f"{type(self.model).__name__} reads learned queries instead of image tokens, so "
                "that gradients of its attention have no position on the photo; use the methods "
                "attention or occlusion"
            )
        text = read_text(self.model, self.inputs, self.text.tokens, self.tokens, self.heads,
                         kind="gradients")  # fmt: skip
        return text.rows[self.select(layers)].mean(0)

    def occlusion(self, window_cells: int | None = None) -> Float[Tensor, "w y x"]:
        """Return the mean drop of each word's log-probability over all windows that cover a cell.

        Windows are filled with the mean color of the photo. By default their side is 1/7 of the
        longer side of the grid, at least 2 cells; their stride is half of it.

        Source:
            Zeiler and Fergus 2013, arXiv:1311.2901, section 4.2, for the log-probability of each
            word.
        """
        grid, pixels = self.placement.grid_size, self.image.pixels
        side = min(window_cells or max(2, -(-max(grid) // _WINDOWS_PER_SIDE)), *grid)
        step = max(1, side // 2)
        windows = occlusion_windows(grid, window_size=(side, side), stride=(step, step))
        corners = self.placement.geometry.to_image(windows.double().view(-1, 2)).view(-1, 4)
        color = pixels.reshape(-1, 3).mean(0).round().astype(np.uint8)
        original = self._sums(self.text.log_probs)
        total, counts = torch.zeros(len(original), *grid), torch.zeros(grid)
        gray, size = np.broadcast_to(color, pixels.shape), 1
        # raised by models that pack photos into one input, or expect image tokens for each photo
        with suppress(RuntimeError, IndexError, ValueError):
            again = self._log_probs([gray, pixels])[1]
            size = _BATCH if torch.allclose(again, self.text.log_probs, atol=_SAME) else 1
        batches = zip(corners.round().long().split(size), window_masks(windows, grid).split(size),
                      strict=True)  # fmt: skip
        for some, masks in batches:
            photos = [pixels.copy() for _ in some]
            for photo, (left, top, right, bottom) in zip(photos, some.tolist(), strict=True):
                photo[max(top, 0) : bottom, max(left, 0) : right] = color
            for log_probs, cells in zip(self._log_probs(photos), masks, strict=True):
                total += (original - self._sums(log_probs))[:, None, None] * cells
                counts += cells
        return (total / counts).relu()

    def _log_probs(self, photos: Sequence[np.ndarray]) -> Float[Tensor, "b t"]:
        """Return the log-probability of each token of the text given other photos, as one batch."""
        inputs = {name: torch.cat([value] * len(photos)) if isinstance(value, Tensor) else value
                  for name, value in self.inputs.items()}  # fmt: skip
        name = pixel_name(inputs)
        inputs[name] = torch.cat([self.process(Image.fromarray(each))[name] for each in photos])
        read = read_text(self.model, inputs, self.text.tokens, self.tokens, kind="none")
        return read.log_probs.view(len(photos), -1)

    def _sums(self, log_probs: Float[Tensor, " t"]) -> Float[Tensor, " w"]:
        """Return the log-probability of each word: the sum over its tokens."""
        return torch.stack([log_probs[slice(*span)].sum() for span in self.words.spans])

    def neutral_row(self, layers: Sequence[int] | None = None) -> Float[Tensor, " p"]:
        """Return the attention of the first word after a neutral prompt.

        Raises:
            ValueError: If the model takes no prompt.

        Source:
            Zhang et al. 2025, arXiv:2502.17422, section 5.1.
        """
        if self.process.text is None:
            raise ValueError(
                "relative=True needs a model with prompts, since attention is divided by that of a "
                f"neutral prompt, but {type(self.model).__name__} takes none"
            )
        process, one = self.process.with_prompt(NEUTRAL_PROMPT), {"max_new_tokens": 1}
        [first] = words_of_photo(process, self.image, one, {}, self.heads)
        return first.attention(layers)[0]

    def caption(
        self, method: str, layers: Sequence[int] | None = None, *, relative: bool = False
    ) -> Caption:
        """Return the caption with one map per word on the photo.

        Attention maps are not renormalized: a map sums to the share of the word's attention that is
        on the photo. These shares are the gates of the caption, for any method.

        Args:
            method: Name of the method.
            layers: Indices of layers of the text decoder to average; None for all.
            relative: Divide attention by that of a neutral prompt, keeping its sum.

        Raises:
            ValueError: If the model does not support it, or a layer does not exist.
        """
        place, spans = self.placement, self.words.spans
        rows = word_means(self.attention(layers), spans)
        if relative:
            ratio = rows / self.neutral_row(layers).clamp(min=1e-12)
            rows = ratio * (rows.sum(1) / ratio.sum(1).clamp(min=1e-12))[:, None]
        values = place.rasterize(rows)
        shares = tuple(values.flatten(1).sum(1).tolist())
        more: dict[str, Any] = {
            "layers": "mean" if layers is None else list(layers),
            "heads": "mean" if self.heads is None else list(self.heads),
            "relative": relative, "image_shares": shares, "placement": list(self.notes),
        }  # fmt: skip
        if method == "occlusion":  # which does not read layers and heads
            values, more = self.occlusion(), {name: more[name] for name in [*more][2:]}
        elif method == "gradient_attention":
            values = place.rasterize(word_means(self.gradient_attention(layers), spans))
        info = MapInfo(method, model=type(self.model).__name__, image=self.image.name,
                       quantity=WORD_QUANTITIES.get(method, ""), more=more)  # fmt: skip
        site = self.text.sites[self.select(layers)[-1]]
        kind = "words" if method == "attention" else "gradient"
        maps = AttentionMap(values, site, kind, place.geometry, info, self.words.words)
        log_probs = self.text.log_probs
        return Caption(
            words=self.words.words, gates=shares, maps=maps,
            log_probs=tuple(float(log_probs[slice(*span)].sum()) for span in spans),
            score=float(log_probs.sum()), image=self.image.name, gate_symbol="on photo",
            finished=int(self.text.tokens[-1]) in self.process.special_ids,
            notes=self._describe(info), spaces=self.words.spaces,
            thumbnail=make_thumbnail(self.image),
        )  # fmt: skip

    def _describe(self, info: MapInfo) -> str:
        """Return a line that says how the maps were computed."""
        parts = [f"{info.method} of {info.model}"]
        layers, heads = (info.more.get(name) for name in ("layers", "heads"))
        if layers is not None:
            some = len(self.layers) < self.num_layers
            own = f" ({', '.join(map(str, self.layers))} of {self.num_layers}; the others have no "\
                  "attention weights over the photo)" if some else ""  # fmt: skip
            mean = f"mean of {len(self.layers)} layers{own}"
            parts.append(mean if layers == "mean" else f"layers {layers} of {self.num_layers}")
            parts.append("mean of heads" if heads == "mean" else f"heads {heads}")
        if info.more["relative"]:
            parts.append("relative to a neutral prompt")
        return "; ".join([*parts, *self.notes])


def words_of_photo(
    process: PhotoProcessor,
    photo: LoadedImage,
    options: Mapping[str, Any],
    kept: Kept,
    heads: Sequence[int] | None = None,
    *,
    per_token: bool = False,
) -> list[PhotoWords]:
    """Return the text that a model generates for a photo, or `num_return_sequences` texts.

    Args:
        process: Preprocessing of the model, with the prompt.
        photo: The photo.
        options: Options of `generate`, and inputs of the model that its processor does not return.
        kept: Cached image tokens of earlier photos, for the same model and processor.
        heads: Heads to average attention over; None for all.
        per_token: Whether each token is a word.

    Raises:
        ValueError: If attention cannot be recorded or placed on the photo.
    """
    model = process.model
    with frozen(model), torch.no_grad():
        inputs = process(Image.fromarray(photo.pixels))
    # Inputs of the model and the end token also apply when the text is read again.
    again = {*inspect.signature(type(model).forward).parameters, "eos_token_id"}
    of_model = {name: value for name, value in options.items() if name in again}
    inputs |= of_model
    tokens = find_image_tokens(process, photo, inputs, kept)
    chosen = {name: value for name, value in options.items() if name not in of_model}
    with eval_mode(model):  # random numbers are drawn as in `generate`
        texts = generate(model, inputs, chosen, tokens, process.special_ids, heads)
    results: list[PhotoWords] = []
    for text in texts:
        words = split_words(process.tokenizer, text.tokens.tolist(),
                            special_ids=process.special_ids, per_token=per_token)  # fmt: skip
        note = "a map per token" if per_token else (
            "a map per token where the script has no spaces between words" if words.split else ""
        )  # fmt: skip
        notes = (*tokens.notes, *filter(None, [note]))
        results.append(PhotoWords(process, inputs, photo, tokens, text, heads, words, notes))
    return results


def read_words(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    *,
    processor: Any,
    prompt: Any = None,
    heads: Sequence[int] | None = None,
    per_token: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    kept: Kept | None = None,
    **options: Any,
) -> list[list[PhotoWords]]:
    """Return the words of photos, as `words_of_photo` and `caption_with_transformers` describe.

    Raises:
        ValueError: If a list of prompts does not have one for each photo.
    """
    model = as_captioner(model)
    kept = {} if kept is None else kept
    prompts = list_prompts(prompt)
    if prompts and isinstance(images, (list, tuple)) and len(images) != len(prompts):
        raise ValueError(
            f"a list of prompts must have one for each of {len(images)} photos, got {len(prompts)}"
        )
    each = itertools.repeat(prompt) if prompts is None else prompts
    results: list[list[PhotoWords]] = []
    for photo, text in zip(read_images(images), each, strict=prompts is not None):
        process = PhotoProcessor(model, processor, text, chat_template_kwargs)
        results.append(words_of_photo(process, photo, options, kept, heads, per_token=per_token))
    return results


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

    The text is generated by `model.generate` and read again with its attention recorded. The
    positions of image tokens on the photo are measured by probing the model and its processor.

    Args:
        model: A model of transformers that generates text from images.
        images: One photo or several, as for `visattn.caption`; None if chat messages hold them.
        processor: Its processor, or a pair of image processor and tokenizer.
        prompt: An instruction for chat models, the beginning of the caption for others; chat
            messages as for `apply_chat_template`, which contain the photo or a placeholder
            `{"type": "image"}` for it; or a list of either, one per photo. By default the prompt of
            the model's training, "Describe this image." for chat models.
        layers: Index of a layer of the text decoder, or indices to average; None for all with
            attention weights over the photo.
        heads: Index of a head, or indices to average; None for all.
        relative: Divide the attention of each word by that of a neutral prompt.
        per_token: Return a map for each token instead of each word. Scripts without spaces between
            words, such as Chinese and Thai, are always split at tokens.
        method: `attention`, `gradient_attention` or `occlusion`.
        chat_template_kwargs: Options of `apply_chat_template`: `tools`, `enable_thinking`, ...
        generate_kwargs: Options of `generate`: `max_new_tokens`, `num_beams`, `do_sample`, ...

    Returns:
        One caption per photo; with `num_return_sequences`, the others are its `alternatives`. Its
        `gates` are the shares of the words' attention that are on the photo.

    Raises:
        TypeError: If the model does not generate text from images, or the processor is not one.
        ValueError: If attention cannot be recorded or placed on the photo, or a layer or
            head does not exist.

    Source:
        Attention of multimodal language models: Zhang et al. 2025, arXiv:2502.17422. The probe
        has no paper.
    """
    chosen = [(each,) if isinstance(each, int) else each for each in (layers, heads)]
    if method in ("relevance", "gradient_embedding", "gradcam"):
        raise ValueError(
            f"the method {method} is only for captioners of visattn; use attention, "
            "gradient_attention or occlusion for models of transformers"
        )
    check_method(method, *chosen)
    if relative and method != "attention":
        raise ValueError(f"relative=True needs the method attention, got {method}")
    several = list_prompts(prompt)
    taken = [take_photo(each) for each in (several or [prompt])]
    if held := [photo for _, photo in taken if photo is not None]:
        if images is not None:
            raise ValueError("the messages contain the photo; omit images, or the one in messages")
        images = held
    texts = [text for text, _ in taken]
    photos = read_words(
        model,
        [] if images is None else images,
        processor=processor,
        prompt=texts if several else texts[0],
        heads=chosen[1],
        per_token=per_token,
        chat_template_kwargs=chat_template_kwargs,
        **generate_kwargs,
    )
    captions: list[Caption] = []
    for written in photos:
        best, *others = (each.caption(method, chosen[0], relative=relative) for each in written)
        captions.append(replace(best, alternatives=tuple(others)))
    return captions
