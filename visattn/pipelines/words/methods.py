"""Methods for the words of a vision-language model: gradients, occlusion, token activation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from visattn.attribution.words import (
    WORD_GRADIENT_METHODS,
    TokenVectors,
    WordLayer,
    WordRun,
    word_attention,
    word_attributions,
)
from visattn.functional.attribution.masks import occlusion_windows, window_masks
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.pipelines.words.generation import (
    GeneratedText,
    generate,
    replay_inputs,
)
from visattn.pipelines.words.processing import PhotoProcessor
from visattn.pipelines.words.recorded_pass import forward_logits
from visattn.pipelines.words.replay import WordReplay, replay_text
from visattn.pipelines.words.token_activation import replay_token_activation
from visattn.pipelines.words.tower import TOWER_METHODS, tower_maps
from visattn.recording.frozen_model import frozen
from visattn.results.captions import Caption
from visattn.results.kinds import TRANSFORMERS_WORD_METHODS, WORD_QUANTITIES, WordMethod

_ONE_TOKEN = {"max_new_tokens": 1, "min_new_tokens": 1, "num_beams": 1, "do_sample": False,
              "num_return_sequences": 1}  # fmt: skip
_WINDOWS_PER_SIDE = 7  # of an occlusion window, as for classifiers


def replay_run(replay: WordReplay) -> WordRun:
    """Return a differentiable forward pass over a generated caption.

    Args:
        replay: The caption.

    Raises:
        ValueError: If words read the image through learned queries, or the inputs of the layers
            were not found.
    """
    columns = replay.placement.columns
    if replay.notes and any("learned queries" in note for note in replay.notes):
        raise ValueError(
            f"the words of {type(replay.model).__name__} read learned queries instead of image "
            "tokens, so that gradients of its attention have no place on the photo; use the "
            "methods attention or occlusion"
        )
    run = replay.run(differentiable=True, sites=replay.text_sites)
    rows = replay.states
    if replay.sites[0] not in run.origins or rows is None:
        raise ValueError(
            f"the inputs of {replay.sites[0]} in {type(replay.model).__name__} were not found; use "
            "the methods attention or occlusion"
        )
    layers = tuple(
        WordLayer(site, (weights,), columns.to(weights.device) if site in replay.sites else None)
        for site, weights in run.weights.items()
    )
    embeddings = TokenVectors(
        run.origins[replay.sites[0]],
        lambda tokens: tokens.flatten(0, -2)[rows.to(tokens.device)],
    )
    joint = set(replay.sites) == set(replay.text_sites)
    return WordRun(run.log_probs, layers, embeddings, joint=joint)


def replay_maps(
    replay: WordReplay,
    methods: Sequence[str],
    *,
    processor: Any = None,
    prompt: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    window_cells: int | None = None,
) -> dict[str, Float[Tensor, "t gy gx"]]:
    """Return a map per word of a caption by several methods, with one backward pass per token.

    Args:
        replay: The caption.
        methods: `attention`, `gradient_attention`, `relevance`, `gradient_embedding`, `gradcam`,
            `occlusion`, `tam`, `tower_gradcam`, `input_gradient` or `smoothgrad`.
        processor: For the last five: the processor of the model, as for `generate_and_replay`.
        prompt: For these: its prompt.
        layers: For `attention` and `gradient_attention`: indices of layers that attend to the
            image.
        heads: For these: indices of heads.
        window_cells: For occlusion: side of the window in cells of the map; None for 1/7 of the
            longer side, at least 2.

    Raises:
        ValueError: If a method is unknown, does not fit the model, its arguments are missing, or
            the prompt shows several photos.
    """
    options = {"processor": processor, "prompt": prompt, "layers": layers, "heads": heads,
               "window_cells": window_cells}  # fmt: skip
    return {name: values for name, (values, _) in placed_maps(replay, methods, **options).items()}


def placed_maps(
    replay: WordReplay, methods: Sequence[str], **options: Any
) -> dict[str, tuple[Float[Tensor, "t gy gx"], Geometry]]:
    """Return the maps of `replay_maps`, each with the geometry of its grid.

    Args:
        replay: As for `replay_maps`.
        methods: As for `replay_maps`.
        options: As for `replay_maps`.
    """
    if len(replay.placements) > 1:
        raise ValueError("the caption is one of several photos: pass it to explain_replay")
    return {name: placed for name, (placed,) in _maps_on_images(replay, methods, **options).items()}


def _maps_on_images(
    replay: WordReplay,
    methods: Sequence[str],
    *,
    processor: Any = None,
    prompt: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    window_cells: int | None = None,
) -> dict[str, tuple[tuple[Tensor, Geometry], ...]]:
    """Return the maps of several methods on each photo, with the geometry of their grids."""
    for method in methods:
        check_replay_method(method)
    maps: dict[str, tuple[Tensor, ...]] = {}
    by_gradient = [name for name in methods if name in WORD_GRADIENT_METHODS]
    if by_gradient or ((layers, heads) != (None, None) and "attention" in methods):
        with frozen(replay.model):
            run = replay_run(replay)
            rows = word_attributions(run, by_gradient, layers=layers, heads=heads)
            if "attention" in methods:
                rows["attention"] = word_attention(run, layers=layers, heads=heads)
        maps |= {name: _word_grids(replay, values) for name, values in rows.items()}
    elif "attention" in methods:
        maps["attention"] = _word_grids(replay, replay.rows.mean(0))
    geometries = [each.geometry for each in replay.placements]
    placed = {name: tuple(zip(grids, geometries, strict=True)) for name, grids in maps.items()}
    if rest := [name for name in methods if name not in placed]:
        if not replay.shown.is_single_photo:
            raise ValueError(
                f"{rest[0]} is for one photo, but the prompt shows several images; use the methods "
                "attention, gradient_attention, relevance, gradient_embedding or gradcam"
            )
        if processor is None:
            raise ValueError(f"{rest[0]} needs the processor of the model: pass processor=")
        process = PhotoProcessor(replay.model, processor, prompt)
        if "occlusion" in methods:
            hidden = replay_occlusion(replay, process, window_cells=window_cells)
            placed["occlusion"] = ((hidden, geometries[0]),)
        if "tam" in methods:
            placed["tam"] = ((replay_token_activation(replay, process), geometries[0]),)
        if of_tower := [name for name in methods if name in TOWER_METHODS]:
            values, finer = tower_maps(replay, of_tower, process)
            placed |= {name: ((each, finer),) for name, each in values.items()}
    return {name: placed[name] for name in methods}


def check_replay_method(method: str) -> None:
    """Refuse an unknown method for the words of models of transformers.

    Args:
        method: Its name.

    Raises:
        ValueError: With the known ones.
    """
    known = (*get_args(WordMethod), *TRANSFORMERS_WORD_METHODS)
    if method not in known:
        raise ValueError(f"methods for words are {', '.join(known)}; got {method!r}")


def explain_replay(replay: WordReplay, method: str, **options: Any) -> Caption:
    """Return a caption with the maps of a method; its image shares stay those of the attention.

    Args:
        replay: The caption.
        method: As for `replay_maps`.
        options: Arguments of `replay_maps`.

    Raises:
        ValueError: If the method is unknown, does not fit the model, or selects no layers and
            heads although some are passed.
    """
    check_replay_method(method)
    selected = [name for name in ("layers", "heads") if options.get(name)]
    if selected and method not in ("attention", "gradient_attention"):
        raise ValueError(
            f"{selected[0]} select attention weights, which {method} does not read one by one; use "
            "attention or gradient_attention, or leave them out"
        )
    result = replay.caption()
    if method == "attention" and not options.get("layers") and not options.get("heads"):
        return result
    [on_images] = _maps_on_images(replay, [method], **options).values()
    chosen = {name: list(options[name]) for name in ("layers", "heads") if options.get(name)}
    quantity = "" if method == "attention" else WORD_QUANTITIES[method]
    more = {**result.maps.info.more, **chosen}
    if method not in ("attention", "gradient_attention"):  # others read no layers and heads
        more = {name: more[name] for name in more if name not in ("layers", "heads")}
    info = replace(result.maps.info, method=method, quantity=quantity, more=more)
    kind = "words" if method == "attention" else "gradient"
    maps, *others = (
        replace(each, values=values, kind=kind, geometry=geometry,
                info=replace(info, image=each.info.image))
        for each, (values, geometry) in zip(
            (result.maps, *result.further_maps), on_images, strict=True
        )
    )  # fmt: skip
    return replace(result, maps=maps, further_maps=tuple(others), notes=replay.describe(info))


@torch.no_grad()
def replay_occlusion(
    replay: WordReplay, process: PhotoProcessor, *, window_cells: int | None = None
) -> Float[Tensor, "t gy gx"]:
    """Return the mean decrease of each word's log-probability over windows that hide a cell.

    The windows are painted on the photo, in its mean color; they slide by half of their side.

    Args:
        replay: The caption.
        process: Preprocessing of the model.
        window_cells: Side of the window in cells of the map; None for 1/7 of the longer side.

    Source:
        Zeiler and Fergus 2013, arXiv:1311.2901, section 4.2, for the log-probability of each word.
    """
    grid, geometry = replay.placement.grid_size, replay.placement.geometry
    side = min(window_cells or max(2, -(-max(grid) // _WINDOWS_PER_SIDE)), *grid)
    step = max(1, side // 2)
    windows = occlusion_windows(grid, window_size=(side, side), stride=(step, step))
    corners = geometry.to_image(windows.double().view(-1, 2)).view(-1, 4).round().long()
    original = _word_sums(replay, replay.run(sites=()).log_probs)
    total, counts = torch.zeros(len(original), *grid), torch.zeros(grid)
    color = replay.image.pixels.reshape(-1, 3).mean(0).round().astype(np.uint8)
    for (left, top, right, bottom), cells in zip(
        corners.tolist(), window_masks(windows, grid), strict=True
    ):
        hidden = replay.image.pixels.copy()
        hidden[max(top, 0) : bottom, max(left, 0) : right] = color
        pixels = process([Image.fromarray(hidden)])[replay.pixel_name]
        decrease = original - _word_sums(replay, replay.run(pixels=pixels, sites=()).log_probs)
        total += decrease[:, None, None] * cells
        counts += cells
    return (total / counts).relu()


@torch.no_grad()
def replay_given(
    model: nn.Module, photo: LoadedImage, words: Sequence[str], process: PhotoProcessor
) -> WordReplay:
    """Return the replay of a given caption, as if the model had generated it.

    Args:
        model: Model of transformers.
        photo: The upright photo.
        words: Words of the caption.
        process: Preprocessing of the model.

    Raises:
        ValueError: If the tokenizer does not give the words back.
    """
    tokenizer: Any = process.tokenizer
    ids = tokenizer(" ".join(words), add_special_tokens=False).input_ids
    replayed = replay_tokens(model, photo, torch.tensor([*ids, tokenizer.eos_token_id]), process)
    if replayed.words != tuple(words):
        raise ValueError(
            f"the tokenizer must give the words {' '.join(words)!r} back, got "
            f"{' '.join(replayed.words)!r}"
        )
    return replayed


@torch.no_grad()
def replay_tokens(
    model: nn.Module,
    photo: LoadedImage,
    tokens: Int[Tensor, " t"],
    process: PhotoProcessor,
    **options: Any,
) -> WordReplay:
    """Return the replay of given tokens, as if the model had generated them behind its prompt.

    Args:
        model: Model of transformers.
        photo: The upright photo.
        tokens: Ids of the caption.
        process: Preprocessing of the model, with the prompt.
        options: Arguments of `replay_text`: `keep_heads`, `per_token`.
    """
    inputs = process([Image.fromarray(photo.pixels)])
    with frozen(model), torch.no_grad():  # generate may change the prompt, and keeps its keys
        [started] = generate(model, inputs, frozenset(), _ONE_TOKEN)
    prompt = started.sequence[: len(started.sequence) - started.num_generated]
    count = len(tokens)
    text = GeneratedText(torch.cat([prompt, tokens]), count, torch.zeros(count), started.prompt)
    forced = _with_log_probs(model, inputs, text)
    return replay_text(model, process, photo, inputs, forced, **options)


def _with_log_probs(model: nn.Module, inputs: dict[str, Any], text: GeneratedText) -> GeneratedText:
    count = text.num_generated
    with frozen(model), torch.no_grad():
        logits = forward_logits(model, replay_inputs(model, inputs, text.sequence, count), count)
    tokens = text.sequence[len(text.sequence) - count :]
    log_probs = logits[0].log_softmax(-1).cpu().gather(1, tokens[:, None])[:, 0]
    return replace(text, log_probs=log_probs)


def _word_sums(replay: WordReplay, log_probs: Float[Tensor, " t"]) -> Float[Tensor, " w"]:
    """Return the log-probability of each word: the sum over its tokens."""
    values = log_probs.float().cpu()
    return torch.stack([values[slice(*span)].sum() for span in replay.spans])


def _word_grids(replay: WordReplay, rows: Float[Tensor, "t i"]) -> tuple[Tensor, ...]:
    """Return the mean over the tokens of each word, on the grid of each photo."""
    rows = rows.detach().float().cpu()
    words = [rows[slice(*span)].mean(0) for span in replay.spans]
    joined = torch.stack(words) if words else rows[:0]
    return tuple(each.rasterize(joined) for each in replay.placements)
