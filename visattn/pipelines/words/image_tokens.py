"""Image tokens among the keys of a language model, and their places on a photo."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.pipelines.words.checks import why_no_image_tokens
from visattn.pipelines.words.language_model import (
    GeneratedText,
    PhotoProcessor,
    pixel_name,
    replay_inputs,
)
from visattn.pipelines.words.pixel_places import PixelPlaces, check_places, find_pixel_places
from visattn.pipelines.words.placement import (
    NO_TOKEN,
    Placement,
    owned_pixel_moments,
    place_tokens,
    shared_pixel_moments,
    token_owners,
)
from visattn.recording.attention_call import recordable_attention
from visattn.recording.frozen import frozen
from visattn.recording.key_sources import KeySource, KeySources

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
_TEXT_LAYERS: "WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], frozenset[str]]]" = (
    WeakKeyDictionary()
)
_PROBED_WORDS = 3  # generated tokens of the probed text; the last one is not read
_CHANGED = 1e-2  # of the largest change
_UNCHANGED = 1e-4  # of the median of clear changes
_ROUNDING = 1e-5  # of the largest value of a row


@dataclass(frozen=True, eq=False)
class ImageTokens:
    """Image tokens of a model for a photo of one size.

    Args:
        sites: Attention layers in which words read image tokens, in their order.
        text_sites: All attention layers of the text decoder.
        columns: Index of the key of each image token in `sites`.
        placement: Places of the image tokens on the photo; of those that the resampler reads if
            there is one.
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
) -> ImageTokens:
    """Return the image tokens that words of a model read, with their places on the photo.

    The result is cached for photos of one size with the same prompt. That the pixels of a photo lie
    where those of test photos do is checked for each.

    Raises:
        ValueError: If words do not read image tokens, or the tokens cannot be placed.
    """
    name = pixel_name(inputs)
    # Where image tokens stand depends on ids, masks and grid sizes, which are integers; of the
    # pixels on the shape alone.
    integers = [
        (key, value.cpu().numpy().tobytes())
        for key, value in inputs.items()
        if isinstance(value, Tensor) and not value.is_floating_point()
    ]
    key = (photo.size, tuple(inputs[name].shape), process.fingerprint(),
           tuple(integers))  # fmt: skip
    cache = _CACHE.setdefault(model, {})
    plain, normalized = process.pixels(name)
    if key not in cache:
        places = find_pixel_places(plain, normalized, photo.size, inputs[name].shape)
        # backward passes round too, if autocast is on around them
        with recordable_attention(model), torch.autocast(inputs[name].device.type, enabled=False):
            image_tokens = _locate(model, inputs, text, places, photo)
        if len(cache) >= _CACHE_SIZE:
            cache.clear()
        cache[key] = image_tokens, places
    image_tokens, places = cache[key]
    check_places(places, photo.pixels, inputs[name], process=plain, normalized=normalized)
    return image_tokens.for_words(text.num_generated)


@dataclass(eq=False)
class _Probe:
    """Keys of a model without attention, and the pixels that they depend on.

    Args:
        pixels: Noise, in the graph of the keys.
        sources: Keys of all attention layers.
    """

    model: nn.Module
    inputs: tuple[dict[str, Any], dict[str, Any]]
    skip: frozenset[int]
    pixels: Tensor
    sources: dict[str, KeySource]
    others: dict[str, KeySource]
    text_sites: tuple[str, ...]

    @cached_property
    def noisy(self) -> tuple[dict[str, KeySource], dict[str, KeySource]]:
        """Keys of other noise, for one word and for two."""
        noise = {pixel_name(self.inputs[1]): noise_pixels(self.inputs[1], seed=1)}
        shorter, longer = self.inputs
        with torch.no_grad():
            first = _sources(self.model, shorter | noise, self.skip)
            return first, _sources(self.model, longer | noise, self.skip)


def noise_pixels(inputs: dict[str, Any], seed: int) -> Tensor:
    """Return noise as the pixels of a model, in float32."""
    name = pixel_name(inputs)
    original = inputs[name]
    noise = 2 * torch.rand(original.shape, generator=torch.Generator().manual_seed(seed)) - 1
    pixels = noise.to(original.device)
    if name == "flattened_patches":
        pixels[..., :2] = original[..., :2]  # row and column of the patch
    return pixels


def _probe(model: nn.Module, inputs: dict[str, Any], text: GeneratedText) -> _Probe:
    """Run the model without attention, for one word and the photo, and for two words and noise.

    Attention layers of the text decoder are those whose number of queries grows with the text. Of
    the decoder, only the linear layers of keys have to run: tokens keep their content.
    """
    if any(weight.is_meta for weight in model.parameters()):
        skip: frozenset[int] = frozenset()  # offloaded weights are other tensors in each pass
    else:
        skip = _text_layers(model, text)
    prompt = text.sequence[: len(text.sequence) - text.num_generated]
    shorter, longer = (
        replay_inputs(model, inputs, torch.cat([prompt, text.sequence[-1:].repeat(count)]), count)
        for count in (_PROBED_WORDS - 1, _PROBED_WORDS)
    )  # fmt: skip
    with torch.no_grad():
        others = _sources(model, shorter, skip)
    pixels = noise_pixels(longer, seed=0).requires_grad_()

    def grown(site: str, source: KeySource) -> bool:
        return site in others and source.num_queries == others[site].num_queries + 1

    def is_first(site: str, source: KeySource) -> bool:
        return grown(site, source) and source.keys.requires_grad

    with torch.enable_grad():
        sources = _sources(model, {**longer, pixel_name(longer): pixels}, skip, is_first)
    text_sites = tuple(site for site, source in sources.items() if grown(site, source))
    return _Probe(model, (shorter, longer), skip, pixels, sources, others, text_sites)


def _sources(
    model: nn.Module, inputs: dict[str, Any], skip: frozenset[int], last: Any = None
) -> dict[str, KeySource]:
    """Return the keys of a model that runs in float32 without attention."""
    device = next(
        (value.device.type for value in inputs.values() if isinstance(value, Tensor)), "cpu"
    )
    grad = torch.is_grad_enabled()

    sources = KeySources(model, skip=skip, full_precision=True, last=last)
    with (
        frozen(model),
        torch.set_grad_enabled(grad),
        torch.autocast(device, enabled=False),
        sources.collecting(),
    ):
        model(**inputs)
    return sources.sources


def _text_layers(model: nn.Module, text: GeneratedText) -> frozenset[int]:
    """Return the weights of linear layers that run without a photo, but those of the keys.

    They are found once per model, unless it changes its attention: eager attention shows keys only
    in scores, which need queries too.
    """
    kernels = tuple(
        getattr(getattr(module, "config", None), "_attn_implementation", None)
        for module in model.modules()
    )
    known = _TEXT_LAYERS.setdefault(model, {})
    if kernels not in known:
        traced = _trace_text_layers(model, text)
        names = [name for name, weight in model.named_parameters() if id(weight) in traced]
        known[kernels] = frozenset(names)
    return frozenset(
        id(weight) for name, weight in model.named_parameters() if name in known[kernels]
    )


def _trace_text_layers(model: nn.Module, text: GeneratedText) -> frozenset[int]:
    ids = text.sequence[-1:].repeat(2)[None].to(next(model.parameters()).device)
    sources = KeySources(model, full_precision=True, trace=True)
    try:
        with frozen(model), sources.collecting():
            model(input_ids=ids, use_cache=False)  # pyright: ignore[reportCallIssue]
    except Exception:  # noqa: BLE001 (the model does not run without a photo)
        return frozenset()
    return sources.without_keys()


def _locate(
    model: nn.Module,
    inputs: dict[str, Any],
    text: GeneratedText,
    places: PixelPlaces,
    photo: LoadedImage,
) -> ImageTokens:
    """Return the image tokens of the text decoder, or of the resampler before it."""
    config: Any = model.config
    probe = _probe(model, inputs, text)
    tokens = _placed(probe, probe.text_sites, places, photo)
    if tokens is not None:
        return replace(tokens, text_sites=probe.text_sites)
    module = RESAMPLERS.get(str(config.model_type))
    columns = _image_columns(model, probe.inputs[1])
    if module is None or columns is None:
        raise ValueError(_no_image_tokens(model, probe))
    between = tuple(
        site
        for site, source in probe.sources.items()
        if module in site and source.num_queries * source.num_groups == len(columns)
    )
    tokens = _placed(probe, between, places, photo)
    if tokens is None:
        raise ValueError(_no_image_tokens(model, probe))
    length = probe.inputs[1]["input_ids"].shape[1]
    sites = tuple(s for s in probe.text_sites if probe.sources[s].num_keys == length)
    note = (
        f"words read {len(columns)} learned queries; each is replaced by its attention to image "
        f"tokens, mean over the layers and heads of {module}: an approximation"
    )
    return replace(tokens, sites=sites, text_sites=probe.text_sites, columns=columns,
                   resampler_sites=tokens.sites, notes=(*tokens.notes, note))  # fmt: skip


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
    probe: _Probe, candidates: Sequence[str], places: PixelPlaces, photo: LoadedImage
) -> ImageTokens | None:
    """Return the image tokens among the keys of some layers; None if there are none."""
    geometry = Geometry.identity(photo.size)
    for first in candidates:
        keys = probe.sources[first].keys
        if not keys.requires_grad:
            continue
        owners, shared = token_owners(keys, probe.pixels)
        if not bool((owners != NO_TOKEN).any()):
            continue
        if float(shared) <= _MAX_SHARED:
            moments = owned_pixel_moments(owners, places.points, places.shown)
            placement = place_tokens(moments, geometry)
            notes = ()
            # Bin 0 counts elements without a token of their own, bin i + 1 those of token i.
            counts = torch.bincount(owners.clamp(min=NO_TOKEN) - NO_TOKEN)
            expected = counts[1:].nonzero()[:, 0].cpu()
        elif len(keys) > _MAX_BACKWARD_PASSES:
            raise ValueError(
                f"image tokens of {type(probe.model).__name__} share pixels, and {len(keys)} of "
                f"them are more than the {_MAX_BACKWARD_PASSES} that can be placed one by one"
            )
        else:
            moments = shared_pixel_moments(keys, probe.pixels, places.points, places.shown)
            placement = place_tokens(moments, geometry, shared=True)
            expected = None
            notes = (
                "image tokens share pixels: each is drawn on the mean and spread of its gradient",
            )
        return _proved(probe, candidates, expected, ImageTokens(
            (), (), placement.columns, placement, (), notes))  # fmt: skip
    return None


def _proved(
    probe: _Probe,
    candidates: Sequence[str],
    expected: Int[Tensor, " c"] | None,
    tokens: ImageTokens,
) -> ImageTokens:
    """Return the image tokens with the layers whose keys change with the pixels.

    Photo and noise differ in all pixels, and the texts in the last word: exactly the keys of image
    tokens must change, in every layer in which any key does: those that depend on pixels in the
    first layer (`expected`), visible ones or not, or for None those that change there.
    """
    # Where the pixels depend on the run, exactly the keys of image tokens (i) may change:
    #
    #     photo, one word      p i i i p w
    #     noise, two words     p i i i p w w
    #     changed                x x x
    sites: list[str] = []
    moving: set[bool] = set()
    for site in candidates:
        if site not in probe.others:
            continue
        source = probe.sources[site]
        other = probe.others[site]
        if source.masked is None:
            moves, changed = _moves(source, other, tokens.columns)
            masked = torch.zeros_like(changed)
        else:
            moves, changed = _moves_of_scores(probe, site)
            masked = source.masked.cpu()
        if not bool(changed.any()) and not bool(masked.any()):
            continue
        indices = changed.nonzero()[:, 0]
        expected = indices if expected is None else expected
        fitting = expected[expected < len(changed)]
        if len(fitting) < len(expected) or indices.tolist() != fitting[~masked[fitting]].tolist():
            raise ValueError(
                f"the image tokens that {site} in {type(probe.model).__name__} reads are not those "
                f"that its first layer reads ({len(indices)} keys change with their pixels, "
                f"{len(expected)} should); such models are not supported"
            )
        sites.append(site)
        moving.add(moves)
    if expected is None or len(moving) != 1:
        raise ValueError(_no_image_tokens(probe.model, probe))
    first = probe.sources[sites[0]]
    rows = _state_rows(first, probe.others[sites[0]], expected, tokens.columns)
    return replace(tokens, sites=tuple(sites), states=rows, moves=moving.pop())


def _moves(
    source: KeySource, other: KeySource, columns: Int[Tensor, " i"]
) -> tuple[bool, Bool[Tensor, " m"]]:
    """Return whether keys of image tokens stand behind those of the words, and which changed.

    With one word more, the keys behind the words move by one. Of the two ways to compare the keys
    of both texts, the right one shows fewer changes, as keys of the prompt stay.
    """
    # Where image tokens (i) and other tokens of an encoder stand behind the words (w), one word
    # more moves them:
    #
    #     other     w b i i i t       compared place by place: 5 of the first 6 keys change
    #     source    w w b i i i t     compared without the new word: 3 keys change
    ahead = len(source.keys) - len(other.keys)
    count = len(other.keys)
    stay, move = torch.zeros(2, len(source.keys), dtype=torch.bool)
    stay[:count] = _changed(source.keys[:count], other.keys)
    if ahead == 0 or source.num_keys == source.num_queries:
        return False, stay
    words = source.num_queries - ahead  # they stand first, and the other keys behind them
    aligned = torch.cat([source.keys[:words], source.keys[source.num_queries :]])
    both = _changed(aligned, other.keys)
    move[:words] = both[:words]
    move[source.num_queries :] = both[words:]
    # Where image tokens alone stand behind the words both ways show as many changes. Then that one
    # is right in which all placed tokens have changed.
    placed = columns[columns < len(source.keys)].cpu()
    counted = [(int(way.sum()), not bool(way[placed].all())) for way in (move, stay)]
    moves = counted[0] < counted[1]
    return moves, move if moves else stay


def _moves_of_scores(probe: _Probe, site: str) -> tuple[bool, Bool[Tensor, " m"]]:
    """Return the same of keys that only scores show: these are of the last word, which differs.

    Texts of the same words are compared instead, on other noise.
    """
    shorter, longer = (sources[site] for sources in probe.noisy)
    source = probe.sources[site]
    other = probe.others[site]
    changed = _changed(source.keys, longer.keys)
    if source.num_keys in (source.num_queries, other.num_keys):
        return False, changed
    before = _changed(other.keys, shorter.keys).nonzero()[:, 0].tolist()
    return before != changed.nonzero()[:, 0].tolist(), changed


def _changed(before: Float[Tensor, "m d"], after: Float[Tensor, "m d"]) -> Bool[Tensor, " m"]:
    """Return the rows that changed by more than rounding."""
    before = before.detach().float()
    change = (after.float() - before).abs().amax(1).cpu()
    rounding = _ROUNDING * before.abs().amax(1).cpu()
    # The median of clear changes is the size of a change; rounding is far below, and one key that
    # changes much more than the others does not hide them. Where all change by rounding alone,
    # nothing does.
    clear = change[change > _CHANGED * change.max()]
    if not (change > rounding).any():
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
    count = min(len(before.states), len(after.states))  # the words stand last
    changed = _changed(before.states[:count], after.states[:count]).nonzero()[:, 0]
    if len(changed) != len(expected):
        return None
    offsets = (expected - changed).unique()
    return columns.cpu() - offsets if len(offsets) == 1 else None


def _image_columns(model: nn.Module, inputs: dict[str, Any]) -> Int[Tensor, " i"] | None:
    """Return the positions of image tokens in the prompt, as the model marks them."""
    mask = inputs.get("image_embeds_position_mask")
    if mask is None:
        older = getattr(model.config, "image_token_index", None)
        token = getattr(model.config, "image_token_id", older)
        if token is None or "input_ids" not in inputs:
            return None
        mask = (inputs["input_ids"] == token).long()
    return (mask[0] == 1).nonzero()[:, 0].cpu()
