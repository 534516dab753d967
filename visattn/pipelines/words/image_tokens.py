"""Image tokens among the keys of a language model, and their places on a photo."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.data.images.reader import LoadedImage
from visattn.geometry.affine import Geometry
from visattn.pipelines.words.generation import GeneratedText, replay_inputs
from visattn.pipelines.words.placement import (
    Placement,
    element_positions,
    owned_pixel_moments,
    place_tokens,
    shared_pixel_moments,
    token_owners,
)
from visattn.pipelines.words.processing import PhotoProcessor, pixel_name
from visattn.recording.frozen_model import frozen
from visattn.recording.word_rows import KeySource, KeySources

RESAMPLERS = {
    "blip-2": "qformer",
    "instructblip": "qformer",
    "idefics2": "perceiver_resampler",
    "kosmos-2": "image_to_text_projection",
}
"""Model types whose words read learned queries, and the module in which these read the image."""

_MAX_SHARED = 0.001  # of the pixels; above, tokens are placed by the moments of their gradients
_MAX_BACKWARD_PASSES = 2048
_CACHE_SIZE = 64
_CACHE: "WeakKeyDictionary[nn.Module, dict[Any, ImageTokens]]" = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class ImageTokens:
    """Image tokens of a model for photos of one size.

    Args:
        sites: Attention layers in which words read image tokens, in their order.
        text_sites: All attention layers of the text decoder.
        columns: Index of the key of each image token in `sites`.
        placement: Places of the image tokens; of those that the resampler reads if there is one.
        resampler_sites: Attention layers between the placed tokens and those that words read.
        notes: How the tokens were placed, if not by their own pixels.
    """

    sites: tuple[str, ...]
    text_sites: tuple[str, ...]
    columns: Int[Tensor, " i"]
    placement: Placement
    resampler_sites: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_image_tokens(
    model: nn.Module,
    process: PhotoProcessor,
    photo: LoadedImage,
    inputs: dict[str, Any],
    text: GeneratedText,
) -> ImageTokens:
    """Return the image tokens that words of a model read, with their places on a photo.

    The result is cached for photos of one size with the same prompt.

    Args:
        model: The model.
        process: Its preprocessing.
        photo: The photo.
        inputs: The preprocessed photo and prompt.
        text: A generated text.

    Raises:
        ValueError: If words do not read image tokens, or the tokens cannot be placed.
    """
    name = pixel_name(inputs)
    integers = [
        (key, value.cpu().numpy().tobytes())
        for key, value in inputs.items()
        if isinstance(value, Tensor) and not value.is_floating_point()
    ]
    key = (photo.size, photo.orientation, tuple(inputs[name].shape), process.fingerprint(),
           tuple(integers))  # fmt: skip
    cache = _CACHE.setdefault(model, {})
    if key not in cache:
        positions, on_photo = element_positions(
            lambda image: process([image], do_normalize=False)[name],
            photo.size,
            inputs[name].shape,
        )
        points = positions * torch.tensor(photo.size[::-1], dtype=torch.float64)
        probe = _probe(model, inputs, text)
        image_tokens = _locate(model, probe, points, on_photo,
                        Geometry.identity(photo.size, photo.orientation))  # fmt: skip
        if len(cache) >= _CACHE_SIZE:
            cache.clear()
        cache[key] = image_tokens
    return cache[key]


@dataclass(frozen=True, eq=False)
class _Probe:
    """Sources of all keys without attention, and the pixels that they depend on."""

    sources: dict[str, KeySource]
    text_sites: tuple[str, ...]
    pixels: Tensor
    inputs: dict[str, Any]


def _probe(model: nn.Module, inputs: dict[str, Any], text: GeneratedText) -> _Probe:
    """Run the model without attention on noise, for one word and for two.

    Attention layers of the text decoder are those whose number of queries grows with the text.
    """
    prompt = text.sequence[: len(text.sequence) - text.num_generated]
    generator = torch.Generator().manual_seed(0)
    num_queries: dict[str, int] = {}
    for words in (1, 2):
        sequence = torch.cat([prompt, text.sequence[-1:].repeat(words + 1)])
        replayed = replay_inputs(model, inputs, sequence, words + 1)
        name = pixel_name(replayed)
        original = replayed[name]
        noise = 2 * torch.rand(original.shape, generator=generator) - 1
        pixels = noise.to(original)
        if name == "flattened_patches":
            pixels[..., :2] = original[..., :2]  # row and column of the patch
        probe = KeySources(model)
        with frozen(model), torch.set_grad_enabled(words == 2), probe.collecting():
            pixels.requires_grad_(words == 2)
            model(**{**replayed, name: pixels})
        if words == 1:
            num_queries = {site: each.num_queries for site, each in probe.sources.items()}
    grown = [site for site, source in probe.sources.items()
             if source.num_queries == num_queries.get(site, 0) + 1]  # fmt: skip
    return _Probe(probe.sources, tuple(grown), pixels, replayed)


def _locate(
    model: nn.Module, probe: _Probe, points: Tensor, on_photo: Tensor, geometry: Geometry
) -> ImageTokens:
    """Return the image tokens of the text decoder, or of the resampler before it."""
    with frozen(model):
        sites, placement, notes = _placed(
            model, probe, probe.text_sites, points, on_photo, geometry
        )
        if placement is not None:
            return ImageTokens(sites, probe.text_sites, placement.columns, placement, (), notes)
        config: Any = model.config
        module = RESAMPLERS.get(str(config.model_type))
        columns = _image_columns(model, probe.inputs)
        if module is None or columns is None:
            raise ValueError(_no_image_tokens(model, probe))
        between = tuple(
            site
            for site, source in probe.sources.items()
            if module in site and source.num_queries == len(columns)
        )
        resampler_sites, placement, notes = _placed(
            model, probe, between, points, on_photo, geometry
        )
    if placement is None:
        raise ValueError(_no_image_tokens(model, probe))
    length = probe.inputs["input_ids"].shape[1]
    sites = tuple(s for s in probe.text_sites if probe.sources[s].num_keys == length)
    note = (
        f"words read {len(columns)} learned queries; each is replaced by its attention to image "
        f"tokens, mean over the layers and heads of {module}: an approximation"
    )
    return ImageTokens(sites, probe.text_sites, columns, placement, resampler_sites, (*notes, note))


def _no_image_tokens(model: nn.Module, probe: _Probe) -> str:
    name = type(model).__name__
    if not probe.text_sites:
        return (
            f"no attention of words was found in {name}: its kernels cannot be recorded; use "
            "model.set_attn_implementation('sdpa')"
        )
    return (
        f"the words of {name} read no token that depends on pixels without attention in between; "
        f"models whose words read learned queries are supported for {', '.join(RESAMPLERS)}"
    )


def _placed(
    model: nn.Module,
    probe: _Probe,
    candidates: tuple[str, ...],
    points: Tensor,
    on_photo: Tensor,
    geometry: Geometry,
) -> tuple[tuple[str, ...], Placement | None, tuple[str, ...]]:
    """Return the layers whose keys are image tokens, and the places of these."""
    owners: dict[int, tuple[Tensor, Float[Tensor, ""]]] = {}
    sites: list[str] = []
    first: Tensor | None = None
    for site in candidates:
        states = probe.sources[site].states
        if states is None or not states.requires_grad:
            continue
        key = states.untyped_storage().data_ptr()
        if key not in owners:
            owners[key] = token_owners(states, probe.pixels)
        if not bool((owners[key][0] != -1).any()):
            continue
        if first is not None and not torch.equal(owners[key][0], owners[_key(first)][0]):
            raise ValueError(
                f"the image tokens of {site} and {sites[0]} in {type(model).__name__} are not the "
                "same; such models are not supported"
            )
        first = states if first is None else first
        sites.append(site)
    if first is None:
        return (), None, ()
    tokens, shared = owners[_key(first)]
    if float(shared) <= _MAX_SHARED:
        return (
            tuple(sites),
            place_tokens(owned_pixel_moments(tokens, points, on_photo), geometry),
            (),
        )
    if len(first) > _MAX_BACKWARD_PASSES:
        raise ValueError(
            f"image tokens of {type(model).__name__} share pixels, and {len(first)} of them are "
            f"more than the {_MAX_BACKWARD_PASSES} that can be placed one by one"
        )
    moments = shared_pixel_moments(first, probe.pixels, points, on_photo)
    note = "image tokens share pixels: each is drawn on the mean and spread of its gradient"
    return tuple(sites), place_tokens(moments, geometry, shared=True), (note,)


def _key(states: Tensor) -> int:
    return states.untyped_storage().data_ptr()


def _image_columns(model: nn.Module, inputs: dict[str, Any]) -> Int[Tensor, " i"] | None:
    """Return the positions of image tokens in the prompt, as the model marks them."""
    mask = inputs.get("image_embeds_position_mask")
    if mask is None:
        token = getattr(model.config, "image_token_id", getattr(model.config, "image_token_index",
                                                                None))  # fmt: skip
        if token is None or "input_ids" not in inputs:
            return None
        mask = inputs["input_ids"] == token
    return mask[0].nonzero()[:, 0].cpu()
