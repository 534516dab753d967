"""Image tokens among the keys of a language model, and their places on a photo."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor, nn

from visattn.data.images.reader import LoadedImage
from visattn.geometry.affine import Geometry
from visattn.pipelines.words.checks import why_no_image_tokens
from visattn.pipelines.words.generation import GeneratedText, replay_inputs
from visattn.pipelines.words.pixel_places import PixelPlaces, check_places, find_pixel_places
from visattn.pipelines.words.placement import (
    NO_TOKEN,
    Placement,
    owned_pixel_moments,
    place_tokens,
    shared_pixel_moments,
    token_owners,
)
from visattn.pipelines.words.processing import PhotoProcessor, pixel_name
from visattn.recording.frozen_model import frozen
from visattn.recording.key_sources import KeySource, KeySources
from visattn.recording.reused_outputs import ReusedOutputs

RESAMPLERS = {
    "blip-2": "qformer",
    "instructblip": "qformer",
    "idefics2": "perceiver_resampler",
    "kosmos-2": "image_to_text_projection",
    "kosmos-2.5": "image_to_text_projection",
}
"""Model types whose words read learned queries, and the module in which these read the image."""

_MAX_SHARED = 0.01  # of the pixels; above, tokens are placed by the moments of their gradients
_MAX_BACKWARD_PASSES = 2048
_CACHE_SIZE = 64
_CACHE: "WeakKeyDictionary[nn.Module, dict[Any, tuple[ImageTokens, PixelPlaces]]]" = (
    WeakKeyDictionary()
)
_PROBED_WORDS = 3  # generated tokens of the probed text; the last one is not read
_CHANGED, _UNCHANGED = 1e-2, 1e-4  # of the median change of changed keys


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
        states: Rows of the image tokens in the hidden states that `KeySources` finds; None if these
            are others.
        moves: Whether the keys of image tokens stand behind those of the words, so that each word
            moves them by one.
    """

    sites: tuple[str, ...]
    text_sites: tuple[str, ...]
    columns: Int[Tensor, " i"]
    placement: Placement
    resampler_sites: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    states: Int[Tensor, " s"] | None = None
    moves: bool = False

    def for_words(self, count: int) -> "ImageTokens":
        """Return the image tokens of a text of `count` generated tokens."""
        if not self.moves:
            return self
        columns = self.columns + count - _PROBED_WORDS
        return replace(self, columns=columns, placement=replace(self.placement, columns=columns))


def find_image_tokens(
    model: nn.Module,
    process: PhotoProcessor,
    photo: LoadedImage,
    inputs: dict[str, Any],
    text: GeneratedText,
    *,
    towers: ReusedOutputs | None = None,
) -> ImageTokens:
    """Return the image tokens that words of a model read, with their places on a photo.

    The result is cached for photos of one size with the same prompt. That the pixels of a photo lie
    where those of test photos do is checked for each.

    Args:
        model: The model.
        process: Its preprocessing.
        photo: The photo.
        inputs: The preprocessed photo and prompt.
        text: A generated text.
        towers: Outputs of vision towers on the same photo.

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

    def plain(image: Image.Image) -> Tensor:
        return process.unnormalized(image)[name]

    def normalized(image: Image.Image) -> Tensor:
        return process([image])[name]

    if key not in cache:
        places = find_pixel_places(plain, normalized, photo.size, inputs[name].shape)
        probe = _probe(model, inputs, text, towers)
        geometry = Geometry.identity(photo.size, photo.orientation)
        image_tokens = _locate(model, probe, places, geometry)
        if len(cache) >= _CACHE_SIZE:
            cache.clear()
        cache[key] = image_tokens, places
    image_tokens, places = cache[key]
    check_places(places, photo.pixels, inputs[name], process=plain, normalized=normalized)
    return image_tokens.for_words(text.num_generated)


@dataclass(frozen=True, eq=False)
class _Probe:
    """Keys of a model without attention, and the pixels that they depend on.

    Args:
        model: The model.
        inputs: Its inputs, for two words.
        shorter: Its inputs, for one word.
        name: Name of the pixels.
        pixels: Noise, in the graph of the keys.
        sources: Keys of all attention layers.
        text_sites: Attention layers of the text decoder.
        skip: Linear layers of the text decoder that no key needs.
    """

    model: nn.Module
    inputs: dict[str, Any]
    shorter: dict[str, Any]
    name: str
    pixels: Tensor
    sources: dict[str, KeySource]
    text_sites: tuple[str, ...]
    skip: frozenset[int]

    def changed(
        self, chosen: Bool[Tensor, " e"], *, shorter: bool = False
    ) -> dict[str, KeySource]:
        """Return the keys after the chosen pixel elements changed, for two words or for one."""
        generator = torch.Generator().manual_seed(1)
        noise = 2 * torch.rand(self.pixels.shape, generator=generator) - 1
        chosen = chosen.clone()
        if self.name == "flattened_patches":
            chosen.view(self.pixels.shape)[..., :2] = False  # row and column of the patch
        other = torch.where(chosen.view(self.pixels.shape), noise.to(self.pixels), self.pixels)
        inputs = self.shorter if shorter else self.inputs
        with torch.no_grad():
            return _sources(self.model, {**inputs, self.name: other.detach()}, self.skip).sources


def _probe(
    model: nn.Module, inputs: dict[str, Any], text: GeneratedText, towers: ReusedOutputs | None
) -> _Probe:
    """Run the model without attention, for one word and on noise for two.

    Attention layers of the text decoder are those whose number of queries grows with the text. Of
    the decoder, linear layers outside of attention need not run: tokens keep their content.
    """
    skip = _text_layers(model, text)
    prompt = text.sequence[: len(text.sequence) - text.num_generated]
    one, two = (
        replay_inputs(model, inputs, torch.cat([prompt, text.sequence[-1:].repeat(count)]), count)
        for count in (_PROBED_WORDS - 1, _PROBED_WORDS)
    )  # fmt: skip
    reusing = nullcontext() if towers is None else towers.reusing()
    with torch.no_grad(), reusing:
        counts = {
            site: source.num_queries for site, source in _sources(model, one, skip).sources.items()
        }
    name = pixel_name(two)
    noise = 2 * torch.rand(two[name].shape, generator=torch.Generator().manual_seed(0)) - 1
    pixels = noise.to(two[name].device)
    if name == "flattened_patches":
        pixels[..., :2] = two[name][..., :2]  # row and column of the patch

    def grown(site: str, source: KeySource) -> bool:
        return site in counts and source.num_queries == counts[site] + 1

    def is_first(site: str, source: KeySource) -> bool:
        return grown(site, source) and source.keys.requires_grad

    with torch.enable_grad():
        sources = _sources(model, {**two, name: pixels.requires_grad_()}, skip, is_first).sources
    text_sites = tuple(site for site, source in sources.items() if grown(site, source))
    return _Probe(model, two, one, name, pixels, sources, text_sites, skip)


def _sources(
    model: nn.Module, inputs: dict[str, Any], skip: frozenset[int], last: Any = None
) -> KeySources:
    """Run a model in float32 without attention."""
    sources = KeySources(model, skip=skip, full_precision=True, last=last)
    device = next((each.device.type for each in inputs.values() if isinstance(each, Tensor)), "cpu")
    grad = torch.is_grad_enabled()
    with frozen(model), torch.set_grad_enabled(grad), torch.autocast(device, enabled=False):
        with sources.collecting():
            model(**inputs)
    return sources


def _text_layers(model: nn.Module, text: GeneratedText) -> frozenset[int]:
    """Return the weights of linear layers that run without a photo, but those of attention."""
    ids = text.sequence[-1:].repeat(2)[None].to(next(model.parameters()).device)
    sources = KeySources(model, full_precision=True)
    try:
        with frozen(model), torch.no_grad(), sources.collecting():
            model(input_ids=ids, use_cache=False)  # pyright: ignore[reportCallIssue]
    except Exception:  # noqa: BLE001 (the model does not run without a photo)
        return frozenset()
    return sources.outside_attention()


def _locate(
    model: nn.Module, probe: _Probe, places: PixelPlaces, geometry: Geometry
) -> ImageTokens:
    """Return the image tokens of the text decoder, or of the resampler before it."""
    found = _placed(probe, probe.text_sites, places, geometry)
    if found is not None:
        return replace(found, text_sites=probe.text_sites)
    config: Any = model.config
    module = RESAMPLERS.get(str(config.model_type))
    columns = _image_columns(model, probe.inputs)
    if module is None or columns is None:
        raise ValueError(_no_image_tokens(model, probe))
    between = tuple(
        site
        for site, source in probe.sources.items()
        if module in site and source.num_queries * source.num_groups == len(columns)
    )
    found = _placed(probe, between, places, geometry)
    if found is None:
        raise ValueError(_no_image_tokens(model, probe))
    length = probe.inputs["input_ids"].shape[1]
    sites = tuple(s for s in probe.text_sites if probe.sources[s].num_keys == length)
    note = (
        f"words read {len(columns)} learned queries; each is replaced by its attention to image "
        f"tokens, mean over the layers and heads of {module}: an approximation"
    )
    return replace(found, sites=sites, text_sites=probe.text_sites, columns=columns,
                   resampler_sites=found.sites, notes=(*found.notes, note))  # fmt: skip


def _no_image_tokens(model: nn.Module, probe: _Probe) -> str:
    name = type(model).__name__
    if not probe.text_sites:
        return (
            f"no attention of words was found in {name}: its kernels cannot be recorded; use "
            "model.set_attn_implementation('sdpa')"
        )
    return (
        f"the words of {name} read no token that depends on pixels of its own: "
        f"{why_no_image_tokens(model)}; models whose words read learned queries are supported for "
        f"{', '.join(RESAMPLERS)}"
    )


def _placed(
    probe: _Probe, candidates: Sequence[str], places: PixelPlaces, geometry: Geometry
) -> ImageTokens | None:
    """Return the image tokens among the keys of some layers; None if there are none."""
    for first in candidates:
        keys = probe.sources[first].keys
        if not keys.requires_grad:
            continue
        owners, shared = token_owners(keys, probe.pixels)
        if not bool((owners != NO_TOKEN).any()):
            continue
        name = type(probe.model).__name__
        if float(shared) <= _MAX_SHARED:
            moments = owned_pixel_moments(owners, places.points, places.shown)
            columns = owners[owners >= 0].unique()
            chosen = columns[torch.randperm(len(columns), generator=_generator())[::2]]
            part = torch.isin(owners, chosen)
            placement, notes = place_tokens(moments, geometry), ()
        elif len(keys) > _MAX_BACKWARD_PASSES:
            raise ValueError(
                f"image tokens of {name} share pixels, and {len(keys)} of them are more than the "
                f"{_MAX_BACKWARD_PASSES} that can be placed one by one"
            )
        else:
            moments = shared_pixel_moments(keys, probe.pixels, places.points, places.shown)
            placement = place_tokens(moments, geometry, shared=True)
            part, chosen = torch.ones_like(owners, dtype=torch.bool), None
            notes = (
                "image tokens share pixels: each is drawn on the mean and spread of its gradient",
            )
        return _proved(probe, candidates, part, chosen, ImageTokens(
            (), (), placement.columns, placement, (), notes))  # fmt: skip
    return None


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(2)


def _proved(
    probe: _Probe,
    candidates: Sequence[str],
    part: Bool[Tensor, " e"],
    chosen: Int[Tensor, " c"] | None,
    tokens: ImageTokens,
) -> ImageTokens:
    """Return the image tokens with the layers whose keys change with their pixels.

    The pixels of every second image token are changed: exactly the keys of these tokens must
    change, in every layer in which any key does.
    """
    after = probe.changed(part)
    expected = None if chosen is None else chosen.sort().values.cpu()
    sites: list[str] = []
    for site in candidates:
        source, other = probe.sources[site], after[site]
        changed = _changed(source.keys, other.keys)
        masked = torch.zeros_like(changed) if source.masked is None else source.masked.cpu()
        if not bool(changed.any()) and not bool(masked.any()):
            continue
        indices = changed.nonzero()[:, 0]
        expected = indices if expected is None else expected
        seen = expected[expected < len(masked)]
        if len(seen) < len(expected) or indices.tolist() != seen[~masked[seen]].tolist():
            raise ValueError(
                f"the image tokens that {site} in {type(probe.model).__name__} reads are not those "
                f"that its first layer reads ({len(indices)} keys change with their pixels, "
                f"{len(expected)} should); such models are not supported"
            )
        sites.append(site)
    if expected is None:
        raise ValueError(_no_image_tokens(probe.model, probe))
    rows = _state_rows(probe.sources[sites[0]], after[sites[0]], expected, tokens.columns)
    moves = _moves(probe, sites[0], part, expected)
    return replace(tokens, sites=tuple(sites), states=rows, moves=moves)


def _moves(
    probe: _Probe, site: str, part: Bool[Tensor, " e"], expected: Int[Tensor, " c"]
) -> bool:
    """Whether the keys of image tokens move by one with each word.

    This can only be if words are keys, too, but the queries are not the same tokens as the keys.
    """
    if probe.sources[site].num_keys == probe.sources[site].num_queries:
        return False
    nothing = torch.zeros_like(part)
    before, after = (probe.changed(each, shorter=True)[site] for each in (nothing, part))
    if before.num_keys == probe.sources[site].num_keys:
        return False
    indices = _changed(before.keys, after.keys).nonzero()[:, 0].tolist()
    for moves in (False, True):
        if indices == (expected - int(moves)).tolist():
            return moves
    raise ValueError(
        f"the keys of image tokens in {site} of {type(probe.model).__name__} must stay or move by "
        "one with each word; such models are not supported"
    )


def _changed(before: Float[Tensor, "m d"], after: Float[Tensor, "m d"]) -> Bool[Tensor, " m"]:
    """Return the rows that changed; all changes must be clear.

    Raises:
        ValueError: If a change is neither clear nor rounding.
    """
    change = (after - before.detach()).float().abs().amax(1).cpu()
    clear = change[change > _CHANGED * change.max()]
    if not len(clear) or float(change.max()) == 0:
        return torch.zeros_like(change, dtype=torch.bool)
    return change > _UNCHANGED * clear.median()


def _state_rows(
    before: KeySource, after: KeySource, expected: Int[Tensor, " c"], columns: Int[Tensor, " i"]
) -> Int[Tensor, " i"] | None:
    """Return the rows of the hidden states that image tokens are made from.

    They change with the same pixels as the keys: all keys are that much further on.
    """
    if before.states is None or after.states is None:
        return None
    changed = _changed(before.states, after.states).nonzero()[:, 0]
    if len(changed) != len(expected):
        return None
    offsets = (expected - changed).unique()
    return columns.cpu() - offsets if len(offsets) == 1 else None


def _image_columns(model: nn.Module, inputs: dict[str, Any]) -> Int[Tensor, " i"] | None:
    """Return the positions of image tokens in the prompt, as the model marks them."""
    mask = inputs.get("image_embeds_position_mask")
    if mask is None:
        token = getattr(model.config, "image_token_id", getattr(model.config, "image_token_index",
                                                                None))  # fmt: skip
        if token is None or "input_ids" not in inputs:
            return None
        mask = (inputs["input_ids"] == token).long()
    return (mask[0] == 1).nonzero()[:, 0].cpu()
