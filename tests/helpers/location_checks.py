"""Check that perturbed blocks of pixels change features and attention at their locations."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import one_hot

from visattn.recording.attention_call import AttentionCall
from visattn.recording.interception import attention_calls, probing
from visattn.recording.model_info import ModelInfo
from visattn.recording.probe import ObservedTokens
from visattn.recording.subject import Subject, analyze_model


class LocationCheck(NamedTuple):
    """Numbers of perturbed blocks of pixels that were localized, and of all blocks."""

    name: str
    layer: str  # the default of class activation maps, or the reason for none
    features: tuple[int, int]  # in those of that layer
    attention: tuple[int, int]  # in the keys of the first and last layer


def check_locations(
    name: str, model: nn.Module, size: tuple[int, int] | None = None
) -> LocationCheck:
    """Perturb single blocks of pixels and localize the changes.

    Attention is replaced by the identity for features, so that random weights do not spread a
    change.

    `size` is the height and width of its images, None for its default.
    """
    subject = analyze_model(model.double(), size)  # changes may be small with random weights
    info = subject.info
    attention = (0, 0)
    if info.attention_layers:
        ends = dict.fromkeys((info.attention_layers[0].site, info.attention_layers[-1].site))
        attention = _sum_counts(_localize_in_keys(subject, site) for site in ends)
    if not info.feature_layers:
        return LocationCheck(name, info.features_error, (0, 0), attention)
    site = info.feature_layers[-1]
    blocks = _block_cells(site.grid)
    images = _perturbed_images(info, site.grid, blocks)
    features = site.to_grid(_output_of(subject, site.site, images))
    change = (features[1:] - features[:1]).square().sum(1)
    layer = f"{site.site}, {site.grid[0]} x {site.grid[1]}"
    return LocationCheck(name, layer, _count_localized(change, blocks), attention)


def identity_attention(subject: Subject, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Run a model whose tokens keep their content, and return the values of its attention."""
    values: dict[str, torch.Tensor] = {}

    def keep(call: AttentionCall) -> torch.Tensor | None:
        if call.unsupported:
            return None
        call.heads_mixed = False
        values.setdefault(call.site, call.inputs[2])
        queries, keys = call.shape[2:]
        if queries == keys:
            return torch.eye(keys).to(images)
        layout = subject.probe.layouts[call.site][0]
        if not isinstance(layout, ObservedTokens) or layout.layer.key_grid is None:
            return None
        rows, columns = _centers(layout.layer.grid), _centers(layout.layer.key_grid)
        return one_hot(torch.cdist(rows, columns).argmin(1), keys).to(images)

    with torch.no_grad(), probing(), attention_calls(subject.model, keep):
        subject.scores(images)
    return values


def _centers(grid: tuple[int, int]) -> torch.Tensor:
    rows, columns = ((torch.arange(side) + 0.5) / side for side in grid)
    return torch.cartesian_prod(rows, columns)


def _localize_in_keys(subject: Subject, site: str) -> tuple[int, int]:
    layer = next(layer for layer in subject.info.attention_layers if layer.site == site)
    grid = layer.key_grid or layer.grid
    blocks = _block_cells(grid)[:3]
    images = _perturbed_images(subject.info, grid, blocks)
    values = identity_attention(subject, images)[site].transpose(-2, -1).flatten(1, 2)
    layout = subject.probe.layouts[site][0]
    assert isinstance(layout, ObservedTokens)
    if layout.windows is not None:  # from all groups of tokens of an image
        values = values.unflatten(0, (len(images), -1)).transpose(1, 2).flatten(2)
        values = values[..., layout.windows.flatten().argsort()]
    values = values[..., -grid[0] * grid[1] :].unflatten(-1, grid)
    return _count_localized((values[1:] - values[:1]).square().sum(1), blocks)


def _block_cells(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Return cells of a grid without mirror symmetry."""
    shares = ((0.15, 0.3), (0.3, 0.85), (0.7, 0.1), (0.85, 0.6), (0.5, 0.45))
    cells = ((int(rows * grid[0]), int(columns * grid[1])) for rows, columns in shares)
    return list(dict.fromkeys(cells))


def _block_radius(grid: tuple[int, int]) -> tuple[int, int]:
    """Return the number of cells on each side of the center of a block."""
    return (grid[0] + 1) // 8, (grid[1] + 1) // 8


def _perturbed_images(
    info: ModelInfo, grid: tuple[int, int], blocks: list[tuple[int, int]]
) -> torch.Tensor:
    """Return noise, and copies with other noise in one block each."""
    height, width = info.input_size
    random = torch.Generator().manual_seed(3)
    base, other = torch.randn(2, len(info.mean), height, width, generator=random)
    images = [base]
    for block in blocks:
        image = base.clone()
        (top, low), (left, counts) = (
            (int((at - reach) * side / cells), -int(-(at + reach + 1) * side // cells))
            for at, reach, side, cells in zip(
                block, _block_radius(grid), info.input_size, grid, strict=True
            )
        )
        region = slice(max(top, 0), low), slice(max(left, 0), counts)
        image[:, *region] = 2 * other[:, *region]
        images.append(image)
    return torch.stack(images).double()


def _output_of(subject: Subject, site: str, images: torch.Tensor) -> torch.Tensor:
    """Return the output of a module while attention is the identity."""
    outputs: list[torch.Tensor] = []

    def keep(_: nn.Module, __: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)

    handle = subject.model.get_submodule(site).register_forward_hook(keep)
    identity_attention(subject, images)
    handle.remove()
    return outputs[0]


def _count_localized(change: torch.Tensor, blocks: list[tuple[int, int]]) -> tuple[int, int]:
    """Return how many blocks change most at their own location, and the number of blocks.

    Changes are compared relative to the mean of each block and of each location.
    """
    level = (change + 1e-9 * change.max()).double().log()
    level -= level.flatten(1).mean(1)[:, None, None]
    down, across = _block_radius((change.shape[1], change.shape[2]))
    parts = [
        level[:, max(row - down, 0) : row + down + 1, max(column - across, 0) : column + across + 1]
        for row, column in blocks
    ]
    local = torch.stack([part.flatten(1).mean(1) for part in parts], 1)
    most = (local - local.mean(0)).argmax(0)
    return int((most == torch.arange(len(blocks))).sum()), len(blocks)


def _sum_counts(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    hits, count = zip(*counts, strict=True)
    return sum(hits), sum(count)
