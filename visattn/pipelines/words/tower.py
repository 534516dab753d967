"""Methods for words that reach below the language model: to the vision tower and to the pixels."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.attribution.cam import grad_cam
from visattn.geometry.affine import Geometry
from visattn.pipelines.words.image_tokens import noise_pixels
from visattn.pipelines.words.pixel_places import find_pixel_places
from visattn.pipelines.words.placement import (
    NO_TOKEN,
    Placement,
    owned_pixel_moments,
    place_tokens,
    token_owners,
)
from visattn.pipelines.words.recorded_pass import forward_logits, token_log_probs
from visattn.pipelines.words.replay import WordReplay
from visattn.recording.frozen import frozen
from visattn.recording.key_sources import KeySources
from visattn.recording.word_rows import ReusedOutputs

TOWER_METHODS = ("tower_gradcam", "input_gradient", "smoothgrad")
"""Methods whose maps lie on the grid of the vision tower."""

_MAX_SHARED = 0.01  # of the pixels that tokens own
_NOISES = 3
_SAMPLES = 25  # of SmoothGrad, as for classifiers
_SPREAD = 0.15  # of its noise, as a share of the range of the pixels
_CACHE_SIZE = 16  # sizes of photos
_CACHE: "WeakKeyDictionary[nn.Module, dict[Any, tuple[Placement, Tensor]]]" = WeakKeyDictionary()


def tower_maps(
    replay: WordReplay,
    methods: Sequence[str],
    *,
    num_samples: int = _SAMPLES,
) -> tuple[dict[str, Float[Tensor, "w gy gx"]], Geometry]:
    """Return a map per word on the grid of the vision tower, and the geometry of this grid.

    The score of a word is its log-probability. `tower_gradcam` is Grad-CAM on the output of the
    last layer of the tower that the words depend on; `input_gradient` is the sum of the absolute
    gradient over the pixels of each patch; `smoothgrad` the same of the mean gradient over
    `num_samples` noisy photos.

    Raises:
        ValueError: If the model has no vision tower of attention layers, its words do not depend on
            any of them, or its patches share pixels.

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391; Simonyan et al. 2013, arXiv:1312.6034, section 3.1,
        summed over a patch; Smilkov et al. 2017, arXiv:1706.03825.
    """
    if not replay.words:
        raise ValueError("maps of words need at least one word, but the caption has none")
    blocks = _tower_blocks(replay)
    log_probs, outputs, pixels = _run(replay, blocks)
    block = _last_used(replay, log_probs, outputs)
    placement, owners = tower_placement(replay, block)
    nodes = [pixels, *outputs[block]]
    columns = placement.columns.to(outputs[block][0].device)
    features = _rows(outputs[block]).detach()[columns]
    rows: dict[str, list[Tensor]] = {"tower_gradcam": [], "input_gradient": []}
    for start, stop in replay.spans:
        score = log_probs[start:stop].sum()
        # One backward pass per word gives the gradients of the pixels and of the layer.
        first, *rest = torch.autograd.grad(score, nodes, retain_graph=True)
        gradient = _rows(rest)[columns]
        # Grad-CAM takes feature maps. Its weights are means over all cells, wherever these lie, so
        # that the tokens may be one row of a map.
        pair = (tokens.float().T[None, :, None] for tokens in (features, gradient))
        rows["tower_gradcam"].append(grad_cam(*pair)[0, 0].cpu())
        rows["input_gradient"].append(_patch_sums(first, owners, placement))
    if "smoothgrad" in methods:
        rows["smoothgrad"] = [
            _patch_sums(gradient, owners, placement)
            for gradient in _smooth_gradients(replay, num_samples)
        ]
    maps = {name: placement.rasterize(torch.stack(rows[name])) for name in methods}
    return maps, placement.geometry


def _tower_blocks(replay: WordReplay) -> tuple[str, ...]:
    """Return the layers of the vision tower, in the order in which they run.

    A layer is the last numbered module around an attention layer.
    """
    towers = tuple(f"{name}." for name in ReusedOutputs(replay.model).towers)
    sources = KeySources(replay.model, zero_attention=False)
    with frozen(replay.model), torch.no_grad(), sources.collecting():
        forward_logits(replay.model, replay.inputs, 1)
    sites = (
        site.partition("#")[0]
        for site in sources.sources
        if site.startswith(towers) and site not in replay.text_sites
    )
    # vision.stages.1.blocks.3.attn.proj is in the layer vision.stages.1.blocks.3, not in stages.1.
    matches = (re.match(r"(.*\.\d+)(?:\.|$)", site) for site in sites)
    blocks = tuple(dict.fromkeys(match[1] for match in matches if match is not None))
    if not blocks:
        raise ValueError(
            f"{type(replay.model).__name__} has no vision tower of attention layers: use the "
            "methods attention, gradcam or occlusion"
        )
    return blocks


@contextmanager
def _block_outputs(model: nn.Module, blocks: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Collect the outputs of modules, one per call."""
    outputs: dict[str, list[Tensor]] = {block: [] for block in blocks}

    def keep(block: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            first = output[0] if isinstance(output, (tuple, list)) else output
            if isinstance(first, Tensor) and first.is_floating_point():
                outputs[block].append(first)

        return hook

    handles = [model.get_submodule(block).register_forward_hook(keep(block)) for block in blocks]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _rows(outputs: Sequence[Tensor]) -> Float[Tensor, "n d"]:
    """Return one row per token of all calls."""
    return torch.cat([tokens.flatten(0, -2) for tokens in outputs])


def _run(
    replay: WordReplay, blocks: Sequence[str], pixels: Tensor | None = None
) -> tuple[Float[Tensor, " t"], dict[str, list[Tensor]], Tensor]:
    """Run the model over the caption; return log-probabilities and, in their graph, the layers."""
    original = replay.inputs[replay.pixel_name] if pixels is None else pixels
    with frozen(replay.model), torch.enable_grad(), _block_outputs(replay.model, blocks) as outputs:
        used = original.detach().clone().requires_grad_()
        inputs = {**replay.inputs, replay.pixel_name: used}
        logits = forward_logits(replay.model, inputs, len(replay.token_ids))[0]
        log_probs = token_log_probs(logits, replay.token_ids)
    return log_probs, outputs, used


def _last_used(
    replay: WordReplay,
    log_probs: Float[Tensor, " t"],
    outputs: dict[str, list[Tensor]],
) -> str:
    """Return the last layer of placed tokens that the words depend on.

    Towers run layers that nothing reads: LLaVA takes the states before the last one.
    """
    tensors = [(block, tokens) for block, calls in outputs.items() for tokens in calls]
    gradients = torch.autograd.grad(
        log_probs.sum(), [tokens for _, tokens in tensors], retain_graph=True, allow_unused=True
    )
    used = {
        block
        for (block, _), gradient in zip(tensors, gradients, strict=True)
        if gradient is not None and bool(gradient.any())
    }
    if not used:
        raise ValueError(
            f"the words of {type(replay.model).__name__} depend on no layer of its vision tower: "
            "use another method"
        )
    reason = ""
    for block in reversed([name for name in outputs if name in used]):
        try:
            tower_placement(replay, block)
        except ValueError as error:  # learned queries behind the tower, for example
            reason = reason or str(error)
        else:
            return block
    raise ValueError(reason)


def tower_placement(replay: WordReplay, block: str) -> tuple[Placement, Int[Tensor, " e"]]:
    """Return the places of the tokens that a layer returns, and the token of each pixel element.

    Without attention each of them depends on the pixels of its own patch only. The result is
    cached for photos of one size.

    Raises:
        ValueError: If its tokens have no pixels of their own.
    """
    photo = replay.image
    shape = replay.inputs[replay.pixel_name].shape
    fingerprint = replay.process.fingerprint()
    key = (photo.size, photo.orientation, tuple(shape), fingerprint, block)
    cache = _CACHE.setdefault(replay.model, {})
    if key not in cache:
        processes = replay.process.pixels(replay.pixel_name)
        places = find_pixel_places(*processes, [photo.size], shape)
        owners, shared = _owners(replay, block)
        if float(shared) > _MAX_SHARED or not bool((owners != NO_TOKEN).any()):
            raise ValueError(
                f"the tokens of {block} in {type(replay.model).__name__} have no pixels of their "
                "own, so that they have no place on the photo; use the methods attention, gradcam "
                "or occlusion"
            )
        moments = owned_pixel_moments(owners, places.points, places.shown)
        placement = place_tokens(moments, Geometry.identity(photo.size, photo.orientation))
        if len(cache) >= _CACHE_SIZE:
            cache.clear()
        cache[key] = placement, owners.to(torch.int32).cpu()
    return cache[key]


def _owners(replay: WordReplay, block: str) -> tuple[Int[Tensor, " e"], Float[Tensor, ""]]:
    """Return the token that owns each pixel element, and the share of those with several.

    Where a gradient happens to vanish, that of another noise tells the token.
    """
    owners = torch.empty(0)
    share = torch.zeros(())
    for seed in range(_NOISES):
        rows, noise = _rows_without_attention(replay, block, seed)
        if not rows.requires_grad:  # learned queries, which read pixels by attention
            return torch.full((noise.numel(),), NO_TOKEN), share
        latest, shared = token_owners(rows, noise)
        share = torch.maximum(share, shared)
        owners = torch.where(owners == NO_TOKEN, latest, owners) if len(owners) else latest
    return owners, share


def _rows_without_attention(
    replay: WordReplay, block: str, seed: int
) -> tuple[Float[Tensor, "n d"], Tensor]:
    """Return the tokens of a layer, computed in float32 from noise and without attention."""
    original = replay.inputs[replay.pixel_name]
    noise = noise_pixels(replay.inputs, seed).to(original.dtype).requires_grad_()
    sources = KeySources(replay.model, full_precision=True,
                         last=lambda site, _: site in replay.text_sites)  # fmt: skip
    with (
        frozen(replay.model),
        torch.enable_grad(),
        torch.autocast(original.device.type, enabled=False),
        _block_outputs(replay.model, [block]) as outputs,
        sources.collecting(),
    ):
        replay.model(**{**replay.inputs, replay.pixel_name: noise})
    return _rows(outputs[block]), noise


def _patch_sums(
    gradient: Tensor, owners: Int[Tensor, " e"], placement: Placement
) -> Float[Tensor, " i"]:
    """Return the absolute gradient of each patch, summed over its pixels."""
    owned = owners >= 0
    values = gradient.float().flatten().cpu()[owned].abs().double()
    sums = torch.bincount(owners[owned].long(), weights=values, minlength=int(owners.max()) + 1)
    return sums[placement.columns].float()


def _smooth_gradients(replay: WordReplay, num_samples: int) -> list[Float[Tensor, " e"]]:
    """Return the mean gradient of each word over noisy photos."""
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    original = replay.inputs[replay.pixel_name]
    values = original[..., 2:] if replay.pixel_name == "flattened_patches" else original
    spread = _SPREAD * float(values.max() - values.min())
    random = torch.Generator().manual_seed(0)
    totals = [torch.zeros(original.numel()) for _ in replay.spans]
    for _ in range(num_samples):
        noisy = original + spread * torch.randn(original.shape, generator=random).to(original)
        if replay.pixel_name == "flattened_patches":
            noisy[..., :2] = original[..., :2]
        log_probs, _, pixels = _run(replay, (), noisy)
        for total, (start, stop) in zip(totals, replay.spans, strict=True):
            score = log_probs[start:stop].sum()
            [gradient] = torch.autograd.grad(score, [pixels], retain_graph=True)
            total += gradient.float().flatten().cpu() / num_samples
    return totals
