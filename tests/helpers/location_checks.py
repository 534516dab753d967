"""Check that perturbed blocks of pixels change features and attention at their locations."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from visattn.recording.attention_call import AttentionCall
from visattn.recording.interception import attention_calls, probing
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
    """Perturb single blocks of pixels and localize the changes in keys and features.

    Args:
        size: Height and width of its images, None for its default.
    """
    subject = analyze_model(model.double(), size)  # changes may be small with random weights
    info, found = subject.info, [(0, 0), (0, 0)]
    for layer in dict.fromkeys([*info.attention_layers[:1], *info.attention_layers[-1:]]):
        hits = _count_localized(subject, layer.site, layer.key_grid or layer.grid, keys=True)
        found[1] = (found[1][0] + hits[0], found[1][1] + hits[1])
    if not info.feature_layers:
        return LocationCheck(name, info.features_error, found[0], found[1])
    site = info.feature_layers[-1]
    found[0] = _count_localized(subject, site.site, site.grid, keys=False)
    return LocationCheck(name, f"{site.site}, {site.grid[0]} x {site.grid[1]}", found[0], found[1])


def _count_localized(
    subject: Subject, site: str, grid: tuple[int, int], *, keys: bool
) -> tuple[int, int]:
    """Return how many blocks change most at their own location, and the number of blocks.

    Changes are compared relative to the mean of each block and of each location.
    """
    shares = ((0.15, 0.3), (0.3, 0.85), (0.7, 0.1), (0.85, 0.6), (0.5, 0.45))  # not symmetric
    blocks = dict.fromkeys((int(down * grid[0]), int(across * grid[1])) for down, across in shares)
    reach = (grid[0] + 1) // 8, (grid[1] + 1) // 8
    size, random = subject.info.input_size, torch.Generator().manual_seed(3)
    base, other = torch.randn(2, len(subject.info.mean), *size, generator=random).double()
    images, cells = [base], []
    for block in blocks:
        cells.append([slice(max(at - far, 0), at + far + 1)
                      for at, far in zip(block, reach, strict=True)])  # fmt: skip
        pixels = [slice(part.start * side // count, -(-part.stop * side // count))
                  for part, side, count in zip(cells[-1], size, grid, strict=True)]  # fmt: skip
        images.append(base.clone())
        images[-1][:, *pixels] = 2 * other[:, *pixels]
    get = _keys if keys else _features
    values = get(subject, site, torch.stack(images), grid)
    change = (values[1:] - values[:1]).square().sum(1)
    level = (change + 1e-9 * change.max()).log()
    level -= level.flatten(1).mean(1)[:, None, None]
    local = torch.stack([level[:, *part].flatten(1).mean(1) for part in cells], 1)
    most = (local - local.mean(0)).argmax(0)
    return int((most == torch.arange(len(blocks))).sum()), len(blocks)


def _features(subject: Subject, site: str, images: Tensor, _: tuple[int, int]) -> Tensor:
    outputs: list[Tensor] = []

    def keep(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)

    hook = subject.model.get_submodule(site).register_forward_hook(keep)
    with torch.no_grad():
        subject.scores(images)
    hook.remove()
    return subject.info.feature_layers[-1].to_grid(outputs[0])


def _keys(subject: Subject, site: str, images: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return the values of attention, of each channel on the grid."""
    found: dict[str, Tensor] = {}

    def keep(call: AttentionCall) -> None:
        found.setdefault(call.site, call.inputs[2])

    with torch.no_grad(), probing(), attention_calls(subject.model, keep):
        subject.scores(images)
    values = found[site].transpose(-2, -1).flatten(1, 2)
    layout = subject.probe.layouts[site][0]
    assert isinstance(layout, ObservedTokens)
    if layout.windows is not None:  # from all groups of tokens of an image
        values = values.unflatten(0, (len(images), -1)).transpose(1, 2).flatten(2)
        values = values[..., layout.windows.flatten().argsort()]
    return values[..., -grid[0] * grid[1] :].unflatten(-1, grid)
