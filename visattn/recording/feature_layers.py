"""Feature layers: any module of a model, with layout and grid of its output on the image."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.geometry.affine import Geometry
from visattn.io.messages import did_you_mean
from visattn.recording.frozen import (
    first_weight,
    internal_geometry,
    internal_transform,
    unrounded,
    without_grad,
)
from visattn.recording.interception import in_this_run
from visattn.recording.model_info import ExplainedModel, FeatureLayer, FeatureLayout, ModelInfo
from visattn.recording.probe_cache import cell_margin, kept
from visattn.recording.token_grid import Grid, covers, fits

Layer = int | str | nn.Module

# Centers of changed blocks (y, x) as shares of the image. The set has no symmetry: flips,
# transposition and shifts all change it.
_BLOCK_CENTERS = (
    (0.19, 0.24), (0.22, 0.77), (0.80, 0.16), (0.77, 0.81),
    (0.48, 0.36), (0.33, 0.58), (0.64, 0.51), (0.53, 0.86),
)  # fmt: skip
_BLOCKS_PER_SIDE = 7
_TOLERANCE = 0.1  # share of the image: half a block, and the spread by a layer
_MIN_LOCALIZED = 6  # blocks that must be localized; all of them on a coarse grid
_COARSE = 4  # cells along a side below which chance hits are likely
_MAX_PREFIX_TOKENS = 128


@unrounded()
def resolve_feature_layer(explained: ExplainedModel, layer: Layer) -> FeatureLayer:
    """Return the feature layer that a number, a module or a module name selects.

    If the module is not among the model's feature layers, its layout is measured: blocks of an
    image are changed, and the output must change at the same positions.

    Args:
        layer: Index into `info.feature_layers` (-1 is the last), a module, or its qualified name.
            For a module that is called several times the last call counts, or the one that the
            name selects: `layer4.2.relu#2` is the second call of `layer4.2.relu`.

    Raises:
        ValueError: If there is no such module or call, or its output does not lie on the image.

    Example:
        >>> from visattn.attribution.explained_model import analyze_model
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 2, 2), nn.ReLU(), nn.Flatten(),
        ...                       nn.Linear(8 * 12 * 20, 2))
        >>> layer = resolve_feature_layer(analyze_model(model, (24, 40)), model[1])
        >>> layer.site, layer.layout, layer.grid
        ('1', 'b c y x', (12, 20))
    """
    known = explained.info.feature_layers
    if isinstance(layer, int):
        if -len(known) <= layer < len(known):
            return _placed(explained, known[layer])
        raise ValueError(_unknown_layer_error(explained, layer))
    name = find_module_name(explained.model, layer) if isinstance(layer, nn.Module) else layer
    site, separator, call = name.partition("#")
    modules = dict(explained.model.named_modules())
    if site not in modules or (separator and not call.isdecimal()):
        raise ValueError(_unknown_layer_error(explained, name))
    number = int(call) if separator else None
    key = ("layer", id(modules[site]), name, explained.info)
    found = kept(explained.model, key, lambda: measure_feature_layer(explained, site, number))
    return _placed(explained, found)


def _placed(explained: ExplainedModel, layer: FeatureLayer) -> FeatureLayer:
    """Return a layer with the margin of its cells; features of detectors lie on their canvas."""
    if resizes_images(explained.model):
        return layer
    info = explained.info
    size, channels = info.input_size, len(info.mean)
    margin = cell_margin(explained.model, size, channels, layer.grid, explained.forward)
    return replace(layer, margin=margin)


def find_module_name(model: nn.Module, module: nn.Module) -> str:
    """Return the qualified name of a module in a model.

    Raises:
        ValueError: If the module is not part of the model.

    Example:
        >>> model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
        >>> find_module_name(model, model[1])
        '1'
    """
    name = next((name for name, child in model.named_modules() if child is module), None)
    if name is None:
        raise ValueError(
            f"layer must be a module of the {type(model).__name__}, got a {type(module).__name__} "
            "that is not part of it"
        )
    return name


def resizes_images(model: nn.Module) -> bool:
    """Whether a model resizes and pads images internally, as torchvision's detectors do."""
    return internal_transform(model) is not None


def _unknown_layer_error(explained: ExplainedModel, layer: int | str) -> str:
    sites = [layer.site for layer in explained.info.feature_layers]
    if isinstance(layer, int):
        return (
            f"layer must be below the number of feature layers of {explained.info.name}, "
            f"{len(sites)} ({', '.join(sites) or 'none'}); got {layer}"
        )
    names = [name for name, _ in explained.model.named_modules() if name]
    return (
        f"layer must name a module of {explained.info.name}, got {layer!r}; "
        f"{did_you_mean(layer.partition('#')[0], names, cutoff=0.5)}"
    )


def first_tensor(output: Any) -> tuple[Any, Tensor] | None:
    """Return the first tensor in the output of a module, and its key.

    The key is None if the output itself is a tensor.
    """
    if isinstance(output, Tensor):
        return None, output
    if isinstance(output, Mapping):
        parts: Iterator[tuple[Any, Any]] = iter(cast("Mapping[Any, Any]", output).items())
    elif isinstance(output, (list, tuple)):
        parts = enumerate(cast("list[Any]", output))
    else:
        return None
    return next(((key, value) for key, value in parts if isinstance(value, Tensor)), None)


@dataclass(frozen=True)
class _Layout:
    """A way to read a tensor as features on a grid."""

    axes: FeatureLayout
    grid: Grid
    num_prefix_tokens: int = 0
    num_suffix_tokens: int = 0

    def to_layer(self, site: str, call: int | None) -> FeatureLayer:
        return FeatureLayer(
            site, self.axes, self.grid, self.num_prefix_tokens, self.num_suffix_tokens, call
        )


def measure_feature_layer(explained: ExplainedModel, site: str, call: int | None) -> FeatureLayer:
    """Return layout and grid of the output of a module, measured by perturbing blocks of the image.

    Calls are numbered from 1; by default the last one counts.

    Raises:
        ValueError: If the output does not lie on the image, or there is no such call.

    Example:
        >>> info = ModelInfo("net", "other", (40, 60), (0.5,), (0.5,), "none")
        >>> model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(2))
        >>> measure_feature_layer(ExplainedModel(model, info, model), "1", None).layout
        'b c n'
    """
    outputs, levels = _block_outputs(explained, site)
    canvas = internal_geometry(explained.model, explained.info.input_size)
    title = f"{site}{f'#{call}' if call else ''} of {explained.info.name}"
    hint = _layer_hint(explained.info)
    if not outputs:
        raise ValueError(f"{title} must run and return a tensor, but it does not; {hint}")
    if call is not None and not 1 <= call <= len(outputs):
        raise ValueError(
            f"the number after # must be a call of the module, {site}#1 to {site}#{len(outputs)}; "
            f"got {site}#{call} of {explained.info.name}"
        )
    output = outputs[(call or 0) - 1]
    shape = "x".join(map(str, output.shape[1:]))
    if output.shape[0] != len(_BLOCK_CENTERS) + 1 or output.ndim not in (3, 4):
        raise ValueError(
            f"{title} must return features on a grid for each image, got shape "
            f"{list(output.shape)} for {len(_BLOCK_CENTERS) + 1} images; {hint}"
        )
    localized = [
        (error, layout)
        for layout in _candidate_layouts(output, explained.info, canvas.input_size)
        if (error := _localization_error(output, layout, _extent(canvas))) is not None
    ]
    if not localized:
        raise ValueError(
            f"the features of {title} ({shape}) must respond to changed image blocks at the "
            f"position of the block, but they do not, so its map would be wrong; {hint}"
        )
    number = call or (len(outputs) if len(outputs) > 1 else None)
    layer = min(localized, key=lambda pair: pair[0])[1].to_layer(site, number)
    return replace(layer, levels=levels, call=None) if levels else layer


class _PyramidComputed(Exception):  # noqa: N818 (no error: it ends a forward pass)
    """The feature pyramid is known, and the rest of a detector need not run."""


def _block_outputs(
    explained: ExplainedModel, site: str
) -> tuple[list[Tensor], tuple[str | int, ...]]:
    """Return the output of each call of a module for an image and copies with changed blocks.

    For a feature pyramid of a detector it is the finest level; its keys follow.
    """
    outputs: list[list[Tensor]] = []
    levels: tuple[str | int, ...] = ()
    resizes = resizes_images(explained.model)

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        nonlocal levels
        if (first := first_tensor(output)) is not None:
            outputs[-1].append(first[1].detach().float().cpu().clone())
        if resizes and isinstance(output, Mapping):
            parts = cast("Mapping[str | int, Tensor]", output)
            levels = tuple(key for key, level in parts.items() if level.ndim == 4)
            raise _PyramidComputed

    images = _block_images(explained)
    with without_grad(explained.model):
        handle = explained.model.get_submodule(site).register_forward_hook(in_this_run(hook))
        try:
            for batch in images.split(1 if resizes else len(images)):
                outputs.append([])
                with suppress(_PyramidComputed):
                    explained.forward(batch)
        finally:
            handle.remove()
    count = min(map(len, outputs))
    return [torch.cat([calls[index] for calls in outputs]) for index in range(count)], levels


def _extent(canvas: Geometry) -> tuple[float, float]:
    """Return the share of the canvas of a model that the image takes, from the top left."""
    corner = torch.tensor([canvas.image_size[::-1]], dtype=torch.float64)
    [[right, bottom]] = canvas.to_input(corner).tolist()
    return bottom / canvas.input_size[0], right / canvas.input_size[1]


def _block_images(explained: ExplainedModel) -> Float[Tensor, "m c y x"]:
    """Return a noise image, and copies of it with one changed block each."""
    size = explained.info.input_size
    random = torch.Generator().manual_seed(0)
    base, change = torch.randn(2, len(explained.info.mean), *size, generator=random)
    images = [0.5 * base]
    for center in _BLOCK_CENTERS:
        top, left, bottom, right = _block_box(center, size)
        images.append(images[0].clone())
        images[-1][:, top:bottom, left:right] = 1 + change[:, top:bottom, left:right]
    return torch.stack(images).to(first_weight(explained.model))


def _block_box(center: tuple[float, float], size: tuple[int, int]) -> tuple[int, int, int, int]:
    sides = [max(1, round(length / _BLOCKS_PER_SIDE)) for length in size]
    top, left = (
        round(share * length - side / 2)
        for share, length, side in zip(center, size, sides, strict=True)
    )
    return top, left, top + sides[0], left + sides[1]


def _candidate_layouts(output: Tensor, info: ModelInfo, size: tuple[int, int]) -> Iterator[_Layout]:
    """Yield the ways to read an output as features on a grid."""
    shape = output.shape
    if output.ndim == 4:
        for axes, sides in (("b c y x", shape[2:]), ("b y x c", shape[1:3])):
            grid = (sides[0], sides[1])
            square = min(grid) >= 1 and max(grid) > 1 and fits(grid, size)
            if square or covers(grid, size):
                yield _Layout(cast("FeatureLayout", axes), grid)
        return
    known = {layer.grid for layer in info.feature_layers}
    for layer in info.attention_layers:
        known |= {grid for grid in (layer.grid, layer.key_grid) if grid is not None}
    for axes, count in (("b n c", shape[1]), ("b c n", shape[2])):
        grids = known | {(n, count // n) for n in range(1, count + 1) if not count % n}
        for grid in grids:
            extra = count - grid[0] * grid[1]
            if not 0 <= extra <= _MAX_PREFIX_TOKENS or max(grid) < 2:
                continue
            if not fits(grid, size) and grid not in known:
                continue
            yield _Layout(cast("FeatureLayout", axes), grid, extra)
            if extra:
                yield _Layout(cast("FeatureLayout", axes), grid, 0, extra)


def _localization_error(
    output: Tensor, layout: _Layout, extent: tuple[float, float]
) -> float | None:
    """Return the mean distance between blocks and responses, as a share of the image.

    Returns None if too few blocks are localized.
    """
    grid = layout.grid
    features = to_grid(output, layout.to_layer("", None))
    changes = (features[1:] - features[:1]).square().sum(1).sqrt()
    if not bool(changes.isfinite().all()):
        return None
    peaks = changes.flatten(1).amax(1).view(-1, 1, 1)
    strong = (changes - peaks / 2).clamp(min=0)
    total = strong.sum((1, 2)).clamp(min=torch.finfo(strong.dtype).tiny)
    centers = [(torch.arange(count) + 0.5) / count for count in grid]
    rows = (strong.sum(2) * centers[0]).sum(1) / total
    columns = (strong.sum(1) * centers[1]).sum(1) / total
    expected = torch.tensor(_BLOCK_CENTERS) * torch.tensor(extent)
    errors = (torch.stack((rows, columns), 1) - expected).abs()
    tolerance = torch.tensor([0.5 / count + _TOLERANCE for count in grid])
    localized = ((errors <= tolerance).all(1) & (peaks.flatten() > 0)).sum()
    required = len(_BLOCK_CENTERS) if min(grid) < _COARSE else _MIN_LOCALIZED
    return float(errors.mean()) if int(localized) >= required else None


def to_grid(features: Tensor, layer: FeatureLayer) -> Float[Tensor, "b d gy gx"]:
    """Return features of any layout as `[b d gy gx]`.

    Raises:
        ValueError: If the features do not have this layout.

    Example:
        >>> to_grid(torch.zeros(7, 2 + 15, 4), FeatureLayer("norm", "b n c", (3, 5), 2)).shape
        torch.Size([7, 4, 3, 5])
    """
    axes = layer.layout.split()
    count = layer.grid[0] * layer.grid[1]
    if not has_layout(features, layer):
        raise ValueError(
            f"{layer.site} must return [{layer.layout}] with a grid of {layer.grid[0]} x "
            f"{layer.grid[1]} after {layer.num_prefix_tokens} prefix tokens, got shape "
            f"{list(features.shape)}"
        )
    if "n" in axes:
        tokens = features.mT if layer.layout == "b n c" else features
        start = layer.num_prefix_tokens
        return tokens[:, :, start : start + count].unflatten(-1, layer.grid)
    return features.movedim(-1, 1) if layer.layout == "b y x c" else features


def has_layout(features: Tensor, layer: FeatureLayer) -> bool:
    """Whether features have the layout and the grid of a layer."""
    axes = layer.layout.split()
    if features.ndim != len(axes):
        return False
    if "n" in axes:
        count = layer.num_prefix_tokens + layer.grid[0] * layer.grid[1] + layer.num_suffix_tokens
        return features.shape[axes.index("n")] == count
    axis = axes.index("y")
    return tuple(features.shape[axis : axis + 2]) == layer.grid


def _layer_hint(info: ModelInfo) -> str:
    sites = ", ".join(layer.site for layer in info.feature_layers[-3:])
    return f"suitable layers include {sites}" if sites else "no suitable layer is known"
